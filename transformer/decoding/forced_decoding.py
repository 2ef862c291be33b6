"""Known texts, read instead of generated: their scores, encoder states and attention weights."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config, output_limit
from transformer.decoding import ensemble
from transformer.decoding.batches import DeviceModels, Replicas, make_batches, pad
from transformer.decoding.beam_search import length_penalty
from transformer.decoding.translation import Translation, encode, pieces_of
from transformer.model.single_stack import LanguageModel
from transformer.model.transformer import Transformer, attention_weights
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, PAD


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoder's output for a text: a float32 state for each of its S tokens, EOS included."""

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    states: Float[np.ndarray, "S D"]


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention weights of a model that reads a source and a target, with the pieces of all
    axes.

    The weights are float32 arrays (layers, heads, query, key); those of a query sum to 1. Axes of
    length S belong to `source_pieces`. Axes of length T belong to the decoder's positions: position
    t reads `target_input_pieces[t]`, of which the first is BOS, and predicts
    `target_output_pieces[t]`, of which the last is EOS.

    encoder: (N, H, S, S). decoder: (M, H, T, T), 0 for later keys; None without self-attention in
        the decoder.
    cross: (M, H, T, S).
    """

    source_pieces: tuple[str, ...]
    target_input_pieces: tuple[str, ...]
    target_output_pieces: tuple[str, ...]
    encoder: Float[np.ndarray, "N H S S"]
    decoder: Float[np.ndarray, "M H T T"] | None
    cross: Float[np.ndarray, "M H T S"]
    tag_length: int = 0  # the first source pieces, which are those of `data.source_tag`


def score_pairs(
    models: DeviceModels, parameters: Replicas, pairs: Sequence[tuple[str, str]]
) -> list[Translation]:
    """Returns the target of each pair with its scores.

    Raises UserError, with its name, if a text is too long.
    """
    sources, targets = (
        [
            encode_known(models, side, f"pairs[{i}][{side}]", pair[side])
            for i, pair in enumerate(pairs)
        ]
        for side in (0, 1)
    )
    rows = _map_rows(models, models.jit(score_tokens), parameters, [sources, targets])
    translations, vocabulary = [], models.tokenizer.target
    for (_, text), tokens, row in zip(pairs, targets, rows, strict=True):
        log_p = tuple(row.tolist())
        score = sum(log_p) / length_penalty(len(tokens), models.config)
        pieces = pieces_of(vocabulary, tokens)
        translations.append(Translation(text, tuple(tokens), pieces, log_p, sum(log_p), score))
    return translations


def encode_texts(
    models: DeviceModels, parameters: Replicas, texts: Sequence[str]
) -> list[Encoding]:
    """Returns the encoding of each text by the one model.

    Raises UserError, with its name, if a text is too long.
    """
    sequences = [encode_known(models, 0, f"texts[{i}]", text) for i, text in enumerate(texts)]
    states = _map_rows(models, models.jit(encoder_states), parameters, [sequences])
    source = models.tokenizer.source
    pairs = zip(sequences, states, strict=True)
    return [Encoding(tuple(tokens), pieces_of(source, tokens), rows) for tokens, rows in pairs]


def read_pair(models: DeviceModels, parameters: Replicas, source: str, target: str) -> Attention:
    """Returns the weights with which the one model reads the pair.

    Raises UserError if a text is too long.
    """
    (source_tokens, target_tokens), arrays = _encode_pair(models, source, target)
    ((_, weights),) = models.map(models.jit(attend), parameters, [arrays], lambda arrays: arrays)
    S, T = len(source_tokens), len(target_tokens)
    source_side, target_side = models.tokenizer.sides
    return Attention(
        source_pieces=pieces_of(source_side, source_tokens),
        target_input_pieces=pieces_of(target_side, [BOS, *target_tokens[:-1]]),
        target_output_pieces=pieces_of(target_side, target_tokens),
        encoder=weights["encoder"][:, 0, :, :S, :S].copy(),
        decoder=weights["decoder"][:, 0, :, :T, :T].copy() if "decoder" in weights else None,
        cross=weights["cross"][:, 0, :, :T, :S].copy(),
        tag_length=models.tokenizer.tag_length,
    )


def attention_compilation(
    models: DeviceModels, parameters: tuple[dict, ...], *pair: str
) -> Callable[[], object]:
    """Returns a function that compiles the program of `read_pair` for a pair.

    The parameters may be abstract.
    """
    arguments = models.jit(attend), parameters, *_encode_pair(models, *pair)[1]
    return functools.partial(models.programs.compile, *arguments, device=models.devices[0])


def score_tokens(
    models: Sequence[Transformer | LanguageModel],
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
) -> Float[Array, "B T"]:
    """Returns the ensemble's log-probability of each token of `target`, given those before it; 0 at
    PAD.

    A language model does not read the source.
    """
    inputs = (
        [shift_right(target)]
        if isinstance(models[0], LanguageModel)
        else [source, shift_right(target)]
    )
    log_p = ensemble.log_probabilities([model(*inputs) for model in models])
    return jnp.where(
        target == PAD, 0.0, jnp.take_along_axis(log_p, target[:, :, None], axis=2)[:, :, 0]
    )


def encoder_states(
    models: Sequence[nnx.Module], source: Int[Array, "B S"]
) -> Float[Array, "B S D"]:
    return models[0].encoder(source).astype(jnp.float32)


def attend(
    models: Sequence[Transformer], source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> dict[str, Float[Array, "N B H Q K"]]:
    return attention_weights(models[0], source, shift_right(target))


def shift_right(target: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns the decoder's input that predicts `target`: BOS, and all tokens but the last."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)


def _map_rows(
    models: DeviceModels,
    function: Callable,
    parameters: Replicas,
    sides: Sequence[Sequence[Sequence[int]]],
) -> list[np.ndarray]:
    """Returns each item's row of the function of [sources] or [sources, targets], as long as the
    last of its texts.
    """

    def arrays_of(batch):
        return [pad([side[i] for i in batch.indices], batch.rows, batch.length) for side in sides]

    lengths = {i: max(map(len, item)) for i, item in enumerate(zip(*sides, strict=True))}
    batches, rows = (
        make_batches(lengths, longest_text(models.config), models.config.batch_tokens),
        {},
    )
    for batch, result in models.map(function, parameters, batches, arrays_of):
        rows |= {
            i: row[: len(sides[-1][i])].copy()
            for i, row in zip(batch.indices, result, strict=False)
        }
    return [rows[i] for i in range(len(rows))]


def _encode_pair(
    models: DeviceModels, source: str, target: str
) -> tuple[list[list[int]], list[np.ndarray]]:
    """Returns the tokens of both texts, and as rows of one length.

    Raises UserError if a text is too long.
    """
    tokens = [encode_known(models, 0, "source", source), encode_known(models, 1, "target", target)]
    (batch,) = make_batches({0: max(map(len, tokens))}, longest_text(models.config), 1)
    return tokens, [pad([row], batch.rows, batch.length) for row in tokens]


def encode_known(models: DeviceModels, side: int, name: str, text: str) -> list[int]:
    """Returns the tokens of a source (side 0) or target (side 1), and EOS.

    Raises UserError for too long a text.
    """
    tokens, longest = (
        encode(models.tokenizer.encoders[side], name, text),
        longest_text(models.config),
    )
    if len(tokens) > longest:
        raise UserError(
            f"{name}: has {len(tokens)} tokens including end-of-sentence, must have at most {longest}; shorten it, or "
            f"raise decoding.max_source_length={models.config.max_source_length}"
        )
    return tokens


def longest_text(config: Config) -> int:
    """Returns the most tokens, EOS included, that a known text may have: those of the longest
    output or source.
    """
    longest = config.max_source_length
    return max(longest, output_limit(longest - 1, config) + 1)


def is_scorable(models: DeviceModels, pair: Sequence[str], most: int | float = math.inf) -> bool:
    """Tells whether both texts have at most `most` tokens, EOS included, and no more than
    `longest_text`.
    """
    sides = zip(models.tokenizer.encoders, pair, strict=True)
    longest = max(len(vocabulary.encode([text])[0]) + 1 for vocabulary, text in sides)
    return longest <= min(most, longest_text(models.config))
