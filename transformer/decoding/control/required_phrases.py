"""Beam search for outputs that have given phrases: dynamic beam allocation.

Post and Vilar (2018) describe it. A required phrase has alternatives, and an output needs one of
them. The hypotheses that need equally many more tokens for their phrases form a bank. The beam
takes the best hypothesis of each bank in turn, so hypotheses that follow a phrase survive. EOS
competes within the bank of the hypotheses that need no more tokens.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config, with_changes
from transformer.decoding.beam_search import (
    BeamSearch,
    Extensions,
    Models,
    SearchResult,
    SearchState,
    SourceBatch,
)
from transformer.decoding.control.phrase_progress import measure_progress, phrase_tokens
from transformer.decoding.ensemble import Prediction, forbidden_tokens
from transformer.decoding.top_k import gather, top_k
from transformer.support.special_tokens import EOS, PAD

PHRASE_TOKENS = 8  # the most tokens of its phrases by which a hypothesis is extended
UNLIKELY = 1e4  # more nats than any token costs
MAX_BANKS = 8  # the most places of the beam that are added for banks


@dataclass(frozen=True)
class PhraseSearch(BeamSearch):
    """A search for outputs with C phrases of A alternatives, each of at most M tokens.

    PAD fills up tokens, alternatives and phrases. A sentence has the beam_size hypotheses of a
    plain search and one for each token of its phrases, at most `MAX_BANKS` of these. `edges` is
    `Spelling.edges`.
    """

    phrases: Int[Array, "B C A M"]
    edges: Bool[Array, "V 2"]

    @property
    def num_live(self) -> int:
        _, count, _, length = self.phrases.shape
        return self.decoding_config.beam_size + min(count * length, MAX_BANKS)

    def extend(
        self, state: SearchState, prediction: Prediction
    ) -> tuple[Extensions, Float[Array, "B _"]]:
        """Returns the best extensions of each bank in turn, and those that need no more tokens."""
        # The best of each bank come first, then the second best, and impossible ones last.
        log_p, tokens, token_log_p, banks = self.continuations(state, prediction)
        turns = rank_in_groups(banks, log_p)
        turns = jnp.where(jnp.isneginf(log_p), log_p.shape[1], turns)
        best = jnp.lexsort((-log_p, turns), axis=1)[:, : self.num_live]

        # A row has as many live hypotheses as its own phrases need: padding does not change it.
        slots = jnp.arange(self.num_live)[None]
        sizes = (self.phrases != PAD).sum(axis=3).max(axis=2).sum(axis=1)  # (B,)
        is_live = slots < self.decoding_config.beam_size + jnp.minimum(sizes, MAX_BANKS)[:, None]
        best_log_p = jnp.where(is_live, gather(log_p, best), -jnp.inf)

        # The search expects the most probable hypothesis first.
        order = jnp.argsort(-best_log_p, axis=1, stable=True)
        best = gather(best, order)
        parents = best // (log_p.shape[1] // self.num_live)
        extensions = Extensions(
            log_p=gather(best_log_p, order),
            parents=parents,
            tokens=gather(tokens, best),
            token_log_p=gather(token_log_p, best),
        )
        return extensions, jnp.where(banks == 0, log_p, -jnp.inf)

    def continuations(self, state: SearchState, prediction: Prediction) -> list[Array]:
        """Returns the extensions by likely tokens, and by tokens of the phrases.

        They are arrays of shape (B, K * N), for N extensions of each hypothesis: log-probabilities,
        tokens, log-probabilities of the tokens, and banks. The bank is the number of tokens that
        the extended hypothesis still needs for its phrases.
        """
        # The likeliest tokens, as in a plain search.
        excluded = (EOS, *forbidden_tokens(self.decoding_config.forbid_unk))
        logits = prediction.logits.at[..., jnp.array(excluded)].set(-jnp.inf)
        likely_logits, likely = top_k(logits, min(self.decoding_config.beam_size, logits.shape[-1]))
        progress = measure_progress(state.live_tokens, state.position, self.phrases, self.edges)
        likely_banks = progress.needed_after(likely)

        # Each token of the phrases counts once, and not if it is among the likely tokens.
        required = phrase_tokens(self.phrases, self.num_live)  # (B, K, C * A * M + 1)
        banks = progress.needed_after(required)
        is_equal = required[:, :1, :, None] == required[:, :1, None]  # (B, 1, N, N)
        is_first = jnp.tril(is_equal, -1).sum(axis=3) == 0
        is_new = is_first & (required[..., None] != likely[:, :, None]).all(axis=3)
        required_logits = jnp.take_along_axis(logits, required, axis=2)
        required_logits = jnp.where(is_new, required_logits, -jnp.inf)

        # The tokens after which a hypothesis needs the fewest tokens, the likeliest first.
        log_p = required_logits - prediction.log_normalizer[..., None]
        priorities = log_p - UNLIKELY * banks
        _, best = jax.lax.top_k(priorities, min(PHRASE_TOKENS, required.shape[2]))
        required, required_logits, banks = (
            jnp.take_along_axis(x, best, axis=2) for x in (required, required_logits, banks)
        )

        # Both kinds together, as extensions of the hypotheses.
        tokens = jnp.concatenate([likely, required], axis=2)
        banks = jnp.concatenate([likely_banks, banks], axis=2)
        logits = jnp.concatenate([likely_logits, required_logits], axis=2)
        token_log_p = logits - prediction.log_normalizer[..., None]
        log_p = token_log_p + state.live_log_p[..., None]
        return [x.reshape(len(x), -1) for x in (log_p, tokens, token_log_p, banks)]


def rank_in_groups(groups: Int[Array, "B N"], values: Float[Array, "B N"]) -> Int[Array, "B N"]:
    """Returns the rank of each value in its group, 0 for the largest; the first wins a tie."""
    order = jnp.lexsort((-values, groups), axis=1)
    ordered = gather(groups, order)

    # Sorted by group, the rank of a value is its distance from the begin of its group.
    places = jnp.broadcast_to(jnp.arange(groups.shape[1]), groups.shape)
    begins = ordered != jnp.roll(ordered, 1, axis=1)
    first = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
    ranks = places - first
    return jax.vmap(lambda index, row: jnp.zeros_like(row).at[index].set(row))(order, ranks)


def search_with_phrases(
    phrases: Int[Array, "B C A M"],
    edges: Bool[Array, "V 2"],
    models: Models,
    sentences: SourceBatch,
    decoding_config: Config,
    n_best: int,
) -> SearchResult:
    """Returns what `beam_search` does, by a `PhraseSearch`."""
    # The hypotheses that end first are not those that need most tokens. So they neither stop the
    # search nor take places from live hypotheses.
    changed = with_changes(decoding_config, shrinking_beam=False, stopping="current")
    return PhraseSearch(models, sentences, changed, n_best, phrases, edges).run()
