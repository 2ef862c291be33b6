"""The decoder of a configuration: plain, or for documents, reranking or a utility of others."""

import functools
from collections.abc import Sequence
from typing import Any

from transformer.config.types import Config
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.documents import DocumentDecoder
from transformer.decoding.mbr import UTILITIES
from transformer.decoding.reranking import (
    CommandScorer,
    RerankingDecoder,
    ScoredMbrDecoder,
    Scorer,
)
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.target_forms import TARGET_FORMS


def make_decoder(
    config: Config,
    decoding_config: Config,
    *,
    scorers: Sequence[Scorer | CommandScorer] = (),
    **fields: Any,
) -> ControlledDecoder:
    """Returns the decoder for the models of a configuration.

    `fields` are the other fields of `DeviceModels`. The search may have other settings than
    `config.decoding`, as in validation.
    """
    decoder_class: Any = ControlledDecoder
    if is_scored_mbr(decoding_config):
        decoder_class = ScoredMbrDecoder
    elif scorers:
        decoder_class = functools.partial(RerankingDecoder, scorers=scorers)
    # The output of a language model begins with its source, so a language model continues each
    # sentence by itself.
    elif config.data.context and config.data.source_language:
        decoder_class = functools.partial(DocumentDecoder, context=config.data.context)
    form = TARGET_FORMS[config.data.target_form]
    return decoder_class(decoding_config=decoding_config, form=form, **fields)


def is_scored_mbr(decoding_config: Config) -> bool:
    """True if the command of `decoding.scorer` is the utility of the search."""
    has_utility = STRATEGIES[decoding_config.strategy].has_utility
    return has_utility and UTILITIES[decoding_config.mbr_utility] is None
