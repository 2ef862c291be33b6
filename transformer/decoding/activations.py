"""Encoder states and attention weights of texts, with the pieces of their axes."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.decoding.batches import DeviceModels, make_batches, pad
from transformer.decoding.replicas import Replicas
from transformer.decoding.scoring import encode_known, longest_text, map_rows, shift_right
from transformer.model.transformer import Transformer, attention_weights
from transformer.special_tokens import BOS


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoder's output for a text: one state for each token, EOS included.

    tokens: S ids. pieces: S strings. states: (S, D), float32.
    """

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    states: Float[np.ndarray, "S D"]


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention weights of a model that reads a source and a target, with the pieces of all axes.

    The weights are float32 arrays (layers, heads, query, key); those of a query sum to 1. Axes of length S belong to
    `source_pieces`. Axes of length T belong to the decoder's positions: position t reads `target_input_pieces[t]`, of
    which the first is BOS, and predicts `target_output_pieces[t]`, of which the last is EOS.

    encoder: (N, H, S, S). decoder: (N, H, T, T), 0 for later keys. cross: (N, H, T, S).
    """

    source_pieces: tuple[str, ...]
    target_input_pieces: tuple[str, ...]
    target_output_pieces: tuple[str, ...]
    encoder: Float[np.ndarray, "N H S S"]
    decoder: Float[np.ndarray, "M H T T"]
    cross: Float[np.ndarray, "M H T S"]

    def bertviz(self) -> dict[str, list]:
        """Returns the arguments of BertViz's `model_view` and `head_view` (Vig 2019), with NumPy arrays.

        BertViz takes tensors of PyTorch, as `torch.from_numpy` makes them of the arrays.

        Returns:
          "encoder_attention", "decoder_attention" and "cross_attention": an array (1, H, queries, keys) for each layer.
          "encoder_tokens": the S pieces of the source. "decoder_tokens": the T pieces that the decoder reads.
        """
        parts = {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}
        weights = {f"{name}_attention": [layer[None] for layer in layers] for name, layers in parts.items()}
        tokens = {"encoder_tokens": list(self.source_pieces), "decoder_tokens": list(self.target_input_pieces)}
        return weights | tokens


def encode_texts(models: DeviceModels, parameters: Replicas, texts: Sequence[str]) -> list[Encoding]:
    """Returns the encoding of each text by the one model. Raises UserError, with its name, if a text is too long."""
    names = {f"texts[{i}]": text for i, text in enumerate(texts)}
    sequences = encode_known(models.tokenizer.source, names, models.config)
    rows = map_rows(models, models.jit(encoder_states), parameters, [sequences])
    states = {i: row[: len(sequences[i])].copy() for i, row in rows}
    return [
        Encoding(tuple(tokens), tuple(models.source_pieces[token] for token in tokens), states[i])
        for i, tokens in enumerate(sequences)
    ]


def read_pair(models: DeviceModels, parameters: Replicas, source: str, target: str) -> Attention:
    """Returns the weights with which the one model reads the pair. Raises UserError if a text is too long."""
    (source_tokens, target_tokens), arrays = _encode_pair(models, source, target)
    ((_, weights),) = models.map(models.jit(attend), parameters, [arrays], lambda arrays: arrays)
    S, T = len(source_tokens), len(target_tokens)
    return Attention(
        source_pieces=tuple(models.source_pieces[token] for token in source_tokens),
        target_input_pieces=tuple(models.target_pieces[token] for token in (BOS, *target_tokens[:-1])),
        target_output_pieces=tuple(models.target_pieces[token] for token in target_tokens),
        encoder=weights["encoder"][:, 0, :, :S, :S].copy(),
        decoder=weights["decoder"][:, 0, :, :T, :T].copy(),
        cross=weights["cross"][:, 0, :, :T, :S].copy(),
    )


def attention_compilation(
    models: DeviceModels, parameters: tuple[dict, ...], source: str, target: str
) -> Callable[[], object]:
    """Returns a function that compiles the program of `read_pair` for a pair. The parameters may be abstract.

    The program is traced here: `attention_weights` captures what modules return, which would disturb other threads.
    """
    arguments = models.jit(attend), parameters, *_encode_pair(models, source, target)[1]
    models.programs.lower(*arguments)
    return functools.partial(models.programs.compile, *arguments, device=models.devices[0])


def encoder_states(models: Sequence[nnx.Module], source: Int[Array, "B S"]) -> Float[Array, "B S D"]:
    (model,) = models
    return model.encoder(source).astype(jnp.float32)


def attend(
    models: Sequence[Transformer], source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> dict[str, Float[Array, "N B H Q K"]]:
    (model,) = models
    return attention_weights(model, source, shift_right(target))


def _encode_pair(
    models: DeviceModels, source: str, target: str
) -> tuple[list[list[int]], list[Int[np.ndarray, "1 L"]]]:
    """Returns the tokens of both texts, and as rows of one length. Raises UserError if a text is too long."""
    (source_tokens,) = encode_known(models.tokenizer.source, {"source": source}, models.config)
    (target_tokens,) = encode_known(models.tokenizer.target, {"target": target}, models.config)
    tokens = [source_tokens, target_tokens]
    (batch,) = make_batches({0: max(map(len, tokens))}, longest_text(models.config), 0, 1)
    return tokens, [pad([row], batch.rows, batch.length) for row in tokens]
