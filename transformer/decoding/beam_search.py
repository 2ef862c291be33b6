"""Beam search (section 6.1): B sentences with K hypotheses each, in one compiled loop.

A step extends every live hypothesis by its best tokens; of the extensions the K best of a sentence live on.
A hypothesis ends when end-of-sentence is among the K best continuations of its sentence, so a beam of 1 is greedy.
A sentence is done when K hypotheses have ended, or sooner when no live one can get among the best that were asked for.
Where the score counts length, it is that of the output with its end-of-sentence.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.decoding import ensemble
from transformer.model.transformer import Transformer
from transformer.special_tokens import BOS, EOS, PAD


class Hypotheses(NamedTuple):
    """The N best of each sentence, best first; a slot without a hypothesis has score -inf.

    tokens: output with EOS, PAD after. scores: log-probability over length penalty. log_probabilities: in nats.
    """

    tokens: Int[Array, "B N L"]
    scores: Float[Array, "B N"]
    log_probabilities: Float[Array, "B N"]


class State(NamedTuple):
    """What the loop carries. `position` is both the step and how many tokens each live hypothesis has."""

    position: Int[Array, ""]
    live_tokens: Int[Array, "B K L"]
    live_log_p: Float[Array, "B K"]
    ended: Hypotheses
    done: Bool[Array, "B"]
    caches: ensemble.Caches


def beam_search(
    models: Sequence[Transformer],
    source: Int[Array, "B S"],
    limits: Int[Array, "B"],
    *,
    beam_size: int,
    n_best: int,
    length_penalty: float,
    max_length: int,
) -> tuple[Hypotheses, Bool[Array, "B"]]:
    """The `n_best` translations of each row of `source` (tokens + EOS, PAD after), and which rows were done.

    limits: how many tokens a row's output may have before its EOS; a hypothesis that gets there is ended by force.
    Negative: the row is a filler, and comes back empty. max_length: the static bound L, EOS included; a row whose limit
    is not below it may come back before it is done. n_best is at most beam_size, length_penalty (alpha) at least 0.
    """

    def advance(state: State) -> State:
        tokens = jnp.where(state.position == 0, BOS, state.live_tokens[:, :, state.position - 1])
        log_p, caches = ensemble.decode_step(models, tokens, state.position, state.caches)
        end_log_p = state.live_log_p + log_p[:, :, EOS]
        live_log_p, parents, tokens = best_extensions(state.live_log_p, log_p, beam_size)
        live_log_p = jnp.where((state.position < limits)[:, None], live_log_p, -jnp.inf)

        _, best = jax.lax.top_k(jnp.concatenate([end_log_p, live_log_p], axis=1), beam_size)
        ends = (best[:, :, None] == jnp.arange(beam_size)[None, None]).any(axis=1) & ~state.done[:, None]
        ended = keep_best(
            state.ended,
            state.live_tokens.at[:, :, state.position].set(EOS),
            jnp.where(ends, end_log_p, -jnp.inf),
            penalty(state.position + 1, length_penalty),
        )
        # A live hypothesis scores best if all that follows is certain and as long as it may be.
        bound = live_log_p[:, 0] / penalty(limits + 1, length_penalty)
        full = jnp.isfinite(ended.scores[:, -1])
        return State(
            position=state.position + 1,
            live_tokens=gather(state.live_tokens, parents).at[:, :, state.position].set(tokens),
            live_log_p=live_log_p,
            ended=ended,
            done=state.done | full | (bound <= ended.scores[:, n_best - 1]),
            caches=caches if beam_size == 1 else ensemble.reorder(caches, parents),
        )

    def unfinished(state: State) -> Bool[Array, ""]:
        return (state.position < max_length) & ~state.done.all()

    final = jax.lax.while_loop(unfinished, advance, start(models, source, limits, beam_size, max_length))
    return Hypotheses(*(x[:, :n_best] for x in final.ended)), final.done


def start(
    models: Sequence[Transformer], source: Int[Array, "B S"], limits: Int[Array, "B"], beams: int, length: int
) -> State:
    """One empty live hypothesis a sentence; the other slots hold nothing until it has extensions."""
    rows = source.shape[0]
    tokens = jnp.full((rows, beams, length), PAD)
    nothing = jnp.full((rows, beams), -jnp.inf)
    return State(
        position=jnp.array(0),
        live_tokens=tokens,
        live_log_p=nothing.at[:, 0].set(0.0),
        ended=Hypotheses(tokens, nothing, nothing),
        done=limits < 0,
        caches=ensemble.start_caches(models, source, beams, length),
    )


def best_extensions(
    live_log_p: Float[Array, "B K"], log_p: Float[Array, "B K V"], count: int
) -> tuple[Float[Array, "B count"], Int[Array, "B count"], Int[Array, "B count"]]:
    """The best of K x V extensions other than EOS: log-probability, hypothesis extended, token. Ties: the first one."""
    vocabulary = jnp.arange(log_p.shape[-1])[None, None]
    each = min(count, log_p.shape[-1])
    values, tokens = jax.lax.top_k(jnp.where(vocabulary == EOS, -jnp.inf, log_p), each)
    values = values + live_log_p[:, :, None]
    best, index = jax.lax.top_k(values.reshape(values.shape[0], -1), count)
    return best, index // each, gather(tokens.reshape(tokens.shape[0], -1), index)


def keep_best(
    ended: Hypotheses,
    tokens: Int[Array, "B K L"],
    log_p: Float[Array, "B K"],
    divisor: Float[Array, ""],
) -> Hypotheses:
    """The K best of those ended before and those ending now (log-probability -inf: not ending)."""
    both = Hypotheses(
        jnp.concatenate([ended.tokens, tokens], axis=1),
        jnp.concatenate([ended.scores, log_p / divisor], axis=1),
        jnp.concatenate([ended.log_probabilities, log_p], axis=1),
    )
    _, best = jax.lax.top_k(both.scores, log_p.shape[1])
    return Hypotheses(*(gather(x, best) for x in both))


def penalty(length: Int[Array, "*B"], alpha: float) -> Float[Array, "*B"]:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14)."""
    return ((5.0 + length.astype(jnp.float32)) / 6.0) ** alpha


def gather(x: Array, index: Int[Array, "B N"]) -> Array:
    """x[b, index[b, n]] for every b and n."""
    return jax.vmap(lambda row, i: row[i])(x, index)
