"""Encoder states and attention weights of texts, with the pieces of their axes."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding import ensemble
from transformer.decoding.batches import make_batches, map_rows, pad
from transformer.decoding.parallel import DeviceQueues
from transformer.decoding.replicas import Replicas
from transformer.decoding.scoring import encode, longest_text, shift_right
from transformer.model.transformer import attention_weights
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


class Inspector:
    """Shows the encoder states and attention weights of one model."""

    def __init__(self, graph: nnx.GraphDef, tokenizer: Tokenizer, config: Config, devices: Sequence[jax.Device]):
        """`config` is the group `config.decoding`; the devices are local ones."""
        self.tokenizer, self.config, self.devices = tokenizer, config, devices
        self.source_pieces, self.target_pieces = tokenizer.source.pieces, tokenizer.target.pieces

        def encode_batch(parameters: tuple[dict], source: Int[Array, "B S"]) -> Float[Array, "B S D"]:
            (model,) = ensemble.build_models([graph], parameters)
            return model.encoder(source).astype(jnp.float32)

        def attend(
            parameters: tuple[dict], source: Int[Array, "B S"], target: Int[Array, "B T"]
        ) -> dict[str, Float[Array, "N B H Q K"]]:
            (model,) = ensemble.build_models([graph], parameters)
            return attention_weights(model, source, shift_right(target))

        self.encode_batch, self.attend = (DeviceQueues(function, devices, ()) for function in (encode_batch, attend))

    def compilation(self, abstract: tuple[dict, ...], source: str, target: str) -> Callable[[], object]:
        """Returns the function that compiles the program of `attention` for a pair. The parameters may be abstract.

        The program is traced here: `attention_weights` captures what modules return, which would disturb other threads.
        """
        _, arrays = self._arrays(source, target)
        shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in arrays]
        self.attend.lower(abstract, shapes)
        return functools.partial(self.attend.program, self.devices[0], abstract, shapes)

    def encode(self, replicas: Replicas, texts: Sequence[str]) -> list[Encoding]:
        """Returns the encoding of each text, in order. Raises UserError, with its name, if a text is too long."""
        sequences = encode(self.tokenizer.source, {f"texts[{i}]": text for i, text in enumerate(texts)}, self.config)
        rows = map_rows(self.encode_batch, replicas, [sequences], longest_text(self.config), self.config.batch_tokens)
        states = {i: row[: len(sequences[i])].copy() for i, row in rows}
        return [
            Encoding(tuple(tokens), _pieces(self.source_pieces, tokens), states[i])
            for i, tokens in enumerate(sequences)
        ]

    def attention(self, replicas: Replicas, source: str, target: str) -> Attention:
        """Returns the weights with which the model reads the pair. Raises UserError if a text is too long."""
        tokens, arrays = self._arrays(source, target)
        source_tokens, target_tokens = tokens
        lengths = {"encoder": (len(source_tokens),) * 2, "decoder": (len(target_tokens),) * 2}
        lengths["cross"] = len(target_tokens), len(source_tokens)
        ((_, found),) = self.attend.map(replicas, [arrays], lambda batch: batch)
        weights = {name: found[name][:, 0, :, :queries, :keys].copy() for name, (queries, keys) in lengths.items()}
        return Attention(
            source_pieces=_pieces(self.source_pieces, source_tokens),
            target_input_pieces=_pieces(self.target_pieces, [BOS, *target_tokens[:-1]]),
            target_output_pieces=_pieces(self.target_pieces, target_tokens),
            **weights,
        )

    def _arrays(self, source: str, target: str) -> tuple[list[list[int]], list[Int[np.ndarray, "1 L"]]]:
        """Returns the tokens of both texts, and as rows of one length. Raises UserError if a text is too long."""
        (source_tokens,) = encode(self.tokenizer.source, {"source": source}, self.config)
        (target_tokens,) = encode(self.tokenizer.target, {"target": target}, self.config)
        tokens = [source_tokens, target_tokens]
        (batch,) = make_batches({0: max(map(len, tokens))}, longest_text(self.config), 0, 1)
        return tokens, [pad([each], batch.rows, batch.length) for each in tokens]


def _pieces(pieces: Sequence[str], tokens: Sequence[int]) -> tuple[str, ...]:
    return tuple(pieces[token] for token in tokens)
