"""The encoder and the decoder (section 3.1): embeddings, positions, N layers. Each is usable alone."""

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config_types import Config
from transformer.model.dropout import dropout
from transformer.model.embedding import Embedding
from transformer.model.layers import DecoderLayer, EncoderLayer, layer_norm
from transformer.model.masks import attention_mask, segments_of
from transformer.model.positions import make_positions, positions_of


class Stack(nnx.Module):
    """What both stacks have in common: the sum of embedding and position on the way in, the norm on the way out.

    Rotary positions are not in the sum: each layer's self-attention is told of them.
    """

    def __init__(self, config: Config, embedding: Embedding, *, rngs: nnx.Rngs):
        self.embedding = embedding
        self.positions = make_positions(
            config.positions, d_model=config.d_model, max_positions=config.max_positions, rngs=rngs
        )
        has_final_norm = config.norm_position == "pre" if config.final_norm is None else config.final_norm
        self.final_norm = layer_norm(config, rngs) if has_final_norm else None
        self.dropout_rate = config.dropout

    def embed(
        self, tokens: Int[Array, "B L"], positions: Int[Array, "#B L"], rngs: nnx.Rngs | None
    ) -> Float[Array, "B L D"]:
        x = self.embedding(tokens)
        if self.positions is not None:
            # In float32, since the gradient of a learned position is a sum over rows.
            x = (x + self.positions(positions)).astype(x.dtype)
        return dropout(x, self.dropout_rate, rngs)

    def rotary_positions(self, positions: Int[Array, "#B L"]) -> Int[Array, "#B L"] | None:
        """What self-attention is told of positions: nothing if they were added to the embeddings."""
        return positions if self.positions is None else None

    def finish(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        return x if self.final_norm is None else self.final_norm(x)


class Encoder(Stack):
    """Token ids to one vector a token."""

    def __init__(self, config: Config, embedding: Embedding, *, rngs: nnx.Rngs):
        super().__init__(config, embedding, rngs=rngs)
        self.layers = nnx.List([EncoderLayer(config, rngs=rngs) for _ in range(config.num_layers)])

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        positions: Int[Array, "#B S"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B S D"]:
        segments = segments_of(tokens) if segments is None else segments
        positions = positions_of(tokens) if positions is None else positions
        mask = attention_mask(segments, segments, causal=False)
        x = self.embed(tokens, positions, rngs)
        for layer in self.layers:
            x = layer(x, mask, rngs, self.rotary_positions(positions))
        return self.finish(x)


@struct.dataclass
class DecodingCache:
    """Keys and values of what was read and written so far, a tuple entry a layer. K hypotheses ("beams") a sentence.

    Self-attention's grow by a position a step; those of the encoder's output are shared by a sentence's hypotheses.
    """

    self_keys: tuple[Float[Array, "B K L H dk"], ...]
    self_values: tuple[Float[Array, "B K L H dv"], ...]
    memory_keys: tuple[Float[Array, "B S H dk"], ...]
    memory_values: tuple[Float[Array, "B S H dv"], ...]
    memory_mask: Bool[Array, "B 1 1 S"]

    def reorder(self, parents: Int[Array, "B K"]) -> "DecodingCache":
        """The cache in which hypothesis k of a sentence goes on from what was hypothesis parents[k]."""

        def gather(x: Array) -> Array:
            return jax.vmap(lambda rows, index: rows[index])(x, parents)

        return self.replace(
            self_keys=tuple(map(gather, self.self_keys)), self_values=tuple(map(gather, self.self_values))
        )


class Decoder(Stack):
    """Token ids, and the encoder's output, to one vector a token that has seen no later token.

    Without cross-attention it is the body of a language model.
    """

    def __init__(self, config: Config, embedding: Embedding, *, cross_attention: bool, rngs: nnx.Rngs):
        super().__init__(config, embedding, rngs=rngs)
        count = config.num_layers if config.num_decoder_layers is None else config.num_decoder_layers
        self.layers = nnx.List([DecoderLayer(config, cross_attention=cross_attention, rngs=rngs) for _ in range(count)])

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        memory: Float[Array, "B S D"] | None = None,
        memory_segments: Int[Array, "B S"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        """`segments` None: a sentence a row. The first token, BOS, is never padding, so only later padding counts."""
        segments = segments_of(tokens) if segments is None else segments
        positions = positions_of(tokens) if positions is None else positions
        mask = attention_mask(segments, segments, causal=True)
        memory_mask = None if memory is None else attention_mask(segments, memory_segments, causal=False)
        x = self.embed(tokens, positions, rngs)
        for layer in self.layers:

            def attend_self(x, layer=layer):
                return layer.self_attention(x, x, mask, rngs, self.rotary_positions(positions))

            def attend_memory(x, layer=layer):
                return layer.cross_attention(x, memory, memory_mask, rngs)

            x = layer(x, attend_self, None if memory is None else attend_memory, rngs)
        return self.finish(x)

    def start_cache(
        self, memory: Float[Array, "B S D"], memory_segments: Int[Array, "B S"], beams: int, length: int
    ) -> DecodingCache:
        """An empty cache for `beams` hypotheses a sentence of at most `length` tokens; reads the memory once."""
        keys_values = [layer.cross_attention.project_keys_values(memory) for layer in self.layers]
        shape = (memory.shape[0], beams, length)
        return DecodingCache(
            self_keys=tuple(jnp.zeros((*shape, *keys.shape[2:]), keys.dtype) for keys, _ in keys_values),
            self_values=tuple(jnp.zeros((*shape, *values.shape[2:]), values.dtype) for _, values in keys_values),
            memory_keys=tuple(keys for keys, _ in keys_values),
            memory_values=tuple(values for _, values in keys_values),
            memory_mask=(memory_segments != 0)[:, None, None, :],
        )

    def step(
        self, tokens: Int[Array, "B K"], position: Int[Array, ""], cache: DecodingCache
    ) -> tuple[Float[Array, "B K D"], DecodingCache]:
        """Reads one more token of every hypothesis, at `position` (from 0) of each.

        A sentence's hypotheses stand where a row's positions do elsewhere: they share its memory.
        """
        batch, beams = tokens.shape
        length = cache.self_keys[0].shape[2]
        past = (jnp.arange(length) <= position)[None, None, None]
        positions = jnp.full((1, beams), position)
        x = self.embed(tokens, positions, None)
        told = self.rotary_positions(positions[:, :1])
        self_keys, self_values = list(cache.self_keys), list(cache.self_values)
        for i, layer in enumerate(self.layers):

            def attend_self(x, i=i, layer=layer):
                rows = x.reshape(batch * beams, 1, -1)
                keys, values = layer.self_attention.project_keys_values(rows, told)
                self_keys[i] = write(self_keys[i], keys, position)
                self_values[i] = write(self_values[i], values, position)
                out = layer.self_attention.attend(
                    layer.self_attention.project_queries(rows, told),
                    self_keys[i].reshape(batch * beams, *self_keys[i].shape[2:]),
                    self_values[i].reshape(batch * beams, *self_values[i].shape[2:]),
                    past,
                )
                return out.reshape(batch, beams, -1)

            def attend_memory(x, i=i, layer=layer):
                attention = layer.cross_attention
                queries = attention.project_queries(x)
                return attention.attend(queries, cache.memory_keys[i], cache.memory_values[i], cache.memory_mask)

            x = layer(x, attend_self, attend_memory, None)
        cache = cache.replace(self_keys=tuple(self_keys), self_values=tuple(self_values))
        return self.finish(x), cache


def write(
    cache: Float[Array, "B K L H d"], entry: Float[Array, "BK 1 H d"], position: Int[Array, ""]
) -> Float[Array, "B K L H d"]:
    """The cache with the entry of each hypothesis at `position`."""
    entry = entry.reshape(*cache.shape[:2], *entry.shape[1:])
    return jax.lax.dynamic_update_slice_in_dim(cache, entry, position, axis=2)
