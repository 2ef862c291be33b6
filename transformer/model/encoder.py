"""The encoder (section 3.1), usable without a decoder, and the parts that the decoder has in common with it."""

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.model.dropout import dropout
from transformer.model.embedding import Embedding
from transformer.model.layers import EncoderLayer, layer_norm
from transformer.model.masks import Mask, segments_of
from transformer.model.positions import POSITIONS, positions_of

# Functions that wrap the application of a layer, a function of (layer, x, rngs).
REMATS = {
    "none": lambda apply_layer: apply_layer,
    # The backward pass computes the layer again, with the same dropout, from its input. Nothing else of it is stored.
    "layers": nnx.remat,
}


class Stack(nnx.Module):
    """Base class of the encoder and the decoder: embeddings and positions before the layers, a norm after them."""

    def __init__(self, config: Config, embedding: Embedding, *, rngs: nnx.Rngs):
        self.embedding = embedding
        self.positions = POSITIONS[config.positions](config, rngs)
        has_final_norm = config.norm_position == "pre" if config.final_norm is None else config.final_norm
        self.final_norm = layer_norm(config, rngs) if has_final_norm else None
        self.dropout_rate = config.dropout
        self.remat = REMATS[config.remat]

    def embed(
        self, tokens: Int[Array, "B L"], positions: Int[Array, "#B L"], rngs: nnx.Rngs | None
    ) -> Float[Array, "B L D"]:
        """Returns the sum of token embeddings and positional encodings, with dropout (section 5.4)."""
        x = self.embedding(tokens)
        if self.positions is not None:
            # In float32, since the gradient of a learned position is a sum over rows.
            x = (x + self.positions(positions)).astype(x.dtype)
        return dropout(x, self.dropout_rate, rngs)

    def rotary_positions(self, positions: Int[Array, "#B L"]) -> Int[Array, "#B L"] | None:
        """Returns the positions by which self-attention rotates queries and keys, or None if it does not."""
        return positions if self.positions is None else None

    def apply_final_norm(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        return x if self.final_norm is None else self.final_norm(x)


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
