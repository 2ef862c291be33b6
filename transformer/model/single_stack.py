"""Models of one stack: a masked language model, a language model, and an encoder for CTC."""

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config
from transformer.model.cache import DecodingCache
from transformer.model.embedding import TokenModel, make_embedding
from transformer.model.stacks import Decoder, Encoder
from transformer.model.transformer import SHARE_EMBEDDINGS
from transformer.support.special_tokens import PAD, UNK

BLANK = PAD  # the label of a frame that predicts no token


class MaskedLanguageModel(TokenModel):
    """An encoder that predicts the tokens at masked positions (Devlin et al. 2019).

    The table of its embedding is also the projection to logits.
    """

    def __init__(self, model_config: Config, vocab_size: int, *, rngs: nnx.Rngs):
        embedding = make_embedding(model_config, vocab_size, rngs)
        self.encoder = Encoder(model_config, embedding, rngs=rngs)
        self.set_output(model_config, embedding, vocab_size, is_tied=True, rngs=rngs)

    def hidden(
        self,
        source: Int[Array, "B S"],
        source_segments: Int[Array, "B S"] | None = None,
        source_positions: Int[Array, "#B S"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B S D"]:
        """Returns the encoder's output."""
        return self.encoder(source, segments=source_segments, positions=source_positions, rngs=rngs)


@struct.dataclass
class PromptedCache(DecodingCache):
    """The cache of a language model, with the prompts that its hypotheses begin with."""

    prompt: Int[Array, "B S"]


class LanguageModel(TokenModel):
    """A decoder without an encoder, which maps tokens to the logits of each next token."""

    def __init__(self, model_config: Config, vocab_size: int, *, rngs: nnx.Rngs):
        embedding = make_embedding(model_config, vocab_size, rngs)
        self.decoder = Decoder(model_config, embedding, cross_attention=False, rngs=rngs)
        self.set_output(model_config, embedding, vocab_size, is_tied=True, rngs=rngs)

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

    def start_cache(self, prompt: Int[Array, "B S"], beams: int, length: int) -> PromptedCache:
        """Returns a cache for `beams` hypotheses for each prompt (tokens and EOS).

        Hypotheses have at most `length` tokens, BOS included.
        """
        # Without an encoder there is no memory to attend to.
        cache = self.decoder.start_cache(None, len(prompt), beams, length)
        return PromptedCache(**vars(cache), prompt=prompt)

    def decode_step(
        self,
        tokens: Int[Array, "B K"],
        position: Int[Array, ""],
        cache: PromptedCache,
    ) -> tuple[Float[Array, "B K V"], PromptedCache]:
        """Returns the logits of the tokens that follow `tokens`, and the new cache.

        All hypotheses have their token at the same `position`; BOS is at 0. Before the end of the
        prompt, its next token is the only possible one. If that token is UNK, all are possible.
        """
        x, cache = self.decoder.step(tokens, position, cache)
        logits = self.logits(x)

        # The prompt ends in EOS, which does not count.
        lengths = jnp.sum(cache.prompt != PAD, axis=1) - 1  # (B,)

        # The token of the prompt, or EOS or PAD after it.
        next_token = jax.lax.dynamic_index_in_dim(cache.prompt, position, axis=1, keepdims=False)
        is_free = (position >= lengths) | (next_token == UNK)
        is_next = jnp.arange(logits.shape[-1])[None, None] == next_token[:, None, None]
        logits = jnp.where(is_free[:, None, None], logits, jnp.where(is_next, 0.0, -jnp.inf))
        return logits, cache


class CtcTransformer(TokenModel):
    """An encoder for connectionist temporal classification (Libovický and Helcl 2018).

    It reads each source token several times, as F frames in all, and predicts a target token or
    BLANK at each frame. The target is what remains after repeated labels are merged and BLANKs
    removed.
    """

    def __init__(
        self,
        model_config: Config,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        rngs: nnx.Rngs,
    ):
        embedding = make_embedding(model_config, source_vocab_size, rngs)
        self.encoder = Encoder(model_config, embedding, rngs=rngs)

        # The logits share the table of the source if all matrices are shared.
        is_tied = all(SHARE_EMBEDDINGS[model_config.share_embeddings])
        self.set_output(model_config, embedding, target_vocab_size, is_tied, rngs)
        self.frames_per_token = model_config.ctc_frames

    def hidden(
        self,
        source: Int[Array, "B S"],
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B F D"]:
        """Returns the encoder's output for each frame."""
        return self.encoder(self.frames(source), rngs=rngs)

    def frames(self, source: Int[Array, "B S"]) -> Int[Array, "B F"]:
        """Returns the token that each frame reads."""
        return jnp.repeat(source, self.frames_per_token, axis=1)


def emits_token(labels: Int[Array, "B F"]) -> Bool[Array, "B F"]:
    """Returns True for frames that emit a token.

    The label of such a frame is neither BLANK nor the label of the frame before.
    """
    before = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BLANK)
    return (labels != BLANK) & (labels != before)


def left_align(values: Array, keep: Bool[Array, "B F"]) -> Array:
    """Moves the values under `keep` to the left of each row (B, F), followed by zeros."""
    # The other values get a column after the last one, where `set` drops them.
    columns = jnp.where(keep, jnp.cumsum(keep, axis=1) - 1, values.shape[1])
    rows = jnp.arange(len(values))[:, None]
    return jnp.zeros_like(values).at[rows, columns].set(values, mode="drop")
