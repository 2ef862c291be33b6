"""The common parts of the encoder and the decoder: embeddings and positions before the layers, a norm after them."""

from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.model.dropout import dropout
from transformer.model.embedding import Embedding
from transformer.model.layers import layer_norm
from transformer.model.positions import POSITIONS

# Functions that wrap the application of a layer, a function of (layer, x, rngs).
REMATS = {
    "none": lambda apply_layer: apply_layer,
    # The backward pass computes the layer again, with the same dropout, from its input. Nothing else of it is stored.
    "layers": nnx.remat,
}


class Stack(nnx.Module):
    """Base class of the encoder and the decoder."""

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
