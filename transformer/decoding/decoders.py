"""The decoder that a configuration needs: for sentences, for documents or for reranking."""

from collections.abc import Sequence
from typing import Any

from transformer.config.types import Config
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.documents import DocumentDecoder
from transformer.decoding.reranking import RerankingDecoder, Scorer


def make_decoder(config: Config, *fields: Any, scorers: Sequence[Scorer] = ()) -> ControlledDecoder:
    """Returns the decoder with these `fields` of `DeviceModels` for the models of a configuration."""
    if scorers:
        return RerankingDecoder(*fields, scorers=scorers)
    # The output of a language model begins with its source, so it continues each sentence by itself.
    if config.data.context and config.data.source_language:
        return DocumentDecoder(*fields, context=config.data.context)
    return ControlledDecoder(*fields)
