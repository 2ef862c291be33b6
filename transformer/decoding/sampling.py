"""Ancestral sampling.

The random numbers depend only on decoding.seed, line number, sample number and position.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.config.types import Config
from transformer.decoding import ensemble
from transformer.decoding.beam_search import (
    Hypotheses,
    Models,
    SearchResult,
    Sentences,
    length_penalty,
)
from transformer.support.special_tokens import BOS, EOS, PAD

LOWEST_TEMPERATURE = 1e-30  # is greedy already; at 1e-38 all quotients would be -inf in float32


class State(NamedTuple):
    """The state of the loop.

    `position` is the step, which is the length of every unfinished sample.
    """

    position: Int[Array, ""]
    tokens: Int[Array, "B K L"]
    token_log_p: Float[Array, "B K L"]
    done: Bool[Array, "B K"]
    caches: ensemble.Caches


def sample(models: Models, sentences: Sentences, config: Config, n_best: int) -> SearchResult:
    """Returns `n_best` samples of each row, in the order drawn, and which rows are done.

    Temperature, top_k, top_p and epsilon of `config`, the group `config.decoding`, change which
    tokens are drawn, not the log-probabilities and scores returned.
    """
    source, limits, max_length, lines, adjust = sentences
    rows, keys = len(source), sample_keys(config.seed, lines, n_best)
    forbidden = jnp.array(ensemble.forbidden_tokens(config.forbid_unk))

    def advance(state):
        previous = jnp.where(state.position == 0, BOS, state.tokens[:, :, state.position - 1])
        prediction, caches = ensemble.decode_step(models, previous, state.position, state.caches)
        prediction = adjust(prediction, state.tokens, state.position)
        log_p = (
            (prediction.logits - prediction.log_normalizer[:, :, None])
            .at[:, :, forbidden]
            .set(-jnp.inf)
        )
        step_keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, state.position)))(keys)
        drawn = draw(
            step_keys, log_p, config.temperature, config.top_k, config.top_p, config.epsilon
        )
        drawn = jnp.where((state.position < limits)[:, None], drawn, EOS)
        gained = jnp.take_along_axis(log_p, drawn[:, :, None], axis=2)[:, :, 0]
        return State(
            position=state.position + 1,
            tokens=state.tokens.at[:, :, state.position].set(jnp.where(state.done, PAD, drawn)),
            token_log_p=state.token_log_p.at[:, :, state.position].set(
                jnp.where(state.done, 0.0, gained)
            ),
            done=state.done | (drawn == EOS),
            caches=caches,
        )

    start = State(
        position=jnp.array(0),
        tokens=jnp.full((rows, n_best, max_length), PAD),
        token_log_p=jnp.zeros((rows, n_best, max_length)),
        done=jnp.broadcast_to((limits < 0)[:, None], (rows, n_best)),
        caches=tuple(model.start_cache(source, n_best, max_length) for model in models),
    )
    final = jax.lax.while_loop(
        lambda state: (state.position < max_length) & ~state.done.all(), advance, start
    )
    lengths = (final.tokens != PAD).sum(axis=2)
    scores = final.token_log_p.sum(axis=2) / length_penalty(lengths, config)
    return Hypotheses(final.tokens, scores, final.token_log_p), final.done.all(axis=1)


def sample_keys(seed: int, lines: Int[Array, "B"], count: int) -> Key[Array, "B K"]:
    """Returns a key for each of `count` samples of each line."""
    keys = jax.vmap(lambda line: jax.random.fold_in(jax.random.key(seed), line))(lines)
    return jax.vmap(lambda key: jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(count)))(
        keys
    )


def draw(
    keys: Key[Array, "B K"],
    log_p: Float[Array, "B K V"],
    temperature: float,
    top_k: int,
    top_p: float,
    epsilon: float,
) -> Int[Array, "B K"]:
    """Draws a token for each key from the `top_k` likeliest (0: all), and of these the fewest that
    sum to `top_p`.

    Tokens of a probability below `epsilon` are left out before that, except the likeliest.
    """
    logits = log_p / max(temperature, LOWEST_TEMPERATURE)
    if epsilon > 0:
        least = jnp.minimum(
            jax.nn.logsumexp(logits, axis=-1) + math.log(epsilon), logits.max(axis=-1)
        )
        logits = jnp.where(logits >= least[:, :, None], logits, -jnp.inf)
    if top_k == 0 and top_p == 1.0:
        return jax.vmap(jax.vmap(jax.random.categorical))(keys, logits)
    vocab_size = logits.shape[-1]
    likeliest, tokens = jax.lax.top_k(logits, min(top_k or vocab_size, vocab_size))
    p = jax.nn.softmax(likeliest, axis=-1)
    # A token stays if the likelier ones have not reached top_p, so the likeliest always stays.
    likeliest = jnp.where(jnp.cumsum(p, axis=-1) - p < top_p, likeliest, -jnp.inf)
    drawn = jax.vmap(jax.vmap(jax.random.categorical))(keys, likeliest)
    return jnp.take_along_axis(tokens, drawn[:, :, None], axis=2)[:, :, 0]
