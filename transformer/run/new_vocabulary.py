"""Vectors for the tokens of another vocabulary, made from those of the parent of a run (`training.init_vocabulary`)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Float

from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.special_tokens import SPECIAL, UNK

WORD_START = "\u2581"
AXES = {"projection.kernel": 1}  # of the tokens; 0 in all other parameters


class Origins(NamedTuple):
    """For each token of a vocabulary the tokens of the parent's whose mean vector it gets; none: that of all."""

    tokens: list[Sequence[int]]
    kept: int  # tokens that both vocabularies have
    dropped: int  # tokens that only the parent's has

    def vectors(self, name: str, taken: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Returns the parameter of this name for the vocabulary, given the parent's."""
        rows = np.moveaxis(taken, AXES.get(name, 0), 0)
        mean = rows[SPECIAL:].mean(axis=0)
        own = np.stack([rows[list(tokens)].mean(axis=0) if tokens else mean for tokens in self.tokens])
        return np.moveaxis(own.astype(taken.dtype), 0, AXES.get(name, 0))

    def log(self, side: str) -> None:
        """Logs how many tokens have which origin."""
        new = sum(len(tokens) > 0 for tokens in self.tokens) - self.kept
        logging.info(
            "Vocabulary, %s: %s of %s tokens keep their vectors, %s start from those of their parts, %s from the mean "
            "of all; %s of the parent's are dropped.",
            *(side, f"{self.kept:,}", f"{len(self.tokens):,}", f"{new:,}"),
            *(f"{len(self.tokens) - self.kept - new:,}", f"{self.dropped:,}"),
        )


def find_origins(own: Vocabulary, parent: Vocabulary) -> Origins:
    """Finds each token in the parent's vocabulary: the same piece, or else the parts into which that segments it."""
    known = {piece: token for token, piece in enumerate(parent.pieces)}
    new = [piece for piece in own.pieces if piece not in known]
    encoded = parent.encode([piece.replace(WORD_START, " ") for piece in new])
    parts = {piece: _spelling(piece, tokens, known.get(WORD_START)) for piece, tokens in zip(new, encoded, strict=True)}
    tokens = [[known[piece]] if piece in known else parts[piece] for piece in own.pieces]
    kept = len(own.pieces) - len(new)
    return Origins(tokens, kept, len(known) - kept)


def _spelling(piece: str, tokens: list[int], word_start: int | None) -> list[int]:
    """Returns the tokens that spell a piece, or none if one is unknown."""
    if UNK in tokens:
        return []
    return [token for token in tokens if token != word_start or piece.startswith(WORD_START)]
