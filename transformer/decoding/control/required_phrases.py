"""Beam search for outputs that have given phrases, by dynamic beam allocation (Post and Vilar
2018).

A required phrase has alternatives, of which an output needs one. The hypotheses that need equally
many more tokens for their phrases form a bank. The beam takes the best of each bank in turn, so
those that follow a phrase survive. EOS competes within the bank of the hypotheses that need no more
tokens.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config, with_changes
from transformer.decoding import ensemble
from transformer.decoding.beam_search import (
    BeamSearch,
    Extensions,
    Models,
    SearchResult,
    Sentences,
    State,
)
from transformer.decoding.control.constraints import measure_progress, phrase_tokens
from transformer.decoding.top_k import gather, top_k
from transformer.support.special_tokens import EOS, PAD

PHRASE_TOKENS = 8  # of its phrases by which each hypothesis is extended, at most
UNLIKELY = 1e4  # more nats than any token costs
MAX_BANKS = 8  # for which the beam has a place besides the beam_size ones, at most


@dataclass(frozen=True)
class PhraseSearch(BeamSearch):
    """A search for outputs with C phrases of A alternatives; PAD fills up tokens, alternatives and
    phrases.

    A sentence has the beam_size hypotheses of a plain search and one for each token of its phrases,
    at most `MAX_BANKS` of these. edges: `Spelling.edges`.
    """

    phrases: Int[Array, "B C A M"]
    edges: Bool[Array, "V 2"]

    @property
    def num_live(self) -> int:
        _, count, _, length = self.phrases.shape
        return self.config.beam_size + min(count * length, MAX_BANKS)

    def extend(
        self, state: State, prediction: ensemble.Prediction
    ) -> tuple[Extensions, Float[Array, "B _"]]:
        """Returns the best extensions of each bank in turn, the likeliest first, and those that
        need no more tokens.
        """
        log_p, tokens, token_log_p, banks = self.candidates(state, prediction)
        turns = rank_in_groups(banks, log_p)
        turns = jnp.where(jnp.isneginf(log_p), log_p.shape[1], turns)
        chosen = jnp.lexsort((-log_p, turns), axis=1)[:, : self.num_live]
        # Padding does not change the number of live hypotheses of a row, at most `num_live`.
        slots = jnp.arange(self.num_live)[None]
        sizes = (self.phrases != PAD).sum(axis=3).max(axis=2).sum(axis=1)
        is_kept = slots < self.config.beam_size + jnp.minimum(sizes, MAX_BANKS)[:, None]
        chosen_log_p = jnp.where(is_kept, gather(log_p, chosen), -jnp.inf)
        order = jnp.argsort(-chosen_log_p, axis=1, stable=True)
        chosen = gather(chosen, order)
        parents = chosen // (log_p.shape[1] // self.num_live)
        extensions = (
            gather(chosen_log_p, order),
            parents,
            gather(tokens, chosen),
            gather(token_log_p, chosen),
        )
        return extensions, jnp.where(banks == 0, log_p, -jnp.inf)

    def candidates(self, state: State, prediction: ensemble.Prediction) -> list[Array]:
        """Returns the extensions by the likeliest tokens of each hypothesis, and by tokens that its
        phrases need.

        They are arrays of shape (B, K * N): log-probabilities, tokens, log-probabilities of these,
        and how many more tokens the extended hypothesis needs for its phrases.
        """
        excluded = (EOS, *ensemble.forbidden_tokens(self.config.forbid_unk))
        logits = prediction.logits.at[:, :, jnp.array(excluded)].set(-jnp.inf)
        likely_logits, likely = top_k(logits, min(self.config.beam_size, logits.shape[-1]))
        progress = measure_progress(state.live_tokens, state.position, self.phrases, self.edges)
        likely_banks = progress.needed_after(likely)

        wanted = phrase_tokens(self.phrases, self.num_live)
        banks = progress.needed_after(wanted)
        is_first = jnp.tril(wanted[:, :1, :, None] == wanted[:, :1, None], -1).sum(axis=3) == 0
        is_new = is_first & (wanted[:, :, :, None] != likely[:, :, None]).all(axis=3)
        wanted_logits = jnp.where(is_new, jnp.take_along_axis(logits, wanted, axis=2), -jnp.inf)
        # Those after which a hypothesis needs the fewest tokens, the likeliest first.
        log_p = wanted_logits - prediction.log_normalizer[:, :, None]
        _, best = jax.lax.top_k(log_p - UNLIKELY * banks, min(PHRASE_TOKENS, wanted.shape[2]))
        wanted, wanted_logits, banks = (
            jnp.take_along_axis(x, best, axis=2) for x in (wanted, wanted_logits, banks)
        )

        tokens = jnp.concatenate([likely, wanted], axis=2)
        banks = jnp.concatenate([likely_banks, banks], axis=2)
        token_log_p = (
            jnp.concatenate([likely_logits, wanted_logits], axis=2)
            - prediction.log_normalizer[:, :, None]
        )
        log_p = token_log_p + state.live_log_p[:, :, None]
        return [x.reshape(len(x), -1) for x in (log_p, tokens, token_log_p, banks)]


def rank_in_groups(groups: Int[Array, "B N"], values: Float[Array, "B N"]) -> Int[Array, "B N"]:
    """Returns the rank of each value among those of its group, 0 for the largest; the first wins a
    tie.
    """
    order = jnp.lexsort((-values, groups), axis=1)
    ordered = gather(groups, order)
    places = jnp.broadcast_to(jnp.arange(groups.shape[1]), groups.shape)
    begins = ordered != jnp.roll(ordered, 1, axis=1)
    first = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
    return jax.vmap(lambda at, ranks: jnp.zeros_like(ranks).at[at].set(ranks))(
        order, places - first
    )


def search_with_phrases(
    phrases: Int[Array, "B C A M"],
    edges: Bool[Array, "V 2"],
    models: Models,
    sentences: Sentences,
    config: Config,
    n_best: int,
) -> SearchResult:
    """Returns what `beam_search` does, by a `PhraseSearch`."""
    # The first hypotheses that end are not those of the largest bank, and take no place from live
    # ones.
    changed = with_changes(config, shrinking_beam=False, stopping="current")
    return PhraseSearch(models, sentences, changed, n_best, phrases, edges).run()
