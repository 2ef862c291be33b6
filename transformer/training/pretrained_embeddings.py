"""Embedding tables initialized from pretrained word vectors in word2vec's text format."""

import math
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Bool, Float

from transformer.config.types import Config
from transformer.data.sources.lines import read_lines
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.support import files
from transformer.support.errors import UserError


def check_files(config: Config) -> None:
    """Raises UserError if a file is missing or its first line cannot be used.

    `config` is `config.model`.
    """
    for name in filter(None, (config.source_vectors, config.target_vectors)):
        next(_read_vectors(files.expanded(name), config.d_model), None)


def load_pretrained_embeddings(parameters: dict, config: Config, tokenizer: Tokenizer) -> dict:
    """Returns the parameters with the vectors in the embedding tables, where a piece has one.

    `config` is `config.model`. In a table that both stacks share, the target's vectors replace the
    source's.
    """
    names = {"encoder": config.source_vectors, "decoder": config.target_vectors}
    for (stack, name), vocabulary in zip(names.items(), tokenizer.sides, strict=True):
        if name:
            # A shared table is a parameter of the first stack in alphabetical order: the decoder.
            variable = parameters[stack if "embedding" in parameters[stack] else "decoder"][
                "embedding"
            ]
            rows, has_vector = read_rows(files.expanded(name), vocabulary.pieces, config.d_model)
            table = jnp.where(has_vector[:, None], rows, variable["table"])
            variable["table"] = jax.device_put(table, variable["table"].sharding)
    return parameters


def read_rows(
    path: Path, pieces: list[str], d_model: int
) -> tuple[Float[np.ndarray, "V D"], Bool[np.ndarray, " V"]]:
    """Returns the rows of an embedding table for pieces that are words of the file, and which
    pieces these are.

    Marks of words do not count. The rows are vectors divided by sqrt(D), by which the model
    multiplies embeddings (section 3.4). Raises UserError if no piece is a word of the file.
    """
    wanted: dict[str, list[int]] = {}
    for index, piece in enumerate(pieces):
        wanted.setdefault(piece.removeprefix("\u2581"), []).append(index)
    table, has_vector = np.zeros((len(pieces), d_model), np.float32), np.zeros(len(pieces), bool)
    for word, vector in _read_vectors(path, d_model):
        for index in wanted.pop(word, ()):
            table[index], has_vector[index] = vector, True
    logging.info("%s has vectors for %d of %d pieces.", path, has_vector.sum(), len(pieces))
    if not has_vector.any():
        raise UserError(
            f"{path}: has a vector for none of the {len(pieces)} pieces; is it for this language?"
        )
    return table / math.sqrt(d_model), has_vector


def _read_vectors(path: Path, d_model: int) -> Iterator[tuple[str, Float[np.ndarray, " D"]]]:
    """Yields (word, vector) for each line.

    The header, two numbers, is optional. A later word may contain spaces.
    """
    if not path.is_file():
        raise UserError(f"pretrained embeddings: {path}: no such file")
    # of a line; unlimited in the first one, so that the error message has the file's width
    max_splits = -1
    for number, line in enumerate(read_lines(path), start=1):
        word, *values = line.decode(errors="replace").rstrip().rsplit(" ", max_splits)
        if number == 1 and len(values) == 1:
            continue
        try:
            vector = np.array(values, np.float32)
        except ValueError:
            raise UserError(f"{path}: line {number} is not a word and its numbers") from None
        if len(vector) != d_model:
            raise UserError(
                f"{path}: line {number} has {len(vector)} numbers, must be model.d_model={d_model}"
            )
        if not np.isfinite(vector).all():
            raise UserError(f"{path}: line {number} has a number that is not finite")
        yield word, vector
        max_splits = d_model
