"""Ancestral sampling.

The random numbers depend only on decoding.seed and the numbers of line, sample and position.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.config.types import Config
from transformer.decoding.beam_search import (
    Hypotheses,
    Models,
    SearchResult,
    SourceBatch,
    length_penalty,
)
from transformer.decoding.ensemble import Caches, decode_step, forbidden_tokens
from transformer.support.special_tokens import EOS, PAD

# This temperature is greedy already. At 1e-38 all quotients would be -inf in float32.
LOWEST_TEMPERATURE = 1e-30


class SamplingState(NamedTuple):
    """The state of the loop. `position` is the step, and the length of every unfinished sample."""

    position: Int[Array, ""]
    tokens: Int[Array, "B K L"]
    token_log_p: Float[Array, "B K L"]
    done: Bool[Array, "B K"]
    caches: Caches


def sample(
    models: Models, sentences: SourceBatch, decoding_config: Config, n_best: int
) -> SearchResult:
    """Returns `n_best` samples of each row, in the order drawn, and which rows are done.

    The keys temperature, top_k, top_p and epsilon change the distribution of the samples. The
    log-probabilities and scores are those of the models.
    """
    source, limits, max_length, lines, *_ = sentences
    shape = (len(source), n_best, max_length)
    keys = sample_keys(decoding_config.seed, lines, n_best)
    forbidden = jnp.array(forbidden_tokens(decoding_config.forbid_unk))

    def advance(state):
        position = state.position
        prediction, caches = decode_step(models, state.tokens, position, state.caches)
        prediction = sentences.adjust(prediction, state.tokens, position)
        log_p = prediction.logits - prediction.log_normalizer[..., None]
        log_p = log_p.at[..., forbidden].set(-jnp.inf)

        # Each sample has its own key for each position. At its limit a sample ends.
        step_keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, position)))(keys)
        tokens = draw(step_keys, log_p, decoding_config)
        tokens = jnp.where((position < limits)[:, None], tokens, EOS)
        token_log_p = jnp.take_along_axis(log_p, tokens[..., None], axis=2)[..., 0]

        # Samples that are done get padding.
        def append(sequences, values, padding):
            return sequences.at[..., position].set(jnp.where(state.done, padding, values))

        return SamplingState(
            position=position + 1,
            tokens=append(state.tokens, tokens, PAD),
            token_log_p=append(state.token_log_p, token_log_p, 0.0),
            done=state.done | (tokens == EOS),
            caches=caches,
        )

    start = SamplingState(
        position=jnp.array(0),
        tokens=jnp.full(shape, PAD),
        token_log_p=jnp.zeros(shape),
        done=jnp.broadcast_to((limits < 0)[:, None], shape[:2]),
        caches=tuple(model.start_cache(source, n_best, max_length) for model in models),
    )
    final = jax.lax.while_loop(
        lambda state: (state.position < max_length) & ~state.done.all(), advance, start
    )
    lengths = (final.tokens != PAD).sum(axis=2)
    scores = final.token_log_p.sum(axis=2) / length_penalty(lengths, decoding_config)
    return Hypotheses(final.tokens, scores, final.token_log_p), final.done.all(axis=1)


def sample_keys(seed: int, lines: Int[Array, " B"], count: int) -> Key[Array, "B K"]:
    """Returns a key for each of `count` samples of each line."""
    fold_in = jax.vmap(jax.random.fold_in, in_axes=(None, 0))  # one key and several numbers
    line_keys = fold_in(jax.random.key(seed), lines)
    return jax.vmap(fold_in, in_axes=(0, None))(line_keys, jnp.arange(count))


def draw(
    keys: Key[Array, "B K"], log_p: Float[Array, "B K V"], decoding_config: Config
) -> Int[Array, "B K"]:
    """Draws a token for each key, from the probabilities at the temperature of `decoding_config`.

    `epsilon` excludes the tokens with a lower probability, except the most probable one. `top_k`
    then excludes all but the k most probable tokens (0: none). `top_p` then excludes all but the
    fewest most probable tokens whose probabilities sum to p.
    """
    categorical = jax.vmap(jax.vmap(jax.random.categorical))
    logits = log_p / max(decoding_config.temperature, LOWEST_TEMPERATURE)
    if decoding_config.epsilon > 0:
        lowest = jax.nn.logsumexp(logits, axis=-1) + math.log(decoding_config.epsilon)
        lowest = jnp.minimum(lowest, logits.max(axis=-1))
        logits = jnp.where(logits >= lowest[..., None], logits, -jnp.inf)
    if decoding_config.top_k == 0 and decoding_config.top_p == 1.0:
        return categorical(keys, logits)

    # The k most probable tokens, in descending order.
    vocab_size = logits.shape[-1]
    logits, tokens = jax.lax.top_k(logits, min(decoding_config.top_k or vocab_size, vocab_size))

    # A token stays if the tokens before it have not reached top_p, so the first one always stays.
    p = jax.nn.softmax(logits, axis=-1)
    p_before = jnp.cumsum(p, axis=-1) - p
    logits = jnp.where(p_before < decoding_config.top_p, logits, -jnp.inf)
    index = categorical(keys, logits)
    return jnp.take_along_axis(tokens, index[..., None], axis=2)[..., 0]
