"""Translation by connectionist temporal classification, without a decoder (Libovický and Helcl 2018)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer.config_types import Config
from transformer.model.embedding import Embedding, TokenModel, make_projection
from transformer.model.stacks import Encoder
from transformer.model.transformer import SHARE_EMBEDDINGS
from transformer.special_tokens import PAD

BLANK = PAD  # the label of a frame that predicts no token


class CtcTransformer(TokenModel):
    """An encoder that reads each source token several times, as F frames, and predicts a target token or BLANK at each.

    The target is what remains after repeated labels have been merged and BLANKs removed.
    """

    def __init__(self, config: Config, source_vocab_size: int, target_vocab_size: int, *, rngs: nnx.Rngs):
        """`config` is the group `config.model`."""
        self.output_embedding = Embedding(source_vocab_size, config.d_model, dtype=config.dtype, rngs=rngs)
        self.encoder = Encoder(config, self.output_embedding, rngs=rngs)
        is_shared = SHARE_EMBEDDINGS[config.share_embeddings].source_and_target
        self.projection = None if is_shared else make_projection(config, target_vocab_size, rngs)
        self.frames_per_token = config.ctc_frames

    def hidden(self, source: Int[Array, "B S"], rngs: nnx.Rngs | None = None) -> Float[Array, "B F D"]:
        """Returns the encoder's output for each frame, from which the logits of its label follow."""
        return self.encoder(self.frames(source), rngs=rngs)

    def frames(self, source: Int[Array, "B S"]) -> Int[Array, "B F"]:
        """Returns the token that each frame reads."""
        return jnp.repeat(source, self.frames_per_token, axis=1)


def is_kept(labels: Int[Array, "B F"]) -> Bool[Array, "B F"]:
    """Returns which frames' labels remain: neither BLANK nor that of the frame before."""
    before = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BLANK)
    return (labels != BLANK) & (labels != before)


def compact(values: Array, kept: Bool[Array, "B F"]) -> Array:
    """Returns the kept values of each row of (B, F), in their order, followed by zeros."""
    columns = jnp.where(kept, jnp.cumsum(kept, axis=1) - 1, values.shape[1])
    rows = jnp.arange(len(values))[:, None]
    return jnp.zeros_like(values).at[rows, columns].set(values, mode="drop")
