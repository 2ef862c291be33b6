"""Encoder and decoder layers (section 3.1): sub-layers, each with a residual connection and a norm."""

from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.model.attention import MultiHeadAttention
from transformer.model.dropout import dropout
from transformer.model.feed_forward import FeedForward
from transformer.model.kernels import materialize
from transformer.model.layer_norm import LayerNorm
from transformer.model.masks import Mask


class SublayerConnection(nnx.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), as published, or with pre-norm x + Dropout(Sublayer(LayerNorm(x)))."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.norm = layer_norm(config, rngs)
        self.connect = NORM_POSITIONS[config.norm_position]
        self.dropout_rate = config.dropout

    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
        rngs: nnx.Rngs | None,
    ) -> Float[Array, "B T D"]:
        return self.connect(x, lambda x: dropout(sublayer(x), self.dropout_rate, rngs), self.norm)


NORM_POSITIONS = {
    "post": lambda x, sublayer, norm: norm(materialize(x + sublayer(x))),
    "pre": lambda x, sublayer, norm: materialize(x + sublayer(norm(x))),
}


class EncoderLayer(nnx.Module):
    """Self-attention, then a feed-forward network (Figure 1, left)."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.self_attention = MultiHeadAttention(config, rngs=rngs)
        self.self_attention_connection = SublayerConnection(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.feed_forward_connection = SublayerConnection(config, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Mask,
        rngs: nnx.Rngs | None,
        positions: Int[Array, "#B S"] | None,
    ) -> Float[Array, "B S D"]:
        x = self.self_attention_connection(x, lambda x: self.self_attention(x, x, mask, rngs, positions), rngs)
        return self.feed_forward_connection(x, lambda x: self.feed_forward(x, rngs), rngs)


class DecoderLayer(nnx.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward network (Figure 1, right).

    A decoder-only language model has no `cross_attention`.
    """

    def __init__(self, config: Config, *, cross_attention: bool, rngs: nnx.Rngs):
        self.self_attention = MultiHeadAttention(config, rngs=rngs)
        self.self_attention_connection = SublayerConnection(config, rngs=rngs)
        self.cross_attention = MultiHeadAttention(config, rngs=rngs) if cross_attention else None
        self.cross_attention_connection = SublayerConnection(config, rngs=rngs) if cross_attention else None
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.feed_forward_connection = SublayerConnection(config, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        attend_self: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
        attend_memory: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]] | None,
        rngs: nnx.Rngs | None,
    ) -> Float[Array, "B T D"]:
        """Applies the sub-layers. The two functions attend with keys and values of x and the memory, or of a cache."""
        x = self.self_attention_connection(x, attend_self, rngs)
        if attend_memory is not None:
            x = self.cross_attention_connection(x, attend_memory, rngs)
        return self.feed_forward_connection(x, lambda x: self.feed_forward(x, rngs), rngs)


def layer_norm(config: Config, rngs: nnx.Rngs) -> LayerNorm:
    """Returns layer normalization over D, computed in float32 for every dtype of the products."""
    return LayerNorm(
        config.d_model,
        epsilon=config.layer_norm_epsilon,
        dtype=config.dtype,
        rngs=rngs,
    )
