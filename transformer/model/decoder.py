"""The decoder (section 3.1): all tokens at once for training, one token at a time for decoding."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.model.cache import DecodingCache, LayerCache
from transformer.model.embedding import Embedding
from transformer.model.encoder import Stack
from transformer.model.layers import DecoderLayer
from transformer.model.masks import Mask, segments_of
from transformer.model.positions import positions_of


class Decoder(Stack):
    """A stack of N layers that maps token ids and the encoder's output to one vector per token.

    A vector depends on no later token. Without cross-attention the stack is the body of a language model.
    """

    def __init__(self, config: Config, embedding: Embedding, *, cross_attention: bool, rngs: nnx.Rngs):
        super().__init__(config, embedding, rngs=rngs)
        layers = [
            DecoderLayer(config, cross_attention=cross_attention, rngs=rngs) for _ in range(decoder_layers(config))
        ]
        self.layers = nnx.List(layers)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        memory: Float[Array, "B S D"] | None = None,
        memory_segments: Int[Array, "B S"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        """Without `segments`, each row is one sentence, and so is each row of the memory."""
        is_packed = segments is not None
        segments = segments if is_packed else segments_of(tokens)
        positions = positions_of(tokens) if positions is None else positions
        mask = Mask(segments, segments, is_causal=True, is_packed=is_packed)
        memory_mask = None
        if memory is not None:
            memory_mask = Mask(segments, memory_segments, is_causal=False, is_packed=is_packed)

        def apply_layer(layer: DecoderLayer, x: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
            def attend_self(x):
                return layer.self_attention(x, x, mask, rngs, self.rotary_positions(positions))

            def attend_memory(x):
                return layer.cross_attention(x, memory, memory_mask, rngs)

            return layer(x, attend_self, None if memory is None else attend_memory, rngs)

        x = self.embed(tokens, positions, rngs)
        for layer in self.layers:
            x = self.remat(apply_layer)(layer, x, rngs)
        return self.apply_final_norm(x)

    def start_cache(
        self,
        memory: Float[Array, "B S D"] | None,
        memory_segments: Int[Array, "B S"] | None,
        rows: int,
        beams: int,
        length: int,
    ) -> DecodingCache:
        """Returns an empty cache for `beams` hypotheses in each of `rows`, of at most `length` tokens."""
        d_model, slots = self.embedding.table.shape[1], jnp.full((rows, beams, length), -1)
        layers = [LayerCache.start(layer, d_model, memory, rows, beams * length) for layer in self.layers]
        mask = None if memory is None else (memory_segments != 0)[:, None, None, :]
        return DecodingCache(tuple(layers), slots, mask)

    def step(
        self, tokens: Int[Array, "B K"], position: Int[Array, ""], cache: DecodingCache
    ) -> tuple[Float[Array, "B K D"], DecodingCache]:
        """Processes one more token of every hypothesis, all at the same `position` (from 0).

        `tokens` is (B, K): the K beams take the length axis, so all of them attend to the same memory.
        """
        positions = jnp.full((1, tokens.shape[1]), position)
        rotary_positions = self.rotary_positions(positions)
        x = self.embed(tokens, positions, None)
        cache = cache.take_slots(position)
        self_mask, layer_caches = cache.self_mask, list(cache.layers)
        for i, layer in enumerate(self.layers):

            def attend_self(x, i=i, attention=layer.self_attention):
                out, layer_caches[i] = layer_caches[i].attend_self(attention, x, position, rotary_positions, self_mask)
                return out

            def attend_memory(x, i=i, attention=layer.cross_attention):
                return layer_caches[i].attend_memory(attention, x, cache.memory_mask)

            x = layer(x, attend_self, None if cache.memory_mask is None else attend_memory, None)
        return self.apply_final_norm(x), cache.replace(layers=tuple(layer_caches))


def decoder_layers(config: Config) -> int:
    """Returns the number of layers of the decoder, by default that of the encoder."""
    return config.num_layers if config.num_decoder_layers is None else config.num_decoder_layers
