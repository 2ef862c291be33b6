"""The strategies that `decoding.strategy` chooses from."""

from collections.abc import Callable
from typing import NamedTuple

from transformer.config.types import Config
from transformer.decoding import mbr
from transformer.decoding.beam_search import SearchResult
from transformer.decoding.ctc_search import ctc_search
from transformer.decoding.required_phrases import search_with_phrases
from transformer.decoding.sampling import sample
from transformer.decoding.translation import Translation

SAMPLING = ("temperature", "top_k", "top_p", "epsilon", "seed", "mbr_samples")  # keys that only samples depend on


class Strategy(NamedTuple):
    """A way to find hypotheses of sentences.

    search(models, sentences, config.decoding, n_best): `n_best` hypotheses of each of the `Sentences`, and which rows
      are done.
    samples: whether hypotheses are drawn. They are no measure of a model, so validation takes the beam search instead.
    takes_steps: whether it extends its outputs step by step, up to `max_length`. Otherwise all rows are done.
    size: the key with the number of hypotheses of a sentence; None: `n_best`.
    select(translations, config.decoding): those of a sentence's hypotheses that are returned, best first.
    ranks_all: whether `select` needs all hypotheses, also to return one.
    """

    search: Callable[..., SearchResult]
    samples: bool = False
    takes_steps: bool = True
    size: str | None = "beam_size"
    select: Callable[[list[Translation], Config], list[Translation]] = mbr.different_texts
    ranks_all: bool = False


STRATEGIES = {
    "beam": Strategy(search_with_phrases),
    "sample": Strategy(sample, samples=True, size=None, select=lambda drawn, _: drawn),
    "mbr": Strategy(mbr.draw_candidates, samples=True, size="mbr_samples", select=mbr.rank_samples, ranks_all=True),
    "mbr_beam": Strategy(search_with_phrases, select=mbr.rank_hypotheses, ranks_all=True),
    "ctc": Strategy(ctc_search, takes_steps=False),
}
