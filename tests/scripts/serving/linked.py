"""Models whose attention links given words, for tests of what is aligned by it."""

import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from transformer.decoding.forced_decoding import Attention
from transformer.support.errors import UserError


class Unlinked:
    """A model without cross-attention."""

    def attention(self, source: str, target: str) -> Attention:
        raise UserError("attention: is not defined for a model of training.objective=ctc")


class Linked:
    """A model that attends from a target word to the source words for which `is_linked` is true,
    else to the first.

    Punctuation is a token without U+2581, as in a SentencePiece model.
    """

    def __init__(self, is_linked: Callable[[str, str], bool]) -> None:
        self.is_linked = is_linked
        model = SimpleNamespace(num_decoder_layers=None, num_layers=1, num_heads=1)
        self.config = SimpleNamespace(model=model, training=SimpleNamespace(guided_heads=""))

    def attention(self, source: str, target: str) -> Attention:
        sources, targets = (
            [*re.findall(r" ?\w+| ?[^\w\s]", f" {text}"), "</s>"] for text in (source, target)
        )
        weights = np.full((len(targets), len(sources)), 1e-3)
        for t, word in enumerate(targets):
            linked = [
                s for s, other in enumerate(sources) if self.is_linked(other.strip(), word.strip())
            ]
            weights[t, linked or [0]] = 1 / max(len(linked), 1)
        pieces = [
            tuple(token.replace(" ", "\u2581") for token in side) for side in (sources, targets)
        ]
        encoder = np.empty((1, 1, len(sources), len(sources)))
        return Attention(*pieces, pieces[1], encoder, None, weights[None, None])
