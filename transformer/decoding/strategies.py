"""The table of search strategies for `decoding.strategy`."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from transformer.config.types import Config
from transformer.decoding import mbr
from transformer.decoding.beam_search import SearchResult, beam_search
from transformer.decoding.coverage import search_with_coverage
from transformer.decoding.ctc_search import ctc_search
from transformer.decoding.sampling import sample
from transformer.decoding.translation import Translation, different_texts
from transformer.support.errors import UserError

# keys that only samples depend on
SAMPLING = ("temperature", "top_k", "top_p", "epsilon", "seed", "mbr_samples")


class Strategy(NamedTuple):
    """A way to find hypotheses of sentences.

    search: a function of the models, the `SourceBatch`, `decoding_config` and n_best. It returns
      `n_best` hypotheses of each sentence, and which rows are done.
    samples: whether hypotheses are random. Samples do not measure a model, so validation takes the
      beam search instead.
    takes_steps: whether the search extends its outputs step by step, up to `max_length`. Otherwise
      all rows are done.
    size: the key with the number of hypotheses of a sentence; None: `n_best`.
    select: a function of a sentence's translations and `decoding_config`. It returns the
      translations to show, best first.
    ranks_all: whether `select` needs all hypotheses even if it returns one.
    """

    search: Callable[..., SearchResult]
    samples: bool = False
    takes_steps: bool = True
    size: str | None = "beam_size"
    select: Callable[..., list[Translation]] = lambda translations, _: different_texts(translations)
    ranks_all: bool = False


# The names of `decoding.strategy`.
STRATEGIES = {
    "beam": Strategy(beam_search),
    "sample": Strategy(sample, samples=True, size=None, select=lambda samples, _: samples),
    "mbr": Strategy(
        mbr.draw_candidates,
        samples=True,
        size="mbr_samples",
        select=functools.partial(mbr.rank_texts, samples=True),
        ranks_all=True,
    ),
    "mbr_beam": Strategy(
        beam_search, select=functools.partial(mbr.rank_texts, samples=False), ranks_all=True
    ),
    "ctc": Strategy(ctc_search, takes_steps=False),
}


def strategy_of(decoding_config: Config) -> Strategy:
    """Returns the strategy of `config.decoding`. A coverage penalty replaces the search."""
    if decoding_config.coverage_penalty:
        return Strategy(search_with_coverage)
    return STRATEGIES[decoding_config.strategy]


def check_n_best(decoding_config: Config, n_best: int) -> None:
    """Raises UserError if the search of `config.decoding` keeps fewer than `n_best` hypotheses."""
    key = STRATEGIES[decoding_config.strategy].size
    if key and n_best > decoding_config[key]:
        raise UserError(
            f"n_best={n_best}: must be at most decoding.{key}={decoding_config[key]}; raise that"
        )
