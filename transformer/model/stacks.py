"""The encoder and decoder stacks (section 3.1). Each is usable without the other."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.model.cache import DECODER_SELF_ATTENTIONS, DecodingCache, KeyValueCache, project
from transformer.model.dropout import dropout, is_kept
from transformer.model.embedding import Embedding
from transformer.model.layers import Layer
from transformer.model.masks import Mask, segments_of
from transformer.model.norms import make_norm
from transformer.model.positions import make_positions
from transformer.support.special_tokens import BOS, EOS

# Functions that wrap a function of (layer, relative_positions, x, rngs), which applies a layer.
REMATS: dict[str, Callable[[Callable[..., Array]], Callable[..., Array]]] = {
    "none": lambda apply_layer: apply_layer,
    # The backward pass recomputes the layer from its input, with the same dropout. It stores
    # only the input.
    "layers": nnx.remat,
}

# The token with an embedding of zeros in the decoder, or None.
DECODER_STARTS = {"bos": None, "zero": BOS}

Cache = TypeVar("Cache", bound=DecodingCache)


class Memory(NamedTuple):
    """The output of an encoder, which a decoder attends to, and the segments of its tokens."""

    vectors: Float[Array, "B S D"]
    segments: Int[Array, "B S"]


class Stack(nnx.Module):
    """Base class of the encoder and the decoder: embeddings, positions, N layers and a norm."""

    is_causal = False
    hides_eos = False
    zero_token: int | None = None  # see `DECODER_STARTS`

    def __init__(
        self,
        model_config: Config,
        embedding: Embedding,
        num_layers: int,
        *,
        rngs: nnx.Rngs,
        **layer_options: Any,
    ):
        """`layer_options` are the arguments of `Layer`."""
        self.embedding = embedding
        # The attribute for relative positions is "relations" in checkpoints.
        self.positions, relative_positions = make_positions(
            model_config, num_layers, is_causal=self.is_causal, rngs=rngs
        )
        self.relations = nnx.List(relative_positions)

        # By default only post-norm stacks have no final norm, because their last layer ends in one.
        has_final_norm = model_config.final_norm
        if has_final_norm is None:
            has_final_norm = model_config.norm_position != "post"
        self.final_norm = make_norm(model_config, rngs) if has_final_norm else None

        self.dropout_rate = model_config.dropout
        self.final_dropout_rate = model_config.final_dropout
        self.layer_drop = model_config.layer_drop
        self.remat = REMATS[model_config.remat]
        self.layers = nnx.List(
            [Layer(model_config, rngs=rngs, **layer_options) for _ in range(num_layers)]
        )

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        memory: Memory | None = None,
        segments: Int[Array, "B T"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        """Applies all layers. Without `segments`, each row of the tokens is one sentence."""
        is_packed = segments is not None
        segments = self.visible_segments(tokens, segments)
        if positions is None:
            positions = jnp.arange(tokens.shape[1])[None]  # (1, T)

        # Decoders mask later positions (section 3.2.3); both stacks mask padding.
        mask = Mask(segments, segments, self.is_causal, is_packed)
        memory_mask = None if memory is None else Mask(segments, memory.segments, False, is_packed)

        def apply_layer(layer, relative_positions, x, rngs):
            def attend_self(x):
                return layer.self_attention(x, x, mask, rngs, relative_positions, positions)

            def attend_memory(x):
                return layer.cross_attention(x, memory.vectors, memory_mask, rngs)

            return layer(x, attend_self, None if memory is None else attend_memory, rngs)

        x = self.embed(tokens, positions, rngs)
        for layer, relative_positions in zip(self.layers, self.relations, strict=True):
            y = self.remat(apply_layer)(layer, relative_positions, x, rngs)
            # LayerDrop replaces a layer by the identity, in training (Fan et al. 2020).
            if self.layer_drop > 0.0 and rngs is not None:
                y = jnp.where(is_kept((1, 1, 1), self.layer_drop, rngs), y, x)
            x = y
        return dropout(self.apply_final_norm(x), self.final_dropout_rate, rngs)

    def visible_segments(
        self,
        tokens: Int[Array, "B L"],
        segments: Int[Array, "B L"] | None = None,
    ) -> Int[Array, "B L"]:
        """Returns the segments of the tokens.

        An encoder without `config.source_eos` has 0 for EOS, as for padding.
        """
        if segments is None:
            segments = segments_of(tokens)
        return jnp.where(tokens == EOS, 0, segments) if self.hides_eos else segments

    def embed(
        self,
        tokens: Int[Array, "B L"],
        positions: Int[Array, "#B L"],
        rngs: nnx.Rngs | None,
    ) -> Float[Array, "B L D"]:
        """Returns token embeddings plus positional encodings (3.4, 3.5), with dropout (5.4)."""
        x = self.embedding(tokens)
        if self.zero_token is not None:
            x = jnp.where((tokens == self.zero_token)[..., None], jnp.zeros((), x.dtype), x)
        if self.positions is not None:
            # In float32, because the gradient of a learned position is a sum over rows.
            x = (x + self.positions(positions)).astype(x.dtype)
        return dropout(x, self.dropout_rate, rngs)

    def apply_final_norm(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        return x if self.final_norm is None else self.final_norm(x)


class Encoder(Stack):
    """Maps token ids to one vector per token."""

    def __init__(self, model_config: Config, embedding: Embedding, *, rngs: nnx.Rngs):
        super().__init__(
            model_config, embedding, model_config.num_layers, cross_attention=False, rngs=rngs
        )
        self.hides_eos = not model_config.source_eos


class Decoder(Stack):
    """Maps token ids to one vector per token, which depends on no later token.

    With cross-attention, the vectors also depend on an encoder's output, the memory.
    """

    is_causal = True

    def __init__(
        self,
        model_config: Config,
        embedding: Embedding,
        *,
        cross_attention: bool,
        rngs: nnx.Rngs,
    ):
        self_attention, self.self_cache = DECODER_SELF_ATTENTIONS[
            model_config.decoder_self_attention
        ]
        super().__init__(
            model_config,
            embedding,
            model_config.num_decoder_layers or model_config.num_layers,
            rngs=rngs,
            self_attention=self_attention,
            cross_attention=cross_attention,
        )
        self.zero_token = DECODER_STARTS[model_config.decoder_start]

    def start_cache(
        self,
        memory: Memory | None,
        rows: int,
        beams: int,
        length: int,
    ) -> DecodingCache:
        """Returns an empty cache for `rows` times `beams` hypotheses of at most `length` tokens."""
        slots = jnp.full((rows, beams, length), -1)
        self_attentions = tuple(
            self.self_cache.start(layer.self_attention, rows, beams, length)
            for layer in self.layers
        )
        if memory is None:
            return DecodingCache(slots, self_attentions, (None,) * len(self.layers), None)

        # Without barriers XLA would change the layout of keys and values at each step, not once.
        projected = [project(layer.cross_attention, memory.vectors) for layer in self.layers]
        memories = tuple(KeyValueCache(*jax.lax.optimization_barrier(pair)) for pair in projected)
        memory_mask = (memory.segments != 0)[:, None, None, :]  # (B, 1, 1, S)
        return DecodingCache(slots, self_attentions, memories, memory_mask)

    def step(
        self,
        tokens: Int[Array, "B K"],
        position: Int[Array, ""],
        cache: Cache,
    ) -> tuple[Float[Array, "B K D"], Cache]:
        """Processes one more token of every hypothesis, all at the same `position` (from 0).

        `tokens` is (B, K): the K beams take the length axis, so all of them attend to the same
        memory.
        """
        beams = tokens.shape[1]
        x = self.embed(tokens, jnp.full((1, beams), position), None)
        # The new token of hypothesis k is in slot k.
        slots = cache.slots.at[:, :, position].set(jnp.arange(beams)[None])
        cache = dataclasses.replace(cache, slots=slots)
        self_mask = cache.self_mask
        self_attentions = []

        # A layer as in training, but its attentions read and extend the cache.
        def apply_layer(layer, relative_positions, memory, self_cache, x):
            def attend_self(x):
                out, extended_cache = self_cache.step(
                    layer.self_attention, x, position, relative_positions, self_mask
                )
                self_attentions.append(extended_cache)
                return out

            def attend_memory(x):
                queries = layer.cross_attention.project_queries(x)
                return memory.attend(layer.cross_attention, queries, cache.memory_mask)

            return layer(x, attend_self, None if memory is None else attend_memory, None)

        layers = zip(
            self.layers, self.relations, cache.memories, cache.self_attentions, strict=True
        )
        for layer_and_cache in layers:
            x = apply_layer(*layer_and_cache, x)
        cache = dataclasses.replace(cache, self_attentions=tuple(self_attentions))
        return self.apply_final_norm(x), cache
