"""Known texts, read instead of generated: their scores, encoder states and attention weights."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config, output_limit
from transformer.decoding import ensemble
from transformer.decoding.batches import DeviceModels, Replicas, make_decoding_batches, pad
from transformer.decoding.beam_search import length_penalty
from transformer.decoding.translation import Translation, encode, pieces_of
from transformer.model.single_stack import LanguageModel
from transformer.model.transformer import Transformer, attention_weights
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, PAD


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoder's output for a text: a float32 state for each of S tokens, EOS included."""

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    states: Float[np.ndarray, "S D"]


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention weights of a model that reads a source and a target, with their pieces.

    The weights are float32 arrays (layers, heads, query, key), and sum to 1 over the keys. Axes of
    length S belong to `source_pieces`. Axes of length T belong to the positions of the decoder:
    position t reads `target_input_pieces[t]` and predicts `target_output_pieces[t]`. The first
    input is BOS, and the last output is EOS.

    decoder: 0 for later keys. None if the decoder has no self-attention.
    tag_length: the number of source pieces that belong to `data.source_tag`. They come first.
    """

    source_pieces: tuple[str, ...]
    target_input_pieces: tuple[str, ...]
    target_output_pieces: tuple[str, ...]
    encoder: Float[np.ndarray, "N H S S"]
    decoder: Float[np.ndarray, "M H T T"] | None
    cross: Float[np.ndarray, "M H T S"]
    tag_length: int = 0


def score_pairs(
    models: DeviceModels, parameters: Replicas, pairs: Sequence[tuple[str, str]]
) -> list[Translation]:
    """Returns the target of each pair with its scores.

    Raises UserError, which names the text, if a text is too long.
    """
    sources, targets = (
        [
            encode_text(models, side, f"pairs[{i}][{side}]", pair[side])
            for i, pair in enumerate(pairs)
        ]
        for side in (0, 1)
    )
    rows = map_rows(models, models.jit(score_tokens), parameters, [sources, targets])

    # A row has the log-probability of each token of the target.
    translations = []
    for (_, text), tokens, row in zip(pairs, targets, rows, strict=True):
        log_p = tuple(row.tolist())
        translation = Translation(
            text=text,
            tokens=tuple(tokens),
            pieces=pieces_of(models.tokenizer.target, tokens),
            token_log_probabilities=log_p,
            log_probability=sum(log_p),
            score=sum(log_p) / length_penalty(len(tokens), models.decoding_config),
        )
        translations.append(translation)
    return translations


def encode_texts(
    models: DeviceModels, parameters: Replicas, texts: Sequence[str]
) -> list[Encoding]:
    """Returns the encoding of each text by the one model.

    Raises UserError, which names the text, if a text is too long.
    """
    sequences = [encode_text(models, 0, f"texts[{i}]", text) for i, text in enumerate(texts)]
    states = map_rows(models, models.jit(encoder_states), parameters, [sequences])
    source = models.tokenizer.source
    pairs = zip(sequences, states, strict=True)
    return [Encoding(tuple(tokens), pieces_of(source, tokens), rows) for tokens, rows in pairs]


def read_pair(models: DeviceModels, parameters: Replicas, source: str, target: str) -> Attention:
    """Returns the attention weights of the one model when it reads the pair.

    Raises UserError if a text is too long.
    """
    (source_tokens, target_tokens), arrays = _encode_pair(models, source, target)
    results = models.run_batches(models.jit(attend), parameters, [arrays], lambda arrays: arrays)
    ((_, weights),) = results

    # The weights without padding; they are copied so that the padding can be freed.
    S = len(source_tokens)
    T = len(target_tokens)
    decoder = None
    if "decoder" in weights:
        decoder = weights["decoder"][:, 0, :, :T, :T].copy()
    source_side, target_side = models.tokenizer.sides
    return Attention(
        source_pieces=pieces_of(source_side, source_tokens),
        target_input_pieces=pieces_of(target_side, [BOS, *target_tokens[:-1]]),
        target_output_pieces=pieces_of(target_side, target_tokens),
        encoder=weights["encoder"][:, 0, :, :S, :S].copy(),
        decoder=decoder,
        cross=weights["cross"][:, 0, :, :T, :S].copy(),
        tag_length=models.tokenizer.tag_length,
    )


def attention_compilation(
    models: DeviceModels, parameters: tuple[dict, ...], *pair: str
) -> Callable[[], object]:
    """Returns a function that compiles the program of `read_pair` for a pair.

    The parameters may be abstract.
    """
    _, arrays = _encode_pair(models, *pair)
    return functools.partial(
        models.programs.compile, models.jit(attend), parameters, *arrays, device=models.devices[0]
    )


def score_tokens(
    models: Sequence[Transformer | LanguageModel],
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
    rngs: nnx.Rngs | None = None,
) -> Float[Array, "B T"]:
    """Returns the ensemble's log-probability of each token of `target`, given the tokens before it.

    It is 0 at PAD. A language model does not read the source. With `rngs`, dropout is applied.
    """
    inputs = [source, shift_right(target)]
    if isinstance(models[0], LanguageModel):
        inputs = inputs[1:]
    log_p = ensemble.log_probabilities([model(*inputs, rngs=rngs) for model in models])
    is_padding = target == PAD
    token_log_p = jnp.take_along_axis(log_p, target[..., None], axis=2)[..., 0]
    return jnp.where(is_padding, 0.0, token_log_p)


def score_passes(
    models: Sequence[Transformer],
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
    *,
    dropout_passes: int,
) -> Float[Array, "B T N"]:
    """Returns the log-probabilities of `score_tokens` in N passes with dropout, or by N models.

    With `dropout_passes=0`, each model scores by itself. All rows of a pass have the same dropout
    masks, so that the result of a row does not depend on the other rows.
    """
    if not dropout_passes:
        return jnp.stack([score_tokens([model], source, target) for model in models], axis=-1)

    def score_row(source_row, target_row, seed):
        rngs = nnx.Rngs(dropout=jax.random.key(seed))
        return score_tokens(models, source_row[None], target_row[None], rngs)[0]  # (T,)

    def run_pass(seed):
        return jax.vmap(score_row, in_axes=(0, 0, None))(source, target, seed)  # (B, T)

    return jnp.moveaxis(jax.lax.map(run_pass, jnp.arange(dropout_passes)), 0, -1)


def encoder_states(models: Sequence[Any], source: Int[Array, "B S"]) -> Float[Array, "B S D"]:
    return models[0].encoder(source).astype(jnp.float32)


def attend(
    models: Sequence[Transformer], source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> dict[str, Float[Array, "N B H Q K"]]:
    return attention_weights(models[0], source, shift_right(target))


def shift_right(target: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns the decoder input for the output `target`: BOS, and all tokens but the last."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)


def map_rows(
    models: DeviceModels,
    function: Callable,
    parameters: Replicas,
    sides: Sequence[Sequence[Sequence[int]]],
) -> list[np.ndarray]:
    """Returns each item's row of a function of [sources] or [sources, targets].

    A row is as long as the item's last text.
    """

    def arrays_of(batch):
        return [pad([side[i] for i in batch.indices], batch.rows, batch.length) for side in sides]

    # Both sides of a batch have the same padded length.
    lengths = {i: max(map(len, item)) for i, item in enumerate(zip(*sides, strict=True))}
    batches = make_decoding_batches(
        lengths, longest_text(models.decoding_config), models.decoding_config.batch_tokens
    )
    rows: list[Any] = [None] * len(lengths)
    for batch, result in models.run_batches(function, parameters, batches, arrays_of):
        for i, row in zip(batch.indices, result, strict=False):
            rows[i] = row[: len(sides[-1][i])].copy()
    return rows


def _encode_pair(
    models: DeviceModels, source: str, target: str
) -> tuple[list[list[int]], list[np.ndarray]]:
    """Returns the tokens of both texts, and as rows of one length.

    Raises UserError if a text is too long.
    """
    tokens = [encode_text(models, 0, "source", source), encode_text(models, 1, "target", target)]

    # A batch of one row: its shape depends only on the longer text.
    (batch,) = make_decoding_batches(
        {0: max(map(len, tokens))}, longest_text(models.decoding_config), 1
    )
    return tokens, [pad([row], batch.rows, batch.length) for row in tokens]


def encode_text(models: DeviceModels, side: int, name: str, text: str) -> list[int]:
    """Returns the tokens of a source (side 0) or target (side 1), and EOS.

    Raises UserError, which has the name, if the text is too long.
    """
    tokens = encode(models.tokenizer.encoders[side], name, text)
    longest = longest_text(models.decoding_config)
    if len(tokens) > longest:
        raise UserError(
            f"{name}: has {len(tokens)} tokens including end-of-sentence, must have at most "
            f"{longest}; shorten it, or raise "
            f"decoding.max_source_length={models.decoding_config.max_source_length}"
        )
    return tokens


def longest_text(decoding_config: Config) -> int:
    """Returns the most tokens, EOS included, that a known text may have.

    It is the length of the longest output or source.
    """
    longest = decoding_config.max_source_length
    return max(longest, output_limit(longest - 1, decoding_config) + 1)


def is_scorable(models: DeviceModels, pair: Sequence[str], most: int | float = math.inf) -> bool:
    """True if both texts have at most `most` tokens, EOS included, and at most `longest_text`."""
    sides = zip(models.tokenizer.encoders, pair, strict=True)
    longest = max(len(vocabulary.encode([text])[0]) + 1 for vocabulary, text in sides)
    return longest <= min(most, longest_text(models.decoding_config))
