"""Models of one stack: an encoder that predicts masked tokens, a decoder that continues text, an
encoder for CTC.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config
from transformer.model.cache import DecodingCache
from transformer.model.embedding import Embedding, TokenModel
from transformer.model.stacks import Decoder, Encoder
from transformer.model.transformer import SHARE_EMBEDDINGS
from transformer.support.special_tokens import PAD, UNK

BLANK = PAD  # the label of a frame that predicts no token


class MaskedLanguageModel(TokenModel):
    """An encoder that predicts the tokens at masked positions by the table of its embedding (Devlin
    et al. 2019).
    """

    def __init__(self, config: Config, vocab_size: int, *, rngs: nnx.Rngs):
        embedding = Embedding(vocab_size, config.d_model, dtype=config.dtype, rngs=rngs)
        self.encoder = Encoder(config, embedding, rngs=rngs)
        self.set_output(config, embedding, vocab_size, is_tied=True, rngs=rngs)

    def hidden(
        self,
        source: Int[Array, "B S"],
        source_segments: Int[Array, "B S"] | None = None,
        source_positions: Int[Array, "#B S"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B S D"]:
        """Returns the encoder's output."""
        return self.encoder(source, segments=source_segments, positions=source_positions, rngs=rngs)


class LanguageModel(TokenModel):
    """A decoder without an encoder, which maps tokens to the logits of each next token."""

    def __init__(self, config: Config, vocab_size: int, *, rngs: nnx.Rngs):
        embedding = Embedding(vocab_size, config.d_model, dtype=config.dtype, rngs=rngs)
        self.decoder = Decoder(config, embedding, cross_attention=False, rngs=rngs)
        self.set_output(config, embedding, vocab_size, is_tied=True, rngs=rngs)

    def hidden(
        self,
        target_input: Int[Array, "B T"],
        target_segments: Int[Array, "B T"] | None = None,
        target_positions: Int[Array, "#B T"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the decoder's output."""
        return self.decoder(
            target_input, segments=target_segments, positions=target_positions, rngs=rngs
        )

    def start_cache(self, prompt: Int[Array, "B S"], beams: int, length: int) -> DecodingCache:
        """Starts `beams` hypotheses for each prompt (tokens and EOS), of at most `length` tokens,
        BOS included.
        """
        return self.decoder.start_cache(None, None, len(prompt), beams, length).replace(
            prompt=prompt
        )

    def decode_step(
        self, tokens: Int[Array, "B K"], position: Int[Array, ""], cache: DecodingCache
    ) -> tuple[Float[Array, "B K V"], DecodingCache]:
        """Returns the logits of the token after `tokens`, which are at `position` (BOS: 0) of each
        hypothesis.

        While the prompt lasts, its next token is the only possible one. At an unknown token, all
        are possible.
        """
        x, cache = self.decoder.step(tokens, position, cache)
        logits = self.logits(x)
        lengths = jnp.sum(cache.prompt != PAD, axis=1) - 1
        # the last is EOS or PAD
        given = jax.lax.dynamic_index_in_dim(cache.prompt, position, axis=1, keepdims=False)
        is_free = (position >= lengths) | (given == UNK)
        is_given = jnp.arange(logits.shape[-1])[None, None] == given[:, None, None]
        logits = jnp.where(is_free[:, None, None], logits, jnp.where(is_given, 0.0, -jnp.inf))
        return logits, cache


class CtcTransformer(TokenModel):
    """An encoder that reads each source token several times, as F frames, and predicts a target
    token or BLANK at each.

    The target is what remains after repeated labels have been merged and BLANKs removed:
    connectionist temporal classification (Libovický and Helcl 2018).
    """

    def __init__(
        self, config: Config, source_vocab_size: int, target_vocab_size: int, *, rngs: nnx.Rngs
    ):
        embedding = Embedding(source_vocab_size, config.d_model, dtype=config.dtype, rngs=rngs)
        self.encoder = Encoder(config, embedding, rngs=rngs)
        is_shared, _ = SHARE_EMBEDDINGS[config.share_embeddings]
        self.set_output(config, embedding, target_vocab_size, is_shared, rngs)
        self.frames_per_token = config.ctc_frames

    def hidden(
        self, source: Int[Array, "B S"], rngs: nnx.Rngs | None = None
    ) -> Float[Array, "B F D"]:
        """Returns the encoder's output for each frame, from which the logits of its label follow."""
        return self.encoder(self.frames(source), rngs=rngs)

    def frames(self, source: Int[Array, "B S"]) -> Int[Array, "B F"]:
        """Returns the token that each frame reads."""
        return jnp.repeat(source, self.frames_per_token, axis=1)


def emits_token(labels: Int[Array, "B F"]) -> Bool[Array, "B F"]:
    """Returns which frames emit a token: those whose label is neither BLANK nor the label of the
    frame before.
    """
    before = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BLANK)
    return (labels != BLANK) & (labels != before)


def compact(values: Array, kept: Bool[Array, "B F"]) -> Array:
    """Returns the kept values of each row of (B, F), in their order, followed by zeros."""
    columns = jnp.where(kept, jnp.cumsum(kept, axis=1) - 1, values.shape[1])
    rows = jnp.arange(len(values))[:, None]
    return jnp.zeros_like(values).at[rows, columns].set(values, mode="drop")
