"""The encoder and decoder stacks (section 3.1). Each is usable without the other."""

from typing import Any

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
from transformer.model.relative_positions import Relation
from transformer.support.special_tokens import BOS, EOS

# Functions that wrap the application of a layer, a function of (layer, relation, x, rngs).
REMATS = {
    "none": lambda apply_layer: apply_layer,
    # The backward pass computes the layer again, with the same dropout, from its input. Nothing
    # else of it is stored.
    "layers": nnx.remat,
}

# The token whose embedding the decoder replaces by zeros; None: no token's.
DECODER_STARTS = {"bos": None, "zero": BOS}


class Stack(nnx.Module):
    """Base class of the encoder and the decoder: embeddings and positions, N layers, and a norm
    after them.
    """

    is_causal, hides_eos = False, False
    zero_token: int | None = None  # see `DECODER_STARTS`

    def __init__(
        self,
        config: Config,
        embedding: Embedding,
        num_layers: int,
        *,
        rngs: nnx.Rngs,
        **layer_options: Any,
    ):
        """`layer_options` are the arguments of `Layer`."""
        self.embedding = embedding
        self.positions, relations = make_positions(
            config, num_layers, is_causal=self.is_causal, rngs=rngs
        )
        self.relations = nnx.List(relations)
        has_final_norm = (
            config.norm_position != "post" if config.final_norm is None else config.final_norm
        )
        self.final_norm = make_norm(config, rngs) if has_final_norm else None
        self.dropout, self.layer_drop = config.dropout, config.layer_drop
        self.remat = REMATS[config.remat]
        self.layers = nnx.List(
            [Layer(config, rngs=rngs, **layer_options) for _ in range(num_layers)]
        )

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        memory: Float[Array, "B S D"] | None = None,
        memory_segments: Int[Array, "B S"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        """Applies all layers.

        Without `segments`, each row is one sentence, and so is each row of the memory.
        """
        is_packed = segments is not None
        segments = self.visible_segments(tokens, segments)
        positions = jnp.arange(tokens.shape[1])[None] if positions is None else positions
        mask = Mask(segments, segments, self.is_causal, is_packed)
        memory_mask = None if memory is None else Mask(segments, memory_segments, False, is_packed)

        def apply_layer(
            layer: Layer, relation: Relation, x: jax.Array, rngs: nnx.Rngs | None
        ) -> jax.Array:
            def attend_self(x):
                return layer.self_attention(x, x, mask, rngs, relation, positions)

            def attend_memory(x):
                return layer.cross_attention(x, memory, memory_mask, rngs)

            return layer(x, attend_self, None if memory is None else attend_memory, rngs)

        x = self.embed(tokens, positions, rngs)
        for layer, relation in zip(self.layers, self.relations, strict=True):
            y = self.remat(apply_layer)(layer, relation, x, rngs)
            drops = self.layer_drop > 0.0 and rngs is not None
            x = jnp.where(is_kept((1, 1, 1), self.layer_drop, rngs), y, x) if drops else y
        return self.apply_final_norm(x)

    def visible_segments(
        self, tokens: Int[Array, "B L"], segments: Int[Array, "B L"] | None = None
    ) -> Int[Array, "B L"]:
        """Returns the segments of the tokens; an encoder without `config.source_eos` has 0 for EOS,
        as for padding.
        """
        segments = segments_of(tokens) if segments is None else segments
        return jnp.where(tokens == EOS, 0, segments) if self.hides_eos else segments

    def embed(
        self, tokens: Int[Array, "B L"], positions: Int[Array, "#B L"], rngs: nnx.Rngs | None
    ) -> Float[Array, "B L D"]:
        """Returns the sum of token embeddings and positional encodings, with dropout (section 5.4)."""
        x = self.embedding(tokens)
        if self.zero_token is not None:
            x = jnp.where((tokens == self.zero_token)[..., None], jnp.zeros((), x.dtype), x)
        if self.positions is not None:
            # In float32, since the gradient of a learned position is a sum over rows.
            x = (x + self.positions(positions)).astype(x.dtype)
        return dropout(x, self.dropout, rngs)

    def apply_final_norm(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        return x if self.final_norm is None else self.final_norm(x)


class Encoder(Stack):
    """Maps token ids to one vector per token."""

    def __init__(self, config: Config, embedding: Embedding, *, rngs: nnx.Rngs):
        super().__init__(config, embedding, config.num_layers, cross_attention=False, rngs=rngs)
        self.hides_eos = not config.source_eos


class Decoder(Stack):
    """Maps token ids, and an encoder's output if there is one, to vectors, which depend on no later
    token.
    """

    is_causal = True

    def __init__(
        self, config: Config, embedding: Embedding, *, cross_attention: bool, rngs: nnx.Rngs
    ):
        num_layers = config.num_decoder_layers or config.num_layers
        self_attention, self.self_cache = DECODER_SELF_ATTENTIONS[config.decoder_self_attention]
        options = {"self_attention": self_attention, "cross_attention": cross_attention}
        super().__init__(config, embedding, num_layers, rngs=rngs, **options)
        self.zero_token = DECODER_STARTS[config.decoder_start]

    def start_cache(
        self,
        memory: Float[Array, "B S D"] | None,
        memory_segments: Int[Array, "B S"] | None,
        rows: int,
        beams: int,
        length: int,
    ) -> DecodingCache:
        """Returns an empty cache for `beams` hypotheses in each of `rows`, of at most `length`
        tokens.
        """
        slots = jnp.full((rows, beams, length), -1)
        self_attentions = [
            self.self_cache.start(layer.self_attention, rows, beams, length)
            for layer in self.layers
        ]
        if memory is None:
            return DecodingCache(slots, tuple(self_attentions), (None,) * len(self.layers), None)
        memories = [project(layer.cross_attention, memory) for layer in self.layers]
        # Without barriers XLA changes the layout at each step, and not once.
        memories = tuple(KeyValueCache(*jax.lax.optimization_barrier(pair)) for pair in memories)
        return DecodingCache(
            slots, tuple(self_attentions), memories, (memory_segments != 0)[:, None, None, :]
        )

    def step(
        self, tokens: Int[Array, "B K"], position: Int[Array, ""], cache: DecodingCache
    ) -> tuple[Float[Array, "B K D"], DecodingCache]:
        """Processes one more token of every hypothesis, all at the same `position` (from 0).

        `tokens` is (B, K): the K beams take the length axis, so all of them attend to the same
        memory.
        """
        x = self.embed(tokens, jnp.full((1, tokens.shape[1]), position), None)
        slot_numbers = jnp.arange(tokens.shape[1])[None]  # hypothesis k has its new token in slot k
        cache = cache.replace(slots=cache.slots.at[:, :, position].set(slot_numbers))
        self_mask, self_attentions = cache.self_mask, list(cache.self_attentions)
        for i, (layer, relation, memory) in enumerate(
            zip(self.layers, self.relations, cache.memories, strict=True)
        ):

            def attend_self(x, i=i, module=layer.self_attention, relation=relation):
                out, self_attentions[i] = self_attentions[i].step(
                    module, x, position, relation, self_mask
                )
                return out

            def attend_memory(x, memory=memory, attention=layer.cross_attention):
                return memory.attend(attention, attention.project_queries(x), cache.memory_mask)

            x = layer(x, attend_self, None if memory is None else attend_memory, None)
        return self.apply_final_norm(x), cache.replace(self_attentions=tuple(self_attentions))
