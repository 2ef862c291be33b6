"""The strategies that `decoding.strategy` chooses from."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Bool

from transformer.config_types import Config
from transformer.decoding import mbr
from transformer.decoding.beam_search import Hypotheses
from transformer.decoding.ctc_search import ctc_search
from transformer.decoding.required_phrases import search_with_phrases
from transformer.decoding.sampling import sample
from transformer.decoding.translation import Translation


class Strategy(NamedTuple):
    """A way to find hypotheses of sentences.

    search(models, source, limits, **arguments): the hypotheses, and which rows are done; see `beam_search`.
    arguments: the names of its other arguments: keys of the group `config.decoding`; `n_best`, the number of hypotheses
      to return; `max_length`, of an output; `lines`, a (B,) array with the number of each row's line; `constrain` and
      `phrases`, as `make_search` takes them.
    samples: whether hypotheses are drawn. They are no measure of a model, so validation takes the beam search instead.
    takes_steps: whether it extends its outputs step by step, up to `max_length`. Otherwise all rows are done.
    size: the key with the number of hypotheses of a sentence; None: `n_best`.
    select(translations, config.decoding): those of a sentence's hypotheses that are returned, best first.
    ranks_all: whether `select` needs all hypotheses, also to return one.
    """

    search: Callable[..., tuple[Hypotheses, Bool[Array, "B"]]]
    arguments: tuple[str, ...]
    samples: bool = False
    takes_steps: bool = True
    size: str | None = "beam_size"
    select: Callable[[list[Translation], Config], list[Translation]] = mbr.different_texts
    ranks_all: bool = False


COMMON = ("n_best", "length_penalty", "length_penalty_form", "forbid_unk")
STEPS = (*COMMON, "max_length", "constrain")
BEAM = (*STEPS, "phrases", "beam_size", "shrinking_beam", "coverage_penalty")
SAMPLE = (*STEPS, "seed", "temperature", "top_k", "top_p", "epsilon")

STRATEGIES = {
    "beam": Strategy(search_with_phrases, BEAM),
    "sample": Strategy(sample, (*SAMPLE, "lines"), samples=True, size=None, select=lambda drawn, _: drawn),
    "mbr": Strategy(mbr.draw, SAMPLE, samples=True, size="mbr_samples", select=mbr.best_sample, ranks_all=True),
    "mbr_beam": Strategy(search_with_phrases, BEAM, select=mbr.best_hypothesis, ranks_all=True),
    "ctc": Strategy(ctc_search, (*COMMON, "beam_size"), takes_steps=False),
}
