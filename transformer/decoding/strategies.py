"""The table of search strategies for `decoding.strategy`."""

import functools
from collections.abc import Callable
from collections.abc import Set as AbstractSet
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
# methods of `transformer.Model` that do not depend on the strategy
METHODS = frozenset({"translate", "confidence", "score", "attention", "encode"})


class Strategy(NamedTuple):
    """A way to find hypotheses of sentences.

    `methods` are those of `transformer.Model` that it has. The `options` are the optional parts of
    the configuration and of the interface that it supports:
    - shortlist, coverage_penalty
    - rerank: its hypotheses are ranked by their scores
    - two_parts: a search without the required phrases comes before one with them

    search: a function of the models, the `SourceBatch`, `decoding_config` and n_best. It returns
      `n_best` hypotheses of each sentence, and which rows are done.
    samples: whether hypotheses are random. Samples do not measure a model, so validation takes the
      beam search instead.
    takes_steps: whether the search extends its outputs step by step, up to `max_length`. Otherwise
      all rows are done.
    size: the key with the number of hypotheses of a sentence; None: `n_best`.
    select: a function of a sentence's translations and `decoding_config`. It returns the
      translations to show, best first.
    has_utility: whether `select` ranks all hypotheses by `decoding.mbr_utility`.
    """

    search: Callable[..., SearchResult]
    samples: bool = False
    takes_steps: bool = True
    size: str | None = "beam_size"
    select: Callable[..., list[Translation]] = lambda translations, _: different_texts(translations)
    has_utility: bool = False
    methods: AbstractSet[str] = METHODS
    options: AbstractSet[str] = frozenset()


# The names of `decoding.strategy`.
STRATEGIES = {
    "beam": Strategy(
        beam_search,
        methods=METHODS | {"alternatives", "beam_tree"},
        options={"shortlist", "coverage_penalty", "rerank", "two_parts"},
    ),
    "sample": Strategy(sample, samples=True, size=None, select=lambda samples, _: samples),
    "mbr": Strategy(
        mbr.draw_candidates,
        samples=True,
        size="mbr_samples",
        select=functools.partial(mbr.rank_texts, samples=True),
        has_utility=True,
    ),
    "mbr_beam": Strategy(
        beam_search,
        select=functools.partial(mbr.rank_texts, samples=False),
        has_utility=True,
    ),
    "ctc": Strategy(ctc_search, takes_steps=False, options={"rerank"}),
}


def strategy_of(decoding_config: Config) -> Strategy:
    """Returns the strategy of `config.decoding`. A coverage penalty replaces the search."""
    strategy = STRATEGIES[decoding_config.strategy]
    if decoding_config.coverage_penalty:
        return strategy._replace(search=search_with_coverage)
    return strategy


def check_n_best(decoding_config: Config, n_best: int) -> None:
    """Raises UserError if the search of `config.decoding` keeps fewer than `n_best` hypotheses."""
    key = STRATEGIES[decoding_config.strategy].size
    if key and n_best > decoding_config[key]:
        raise UserError(
            f"n_best={n_best}: must be at most decoding.{key}={decoding_config[key]}; raise that"
        )
