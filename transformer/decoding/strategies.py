"""The strategies that `decoding.strategy` chooses from."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Bool

from transformer.decoding.beam_search import Hypotheses
from transformer.decoding.ctc_search import ctc_search
from transformer.decoding.required_phrases import search_with_phrases
from transformer.decoding.sampling import sample


class Strategy(NamedTuple):
    """A way to find hypotheses of sentences.

    search(models, source, limits, **arguments): the hypotheses, and which rows are done; see `beam_search`.
    arguments: the names of its other arguments: keys of the group `config.decoding`; `n_best`, the number of hypotheses
      to return; `max_length`, of an output; `lines`, a (B,) array with the number of each row's line; `constrain` and
      `phrases`, as `make_search` takes them.
    samples: whether it draws `n_best` samples, which may have equal texts, instead of the best of `beam_size`
      hypotheses. Samples are no measure of a model, so validation takes the beam search instead.
    takes_steps: whether it extends its outputs step by step, up to `max_length`. Otherwise all rows are done.
    """

    search: Callable[..., tuple[Hypotheses, Bool[Array, "B"]]]
    arguments: tuple[str, ...]
    samples: bool = False
    takes_steps: bool = True


COMMON = ("n_best", "length_penalty", "length_penalty_form", "forbid_unk")
STEPS = (*COMMON, "max_length", "constrain")
SAMPLE = (*STEPS, "lines", "seed", "temperature", "top_k", "top_p")

STRATEGIES = {
    "beam": Strategy(search_with_phrases, (*STEPS, "phrases", "beam_size", "shrinking_beam", "coverage_penalty")),
    "sample": Strategy(sample, SAMPLE, samples=True),
    "ctc": Strategy(ctc_search, (*COMMON, "beam_size"), takes_steps=False),
}
