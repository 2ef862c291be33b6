"""Beam search (section 6.1): B sentences with K hypotheses each, in one compiled loop.

Each step extends the live hypotheses of a sentence by one token and keeps the K best extensions. A
hypothesis ends when EOS is among the K best continuations of its sentence, so a beam of 1 is greedy
search. `STOPPING_RULES` decide when a sentence is done. It is done earlier if no live hypothesis
can become one of the n_best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config, output_limit
from transformer.decoding import ensemble
from transformer.decoding.top_k import gather, top_k
from transformer.support.special_tokens import BOS, EOS, PAD


class Sentences(NamedTuple):
    """The sentences of a batch, and the limits of their outputs.

    source: rows of tokens and EOS, padded with PAD.
    limits: the most tokens an output may have before EOS, which is then forced. Negative for a
      filler row, which gets no hypotheses.
    max_length: L, the static length of the outputs, EOS included. A row with a limit of L or more
      may be returned before it is done.
    lines: the number of each row's line, which only samples depend on.
    adjust: a function of the prediction, the tokens (B, K, L) and their number that returns the
        prediction to search.
    """

    source: Int[Array, "B S"]
    limits: Int[Array, "B"]
    max_length: int
    lines: Int[Array, "B"] | None = None
    adjust: Callable[..., ensemble.Prediction] = lambda prediction, tokens, position: prediction


class Hypotheses(NamedTuple):
    """The N best hypotheses of each sentence, best first.

    Tokens end with EOS and PAD; an empty slot has score -inf.
    """

    tokens: Int[Array, "B N L"]
    scores: Float[Array, "B N"]  # log-probability / length penalty
    token_log_probabilities: Float[Array, "B N L"]  # nats, 0 at PAD


Models = Sequence[ensemble.AutoregressiveModel]
SearchResult = tuple[Hypotheses, Bool[Array, "B"]]  # and which rows are done
# Of each extension of a hypothesis: its log-probability, the parent, the last token and that
# token's log-probability.
Extensions = tuple[Float[Array, "B N"], Int[Array, "B N"], Int[Array, "B N"], Float[Array, "B N"]]


class State(NamedTuple):
    """The state of the loop.

    `position` is both the step and the length of every live hypothesis.
    """

    position: Int[Array, ""]
    live_tokens: Int[Array, "B K L"]
    live_token_log_p: Float[Array, "B K L"]
    live_log_p: Float[Array, "B K"]
    ended: Hypotheses
    done: Bool[Array, "B"]
    caches: ensemble.Caches


@dataclass(frozen=True)
class BeamSearch:
    """A search of several sentences by an ensemble, step by step.

    config: the group `config.decoding`; its beam_size is the number of live and of ended
        hypotheses.
    n_best: how many are returned, at most beam_size.
    """

    models: Models
    sentences: Sentences
    config: Config
    n_best: int

    @property
    def num_live(self) -> int:
        """K, the number of live hypotheses."""
        return self.config.beam_size

    def start(self) -> State:
        """Returns the state before the first step: a sentence has one live hypothesis, without
        tokens.
        """
        source, length = self.sentences.source, self.sentences.max_length
        rows = source.shape[0]
        live = empty_hypotheses(rows, self.num_live, length)
        ended = empty_hypotheses(rows, self.config.beam_size, length)
        return State(
            position=jnp.array(0),
            live_tokens=live.tokens,
            live_token_log_p=live.token_log_probabilities,
            live_log_p=live.scores.at[:, 0].set(0.0),
            ended=ended,
            done=self.sentences.limits < 0,
            caches=tuple(model.start_cache(source, self.num_live, length) for model in self.models),
        )

    def step(
        self, state: State
    ) -> tuple[State, ensemble.Prediction, Bool[Array, "B K"], Float[Array, "B K"]]:
        """Returns the next state, the prediction, which hypotheses end, and their log-probabilities
        with EOS.
        """
        limits, config, position = self.sentences.limits, self.config, state.position
        tokens = jnp.where(position == 0, BOS, state.live_tokens[:, :, position - 1])
        prediction, caches = ensemble.decode_step(self.models, tokens, position, state.caches)
        prediction = self.sentences.adjust(prediction, state.live_tokens, position)
        end_token_log_p = prediction.logits[:, :, EOS] - prediction.log_normalizer
        end_log_p = state.live_log_p + end_token_log_p
        (live_log_p, parents, tokens, token_log_p), rivals = self.extend(state, prediction)
        can_grow = (position < limits)[:, None]
        live_log_p = jnp.where(can_grow, live_log_p, -jnp.inf)
        rivals = jnp.where(can_grow, rivals, -jnp.inf)

        _, best = jax.lax.top_k(jnp.concatenate([end_log_p, rivals], axis=1), config.beam_size)
        slots = jnp.arange(self.num_live)[None, None]
        if config.shrinking_beam:
            is_free = slots[0] < jnp.isneginf(state.ended.scores).sum(axis=1, keepdims=True)
            best = jnp.where(is_free, best, -1)
            stays = (best[:, :, None] == self.num_live + slots).any(axis=1)
            live_log_p = jnp.where(stays, live_log_p, -jnp.inf)
        ends = (best[:, :, None] == slots).any(axis=1) & ~state.done[:, None]
        ending = Hypotheses(
            state.live_tokens.at[:, :, position].set(EOS),
            jnp.where(ends, end_log_p, -jnp.inf) / length_penalty(position + 1, config),
            state.live_token_log_p.at[:, :, position].set(end_token_log_p),
        )
        candidates = Hypotheses(
            *(jnp.concatenate(pair, axis=1) for pair in zip(state.ended, ending, strict=True))
        )
        _, best = jax.lax.top_k(candidates.scores, config.beam_size)
        ended = Hypotheses(*(gather(x, best) for x in candidates))

        # The best score a live hypothesis can reach: all further tokens certain, and the largest
        # length penalty.
        bound = live_log_p[:, 0] / length_penalty(limits + 1, config)
        prospect = STOPPING_RULES[config.stopping](
            live_log_p[:, 0] / length_penalty(position + 1, config), bound
        )
        worst = ended.scores[:, -1]
        is_complete = jnp.isfinite(worst) & (prospect <= worst)
        after = State(
            position=position + 1,
            live_tokens=gather(state.live_tokens, parents).at[:, :, position].set(tokens),
            live_token_log_p=gather(state.live_token_log_p, parents)
            .at[:, :, position]
            .set(token_log_p),
            live_log_p=live_log_p,
            ended=ended,
            done=state.done | is_complete | (bound <= ended.scores[:, self.n_best - 1]),
            caches=caches
            if self.num_live == 1
            else tuple(cache.reorder(parents) for cache in caches),
        )
        return after, prediction, ends, end_log_p

    def extend(
        self, state: State, prediction: ensemble.Prediction
    ) -> tuple[Extensions, Float[Array, "B _"]]:
        """Returns the next live hypotheses, and the log-probabilities of the extensions with which
        EOS competes.
        """
        extensions = self.best_extensions(state, prediction, self.num_live)
        return extensions, extensions[0]

    def best_extensions(
        self, state: State, prediction: ensemble.Prediction, count: int
    ) -> Extensions:
        """Returns the best `count` of the K x V extensions without EOS; the first wins a tie."""
        # which may all be among the likeliest
        excluded = (EOS, *ensemble.forbidden_tokens(self.config.forbid_unk))
        per_parent = min(count + len(excluded), prediction.logits.shape[-1])
        logits, tokens = top_k(prediction.logits, per_parent)
        logits = jnp.where(jnp.isin(tokens, jnp.array(excluded)), -jnp.inf, logits)
        token_log_p = logits - prediction.log_normalizer[:, :, None]
        values = token_log_p + state.live_log_p[:, :, None]
        best, index = jax.lax.top_k(values.reshape(values.shape[0], -1), count)
        tokens, token_log_p = (
            gather(x.reshape(x.shape[0], -1), index) for x in (tokens, token_log_p)
        )
        if prediction.candidates is not None:
            tokens = jnp.take_along_axis(prediction.candidates, tokens, axis=1)
        return best, index // per_parent, tokens, token_log_p

    def run(self) -> SearchResult:
        """Returns the `n_best` translations of each row, and which rows are done."""
        length = self.sentences.max_length
        final = jax.lax.while_loop(
            lambda state: (state.position < length) & ~state.done.all(),
            lambda state: self.step(state)[0],
            self.start(),
        )
        return Hypotheses(*(x[:, : self.n_best] for x in final.ended)), final.done


def beam_search(models: Models, sentences: Sentences, config: Config, n_best: int) -> SearchResult:
    """Returns the `n_best` translations of each row, and which rows are done."""
    return BeamSearch(models, sentences, config, n_best).run()


def empty_hypotheses(rows: Any, count: int, length: int) -> Hypotheses:
    """Returns `count` empty slots for each row. The number of rows may be symbolic."""
    shape = rows, count, length
    return Hypotheses(jnp.full(shape, PAD), jnp.full(shape[:2], -jnp.inf), jnp.zeros(shape))


# Functions of a length, EOS included, and alpha that divide log-probabilities: Wu et al. 2016,
# equation 14, and a plain power. None decreases with the length, as the bound of the search
# supposes.
LENGTH_PENALTIES = {
    "gnmt": lambda length, alpha: ((5.0 + length) / 6.0) ** alpha,
    "power": lambda length, alpha: length**alpha,
}


# A sentence with K ended hypotheses is done when the worst of them is at least as good as this
# score of the best live one, a function of its present score and of the best that it can reach.
STOPPING_RULES = {
    "ended": lambda present, bound: -jnp.inf,
    "current": lambda present, bound: present,
    "bound": lambda present, bound: bound,
}


def length_penalty(length: int | Int[Array, "*B"], config: Config) -> float | Float[Array, "*B"]:
    """Returns the divisor of the log-probability of outputs of this length, EOS included."""
    return LENGTH_PENALTIES[config.length_penalty_form](length, config.length_penalty)


def output_limits(source: Int[Array, "B S"], config: Config) -> Int[Array, "B"]:
    """Returns `Sentences.limits` for sources; a filler row has not even EOS."""
    limits = jnp.array([output_limit(tokens, config) for tokens in range(config.max_source_length)])
    lengths = (source != PAD).sum(axis=1) - 1
    return jnp.where(lengths < 0, -1, limits[lengths])
