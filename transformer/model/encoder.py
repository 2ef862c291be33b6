"""The encoder (section 3.1), usable without a decoder."""

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.model.embedding import Embedding
from transformer.model.layers import EncoderLayer
from transformer.model.masks import Mask, segments_of
from transformer.model.positions import positions_of
from transformer.model.stack import Stack


class Encoder(Stack):
    """A stack of N layers that maps token ids to one vector per token."""

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
        """Without `segments`, each row is one sentence."""
        is_packed = segments is not None
        segments = segments if is_packed else segments_of(tokens)
        positions = positions_of(tokens) if positions is None else positions
        mask = Mask(segments, segments, is_causal=False, is_packed=is_packed)

        def apply_layer(layer: EncoderLayer, x: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
            return layer(x, mask, rngs, self.rotary_positions(positions))

        x = self.embed(tokens, positions, rngs)
        for layer in self.layers:
            x = self.remat(apply_layer)(layer, x, rngs)
        return self.apply_final_norm(x)
