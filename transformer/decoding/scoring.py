"""Forced decoding: the log-probabilities that models give to known translations."""

from collections.abc import Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding import ensemble
from transformer.decoding.batches import DecodingBatch, DeviceModels, Jitted, make_batches, pad
from transformer.decoding.beam_search import penalty
from transformer.decoding.replicas import Replicas
from transformer.decoding.translation import Translation
from transformer.errors import UserError
from transformer.model.transformer import Transformer
from transformer.special_tokens import BOS, EOS, PAD


def score_tokens(
    models: Sequence[Transformer], source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Returns the log-probability of each token of `target` given the source and the tokens before it; 0 at PAD.

    Rows of `source` and `target` end with EOS and are padded with PAD. Probabilities of several models are averaged.
    """
    log_p = ensemble.log_probabilities([model(source, shift_right(target)) for model in models])
    return jnp.where(target == PAD, 0.0, jnp.take_along_axis(log_p, target[:, :, None], axis=2)[:, :, 0])


def shift_right(target: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns the decoder's input that predicts `target`: BOS, and all tokens but the last."""
    return jnp.concatenate([jnp.full((target.shape[0], 1), BOS, target.dtype), target[:, :-1]], axis=1)


def score_pairs(models: DeviceModels, parameters: Replicas, pairs: Sequence[tuple[str, str]]) -> list[Translation]:
    """Returns the target of each pair, in order, with the scores that the models give to it.

    A side without tokens is EOS only. Raises UserError, with the name of the text, if one is too long.
    """
    sides = [
        encode_known(vocabulary, {f"pairs[{i}][{side}]": pair[side] for i, pair in enumerate(pairs)}, models.config)
        for side, vocabulary in enumerate(models.tokenizer.sides)
    ]
    scored: dict[int, Translation] = {}
    for i, row in map_rows(models, models.jit(score_tokens), parameters, sides):
        tokens = sides[1][i]
        log_p, pieces = tuple(row[: len(tokens)].tolist()), tuple(models.target_pieces[token] for token in tokens)
        score = sum(log_p) / penalty(len(tokens), models.config.length_penalty)
        scored[i] = Translation(pairs[i][1], tuple(tokens), pieces, log_p, sum(log_p), score)
    return [scored[i] for i in range(len(pairs))]


def map_rows(
    models: DeviceModels, function: Jitted, parameters: Replicas, sides: Sequence[Sequence[Sequence[int]]]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the index of every item and its row of the function's result, in any order.

    Args:
      function: maps the parameters and one array (rows, length) for each side to an array of rows.
      sides: the token sequences of the items: [sources], or [sources, targets] for pairs.
    """

    def arrays_of(batch: DecodingBatch) -> list[np.ndarray]:
        return [pad([side[i] for i in batch.indices], batch.rows, batch.length) for side in sides]

    lengths = {i: max(map(len, item)) for i, item in enumerate(zip(*sides, strict=True))}
    batches = make_batches(lengths, longest_text(models.config), 0, models.config.batch_tokens)
    for batch, result in models.map(function, parameters, batches, arrays_of):
        yield from zip(batch.indices, result, strict=False)


def longest_text(config: Config) -> int:
    """Returns the most tokens, EOS included, that a known text may have: those of the longest output of the search."""
    return config.max_source_length + config.max_extra_length


def is_scorable(tokenizer: Tokenizer, pair: tuple[str, str], longest: int) -> bool:
    """Tells whether both texts have at most `longest` tokens, EOS included."""
    sides = zip(tokenizer.sides, pair, strict=True)
    return all(len(vocabulary.encode([text])[0]) < longest for vocabulary, text in sides)


def encode_known(vocabulary: Vocabulary, texts: Mapping[str, str], config: Config) -> list[list[int]]:
    """Returns the tokens of each text, and EOS. `texts` maps the names of texts in messages to the texts.

    Raises UserError if a text has more than `longest_text` tokens, or the vocabulary cannot encode it.
    """
    sequences = []
    for name, text in texts.items():
        try:
            (tokens,) = vocabulary.encode([text])
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        if len(tokens) >= longest_text(config):
            raise UserError(
                f"{name}: has {len(tokens) + 1} tokens including end-of-sentence, must have at most "
                f"{longest_text(config)}; shorten it, or raise decoding.max_source_length={config.max_source_length}"
            )
        sequences.append([*tokens, EOS])
    return sequences
