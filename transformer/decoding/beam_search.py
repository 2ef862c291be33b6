"""Beam search (section 6.1): B sentences with K hypotheses each, in one compiled loop.

A hypothesis is the beginning y_1 ... y_t of an output for the source x. Its log-probability is the
sum of log p(y_i | y_1 ... y_i-1, x). Each step extends the live hypotheses of a sentence by one
token, and keeps the K extensions with the highest log-probability. A hypothesis ends when EOS is
among the K best continuations of its sentence, so a beam of 1 is greedy search.

The score of an ended hypothesis is log p / length penalty: see `LENGTH_PENALTIES`. The search keeps
the K ended hypotheses with the highest scores. `STOPPING_RULES` decide when a sentence is done. It
is done earlier if no live hypothesis can become one of the n_best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config, output_limit
from transformer.decoding.ensemble import (
    AutoregressiveModel,
    Caches,
    Prediction,
    decode_step,
    forbidden_tokens,
)
from transformer.decoding.top_k import gather, top_k
from transformer.support.special_tokens import EOS, PAD


class SourceBatch(NamedTuple):
    """The sentences of a batch, and the limits of their outputs.

    source: rows of tokens and EOS, padded with PAD.
    limits: the most tokens an output may have before EOS, which is then forced. Negative for a
      filler row, which gets no hypotheses.
    max_length: L, the static length of the outputs, EOS included. A row with a limit of L or more
      may be returned before it is done.
    lines: the line number of each row. Only samples depend on it.
    adjust: a function of the prediction, the tokens (B, K, L) and the number of tokens. It returns
      the prediction to search.
    search: the algorithm of `beam_search`, with the same arguments.
    """

    source: Int[Array, "B S"]
    limits: Int[Array, " B"]
    max_length: int
    lines: Any = None  # int32 (B,)
    adjust: Callable[..., Prediction] = lambda prediction, tokens, position: prediction
    search: Callable[..., Any] = lambda *arguments: BeamSearch(*arguments).run()


class Hypotheses(NamedTuple):
    """The N best hypotheses of each sentence, best first.

    Tokens end with EOS and PAD; an empty slot has score -inf.
    """

    tokens: Int[Array, "B N L"]
    scores: Float[Array, "B N"]  # log-probability / length penalty
    token_log_probabilities: Float[Array, "B N L"]  # nats, 0 at PAD


class Extensions(NamedTuple):
    """Hypotheses that are extended by one token, the most probable first."""

    log_p: Float[Array, "B N"]
    parents: Int[Array, "B N"]
    tokens: Int[Array, "B N"]
    token_log_p: Float[Array, "B N"]


Models = Sequence[AutoregressiveModel]
SearchResult = tuple[Hypotheses, Bool[Array, " B"]]  # the second: which rows are done


class SearchState(NamedTuple):
    """The state of the loop. `position` is the step, and the length of every live hypothesis."""

    position: Int[Array, ""]
    live_tokens: Int[Array, "B K L"]
    live_token_log_p: Float[Array, "B K L"]
    live_log_p: Float[Array, "B K"]
    ended: Hypotheses
    done: Bool[Array, " B"]
    caches: Caches


@dataclass(frozen=True)
class BeamSearch:
    """A search of several sentences by an ensemble, step by step.

    decoding_config: its beam_size is the number of live hypotheses, and of ended ones.
    n_best: the number of hypotheses to return, at most beam_size.
    """

    models: Models
    sentences: SourceBatch
    decoding_config: Config
    n_best: int

    @property
    def num_live(self) -> int:
        """K, the number of live hypotheses."""
        return self.decoding_config.beam_size

    def run(self) -> SearchResult:
        """Returns the `n_best` translations of each row, and which rows are done."""
        length = self.sentences.max_length
        final = jax.lax.while_loop(
            lambda state: (state.position < length) & ~state.done.all(),
            lambda state: self.step(state)[0],
            self.start(),
        )
        return jax.tree.map(lambda x: x[:, : self.n_best], final.ended), final.done

    def start(self) -> SearchState:
        """Returns the state before the first step: one live, empty hypothesis per sentence."""
        source = self.sentences.source
        length = self.sentences.max_length
        rows = source.shape[0]
        live = empty_hypotheses(rows, self.num_live, length)
        ended = empty_hypotheses(rows, self.decoding_config.beam_size, length)
        return SearchState(
            position=jnp.array(0),
            live_tokens=live.tokens,
            live_token_log_p=live.token_log_probabilities,
            live_log_p=live.scores.at[:, 0].set(0.0),
            ended=ended,
            done=self.sentences.limits < 0,
            caches=tuple(model.start_cache(source, self.num_live, length) for model in self.models),
        )

    def step(
        self, state: SearchState
    ) -> tuple[SearchState, Prediction, Bool[Array, "B K"], Float[Array, "B K"]]:
        """Extends the live hypotheses by a token, or ends them.

        Returns the next state, the prediction, which hypotheses end, and the log-probability of
        each hypothesis with EOS.
        """
        position = state.position
        limits = self.sentences.limits

        # log p of a longer hypothesis is the sum of its parent's and its last token's.
        prediction, caches = decode_step(self.models, state.live_tokens, position, state.caches)
        prediction = self.sentences.adjust(prediction, state.live_tokens, position)
        end_token_log_p = prediction.logits[..., EOS] - prediction.log_normalizer  # (B, K)
        end_log_p = state.live_log_p + end_token_log_p

        # At its limit a hypothesis can only end.
        extensions, rivals = self.extend(state, prediction)
        can_grow = (position < limits)[:, None]
        live_log_p = jnp.where(can_grow, extensions.log_p, -jnp.inf)
        rivals = jnp.where(can_grow, rivals, -jnp.inf)

        # EOS and the extensions compete for the K places of the beam. The hypotheses that end then
        # compete with those that ended before.
        ends, live_log_p = self.compete(state, end_log_p, rivals, live_log_p)
        ended = self.end(state, ends, end_log_p, end_token_log_p)

        # No live hypothesis can exceed the bound: it supposes that all further tokens are certain,
        # with the largest length penalty.
        bound = self.score(live_log_p[:, 0], limits + 1)
        current = self.score(live_log_p[:, 0], position + 1)
        prospect = STOPPING_RULES[self.decoding_config.stopping](current, bound)
        worst = ended.scores[:, -1]  # -inf if a slot is empty
        is_complete = jnp.isfinite(worst) & (prospect <= worst)

        # The next live hypotheses are their parents and the new tokens.
        def append(sequences, values):
            return gather(sequences, extensions.parents).at[..., position].set(values)

        after = SearchState(
            position=position + 1,
            live_tokens=append(state.live_tokens, extensions.tokens),
            live_token_log_p=append(state.live_token_log_p, extensions.token_log_p),
            live_log_p=live_log_p,
            ended=ended,
            done=state.done | is_complete | (bound <= ended.scores[:, self.n_best - 1]),
            caches=caches,
        )

        # A single hypothesis is always its own parent.
        if self.num_live > 1:
            caches = tuple(cache.reorder(extensions.parents) for cache in caches)
            after = after._replace(caches=caches)
        return after, prediction, ends, end_log_p

    def extend(
        self, state: SearchState, prediction: Prediction
    ) -> tuple[Extensions, Float[Array, "B _"]]:
        """Returns the next live hypotheses, and the log-probabilities that compete with EOS."""
        extensions = self.best_extensions(state, prediction, self.num_live)
        return extensions, extensions.log_p

    def best_extensions(self, state: SearchState, prediction: Prediction, count: int) -> Extensions:
        """Returns the best `count` of the K x V extensions without EOS; the first wins a tie."""
        # The best of each hypothesis. The excluded tokens may all be among the likeliest.
        excluded = (EOS, *forbidden_tokens(self.decoding_config.forbid_unk))
        per_parent = min(count + len(excluded), prediction.logits.shape[-1])
        logits, tokens = top_k(prediction.logits, per_parent)  # (B, K, per_parent)
        logits = jnp.where(jnp.isin(tokens, jnp.array(excluded)), -jnp.inf, logits)
        token_log_p = logits - prediction.log_normalizer[..., None]
        log_p = token_log_p + state.live_log_p[..., None]

        # The best of all hypotheses of a sentence together.
        flat = (log_p.shape[0], -1)  # (B, K * per_parent)
        best, index = jax.lax.top_k(log_p.reshape(flat), count)  # (B, count)
        tokens = gather(tokens.reshape(flat), index)
        token_log_p = gather(token_log_p.reshape(flat), index)
        if prediction.shortlisted is not None:
            # From indices of shortlisted tokens to ids of the vocabulary.
            tokens = jnp.take_along_axis(prediction.shortlisted, tokens, axis=1)
        return Extensions(best, index // per_parent, tokens, token_log_p)

    def compete(
        self,
        state: SearchState,
        end_log_p: Float[Array, "B K"],
        rivals: Float[Array, "B _"],
        live_log_p: Float[Array, "B K"],
    ) -> tuple[Bool[Array, "B K"], Float[Array, "B K"]]:
        """Returns which hypotheses end, and the log-probabilities of the next live hypotheses.

        A hypothesis ends if EOS is among the best `beam_size` continuations of its sentence.
        """
        continuations = jnp.concatenate([end_log_p, rivals], axis=1)
        _, best = jax.lax.top_k(continuations, self.decoding_config.beam_size)

        # The first K indices are hypotheses with EOS, and the next ones are extensions.
        slots = jnp.arange(self.num_live)[None, None]
        if self.decoding_config.shrinking_beam:
            # Each hypothesis that has ended takes a place of the beam.
            is_free = slots[0] < jnp.isneginf(state.ended.scores).sum(axis=1, keepdims=True)
            best = jnp.where(is_free, best, -1)
            stays = (best[..., None] == self.num_live + slots).any(axis=1)
            live_log_p = jnp.where(stays, live_log_p, -jnp.inf)
        ends = (best[..., None] == slots).any(axis=1) & ~state.done[:, None]
        return ends, live_log_p

    def end(
        self,
        state: SearchState,
        ends: Bool[Array, "B K"],
        end_log_p: Float[Array, "B K"],
        end_token_log_p: Float[Array, "B K"],
    ) -> Hypotheses:
        """Returns the best `beam_size` of the hypotheses that ended before and that end now."""
        position = state.position
        ending = Hypotheses(
            tokens=state.live_tokens.at[..., position].set(EOS),
            scores=self.score(jnp.where(ends, end_log_p, -jnp.inf), position + 1),
            token_log_probabilities=state.live_token_log_p.at[..., position].set(end_token_log_p),
        )
        ended = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), state.ended, ending)
        _, best = jax.lax.top_k(ended.scores, self.decoding_config.beam_size)
        return gather(ended, best)

    def score(self, log_p: Float[Array, "*B"], length: Int[Array, "*L"]) -> Float[Array, "*B"]:
        """Returns log p / length penalty. The length counts EOS."""
        return log_p / length_penalty(length, self.decoding_config)


def beam_search(
    models: Models, sentences: SourceBatch, decoding_config: Config, n_best: int
) -> SearchResult:
    """Returns the `n_best` translations of each row, and which rows are done."""
    return sentences.search(models, sentences, decoding_config, n_best)


def empty_hypotheses(rows: Any, count: int, length: int) -> Hypotheses:
    """Returns `count` empty slots for each row. The number of rows may be symbolic."""
    shape = rows, count, length
    return Hypotheses(jnp.full(shape, PAD), jnp.full(shape[:2], -jnp.inf), jnp.zeros(shape))


# Divisors of the log-probability, given the length, EOS included, and alpha. "gnmt" is equation 14
# of Wu et al. (2016). The bound of the search supposes that none decreases with the length.
LENGTH_PENALTIES = {
    "gnmt": lambda length, alpha: ((5.0 + length) / 6.0) ** alpha,
    "power": lambda length, alpha: length**alpha,
}


# A sentence with K ended hypotheses is done when the worst of them reaches this score. `current` is
# the score that the best live hypothesis has now, `bound` the best score that it can reach.
STOPPING_RULES = {
    "ended": lambda current, bound: -jnp.inf,
    "current": lambda current, bound: current,
    "bound": lambda current, bound: bound,
}


def length_penalty(
    length: int | Int[Array, "*B"], decoding_config: Config
) -> float | Float[Array, "*B"]:
    """Returns the divisor of the log-probability of outputs of this length, EOS included."""
    penalty = LENGTH_PENALTIES[decoding_config.length_penalty_form]
    return penalty(length, decoding_config.length_penalty)


def output_limits(source: Int[Array, "B S"], decoding_config: Config) -> Int[Array, " B"]:
    """Returns `SourceBatch.limits` for sources. A filler row consists of PAD, without EOS."""
    source_lengths = range(decoding_config.max_source_length)
    limits = jnp.array([output_limit(length, decoding_config) for length in source_lengths])
    lengths = (source != PAD).sum(axis=1) - 1
    return jnp.where(lengths < 0, -1, limits[lengths])
