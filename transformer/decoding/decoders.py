"""The decoder that a configuration needs: the plain one, or one with constraints, for documents or
for reranking.
"""

from collections.abc import Sequence
from typing import Any

from transformer.config.types import Config
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.documents import DocumentDecoder
from transformer.decoding.reranking import RerankingDecoder, Scorer
from transformer.decoding.text_decoder import TextDecoder


def make_decoder(
    config: Config, *fields: Any, scorers: Sequence[Scorer] = (), takes_controls: bool = False
) -> TextDecoder:
    """Returns the decoder with these `fields` of `DeviceModels` for the models of a configuration.

    takes_controls: whether its method `translate` has the argument `controls`.
    """
    if scorers:
        return RerankingDecoder(*fields, scorers=scorers)
    # The output of a language model begins with its source, so it continues each sentence by
    # itself.
    if config.data.context and config.data.source_language:
        return DocumentDecoder(*fields, context=config.data.context)
    decoding = config.decoding
    constraints = (
        decoding.min_length,
        decoding.no_repeat_ngram,
        decoding.banned,
        decoding.banned_pieces,
    )
    if takes_controls or any(constraints):
        return ControlledDecoder(*fields)
    return TextDecoder(*fields)
