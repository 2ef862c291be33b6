"""Translations drawn from the model's distribution, token by token, in one compiled loop.

A sample's random numbers are a function of (decoding.seed, the line's number, the sample's number, position) alone, so
that neither the other lines nor the batch have a part in it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.decoding import ensemble
from transformer.decoding.beam_search import Hypotheses, penalty
from transformer.model.transformer import Transformer
from transformer.special_tokens import BOS, EOS, PAD


class State(NamedTuple):
    """What the loop carries. `position` is both the step and how many tokens each unfinished sample has."""

    position: Int[Array, ""]
    tokens: Int[Array, "B K L"]
    log_p: Float[Array, "B K"]
    done: Bool[Array, "B K"]
    caches: ensemble.Caches


def sample(
    models: Sequence[Transformer],
    source: Int[Array, "B S"],
    limits: Int[Array, "B"],
    keys: Key[Array, "B K"],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    length_penalty: float,
    max_length: int,
) -> tuple[Hypotheses, Bool[Array, "B"]]:
    """K samples of each row of `source` (tokens + EOS, PAD after), in the order of their keys; which rows were done.

    limits and max_length: as in `beam_search`. Log-probabilities and scores are the model's own: temperature, top_k and
    top_p change what is drawn and not what it is worth.
    """
    rows, count = keys.shape

    def advance(state: State) -> State:
        previous = jnp.where(state.position == 0, BOS, state.tokens[:, :, state.position - 1])
        log_p, caches = ensemble.decode_step(models, previous, state.position, state.caches)
        step_keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, state.position)))(keys)
        drawn = draw(step_keys, log_p, temperature, top_k, top_p)
        drawn = jnp.where((state.position < limits)[:, None], drawn, EOS)
        gained = jnp.take_along_axis(log_p, drawn[:, :, None], axis=2)[:, :, 0]
        return State(
            position=state.position + 1,
            tokens=state.tokens.at[:, :, state.position].set(jnp.where(state.done, PAD, drawn)),
            log_p=state.log_p + jnp.where(state.done, 0.0, gained),
            done=state.done | (drawn == EOS),
            caches=caches,
        )

    def unfinished(state: State) -> Bool[Array, ""]:
        return (state.position < max_length) & ~state.done.all()

    start = State(
        position=jnp.array(0),
        tokens=jnp.full((rows, count, max_length), PAD),
        log_p=jnp.zeros((rows, count)),
        done=jnp.broadcast_to((limits < 0)[:, None], (rows, count)),
        caches=ensemble.start_caches(models, source, count, max_length),
    )
    final = jax.lax.while_loop(unfinished, advance, start)
    lengths = (final.tokens != PAD).sum(axis=2)
    scores = final.log_p / penalty(lengths, length_penalty)
    return Hypotheses(final.tokens, scores, final.log_p), final.done.all(axis=1)


def sample_keys(seed: int, lines: Int[Array, "B"], count: int) -> Key[Array, "B K"]:
    """The key of each of `count` samples of each line."""
    keys = jax.vmap(lambda line: jax.random.fold_in(jax.random.key(seed), line))(lines)
    return jax.vmap(lambda key: jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(count)))(keys)


def draw(
    keys: Key[Array, "B K"], log_p: Float[Array, "B K V"], temperature: float, top_k: int, top_p: float
) -> Int[Array, "B K"]:
    """One token a row: of the `top_k` likeliest (0: all), of those the fewest that have `top_p` of the probability.

    The temperature divides the logits before all else, as is usual.
    """
    logits = log_p / temperature
    if top_k == 0 and top_p == 1.0:
        return jax.vmap(jax.vmap(jax.random.categorical))(keys, logits)
    vocab_size = logits.shape[-1]
    likeliest, tokens = jax.lax.top_k(logits, min(top_k, vocab_size) if top_k else vocab_size)
    p = jax.nn.softmax(likeliest, axis=-1)
    # A token stays if those before it do not reach top_p yet: the first always does.
    likeliest = jnp.where(jnp.cumsum(p, axis=-1) - p < top_p, likeliest, -jnp.inf)
    drawn = jax.vmap(jax.vmap(jax.random.categorical))(keys, likeliest)
    return jnp.take_along_axis(tokens, drawn[:, :, None], axis=2)[:, :, 0]
