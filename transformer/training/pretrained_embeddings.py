"""Embeddings that start from word vectors trained elsewhere, in word2vec's text format."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import logging
from jaxtyping import Bool, Float

from transformer import files
from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.errors import UserError

WORD_MARK = "\u2581"  # SentencePiece's sign for the space before a word


@dataclasses.dataclass(frozen=True)
class PretrainedRows:
    """Rows of an embedding table, already divided by the sqrt(D) that they are multiplied with on the way in."""

    table: Float[np.ndarray, "V D"]
    found: Bool[np.ndarray, " V"]


def check_files(config: Config) -> None:
    """Raises UserError for a file of `pretrained_tables` that is missing or starts wrong, before hours of preparation.

    `config` is the group `config.model`.
    """
    for name in filter(None, (config.source_vectors, config.target_vectors)):
        next(_read_vectors(files.expanded(name), config.d_model), None)


def pretrained_tables(config: Config, tokenizer: Tokenizer) -> dict[str, PretrainedRows]:
    """What `model.source_vectors` and `model.target_vectors` name, under "encoder" and "decoder"; nothing for "".

    Raises UserError for a file that cannot be used.
    """
    wanted = {
        "encoder": (config.source_vectors, tokenizer.source.pieces),
        "decoder": (config.target_vectors, tokenizer.target.pieces),
    }
    return {
        side: read_rows(files.expanded(name), pieces, config.d_model) for side, (name, pieces) in wanted.items() if name
    }


def read_rows(path: Path, pieces: list[str], d_model: int) -> PretrainedRows:
    """Vectors of the pieces that the file has words for. A piece matches without its word mark."""
    wanted: dict[str, list[int]] = {}
    for index, piece in enumerate(pieces):
        wanted.setdefault(piece.removeprefix(WORD_MARK), []).append(index)
    table, found = np.zeros((len(pieces), d_model), np.float32), np.zeros(len(pieces), bool)
    for word, vector in _read_vectors(path, d_model):
        for index in wanted.pop(word, ()):
            table[index], found[index] = vector, True
    logging.info("%s has vectors for %d of %d pieces.", path, found.sum(), len(pieces))
    if not found.any():
        raise UserError(f"{path}: has a vector for none of the {len(pieces)} pieces; is it of the right language?")
    return PretrainedRows(table / math.sqrt(d_model), found)


def _read_vectors(path: Path, d_model: int) -> Iterator[tuple[str, Float[np.ndarray, " D"]]]:
    """(word, vector) for each line; the header that word2vec writes, two numbers, is optional."""
    if not path.is_file():
        raise UserError(f"model vectors: {path}: no such file")
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            word, *values = line.rstrip().split(" ")
            if number == 1 and len(values) == 1:
                continue
            try:
                vector = np.array(values, np.float32)
            except ValueError:
                raise UserError(f"{path}: line {number} is not a word and its numbers") from None
            if len(vector) != d_model:
                raise UserError(f"{path}: line {number} has {len(vector)} numbers, must be model.d_model={d_model}")
            if not np.isfinite(vector).all():
                raise UserError(f"{path}: line {number} has a number that is not finite")
            yield word, vector
