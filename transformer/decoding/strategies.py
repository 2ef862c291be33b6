"""The strategies that `decoding.strategy` chooses from."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool

from transformer.config_types import Config
from transformer.decoding.beam_search import Hypotheses, beam_search
from transformer.decoding.ctc_search import ctc_search
from transformer.decoding.sampling import sample, sample_keys


class Strategy(NamedTuple):
    """A way to find `n_best` hypotheses of each sentence. `config` is the group `config.decoding`.

    num_hypotheses(config, n_best): the number of hypotheses of a sentence at each step.
    search(models, source, limits, lines, config, n_best, max_length): the hypotheses, and which rows are done; the
      arguments are those of `beam_search`, and `lines` is (B,), the number of each row's line.
    takes_steps: whether the search extends its outputs step by step, up to `max_length`. Otherwise all rows are done.
    distinct: whether a sentence's translations have different texts: those of a search, but not samples.
    """

    num_hypotheses: Callable[[Config, int], int]
    search: Callable[..., tuple[Hypotheses, Bool[Array, "B"]]]
    takes_steps: bool = True
    distinct: bool = True


def _beam(models, source, limits, lines, config, n_best, max_length):
    return beam_search(models, source, limits, max_length=max_length, **_beam_options(config, n_best))


def _sample(models, source, limits, lines, config, n_best, max_length):
    return sample(
        models,
        source,
        limits,
        sample_keys(config.seed, lines, n_best),
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        length_penalty=config.length_penalty,
        max_length=max_length,
        forbid_unk=config.forbid_unk,
    )


def _ctc(models, source, limits, lines, config, n_best, max_length):
    return ctc_search(models, source, limits, **_beam_options(config, n_best))


def _beam_options(config: Config, n_best: int) -> dict[str, Any]:
    return {
        "beam_size": config.beam_size,
        "n_best": n_best,
        "length_penalty": config.length_penalty,
        "forbid_unk": config.forbid_unk,
    }


STRATEGIES = {
    "beam": Strategy(lambda config, n_best: config.beam_size, _beam),
    "sample": Strategy(lambda config, n_best: n_best, _sample, distinct=False),
    "ctc": Strategy(lambda config, n_best: config.beam_size, _ctc, takes_steps=False),
}
