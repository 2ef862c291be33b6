"""Beam search for outputs that have given phrases, by dynamic beam allocation (Post and Vilar 2018).

A required phrase has alternatives, of which an output needs one. The hypotheses that need equally many more tokens for
their phrases form a bank. The beam takes the best of each bank in turn, so those that follow a phrase survive.
"""

import jax
import jax.numpy as jnp

from transformer.config_types import Config
from transformer.decoding import ensemble
from transformer.decoding.beam_search import BeamSearch, Extensions, Models, SearchResult, Sentences, State
from transformer.decoding.constraints import NEVER, needed_after
from transformer.decoding.coverage import rank_by_coverage
from transformer.decoding.top_k import gather, top_k
from transformer.special_tokens import EOS


class PhraseSearch(BeamSearch):
    """A search for outputs with C phrases of A alternatives; PAD fills up tokens, alternatives and phrases."""

    def best_extensions(self, state: State, prediction: ensemble.Prediction, count: int) -> Extensions:
        """Returns the best extensions of each bank in turn, `count` in total, the likeliest first."""
        phrases = self.sentences.constraints["required"]
        excluded = (EOS, *ensemble.forbidden_tokens(self.config.forbid_unk))
        logits = prediction.logits.at[:, :, jnp.array(excluded)].set(-jnp.inf)
        likely, tokens = top_k(logits, min(count, logits.shape[-1]))
        wanted = phrases.reshape(len(phrases), 1, -1)
        is_first = jnp.tril(wanted[:, :, :, None] == wanted[:, :, None], -1).sum(axis=3) == 0
        is_new = is_first & (wanted[:, :, :, None] != tokens[:, :, None]).all(axis=3)
        wanted = jnp.broadcast_to(wanted, is_new.shape)
        wanted_logits = jnp.where(is_new, jnp.take_along_axis(logits, wanted, axis=2), -jnp.inf)
        tokens = jnp.concatenate([tokens, wanted], axis=2)
        token_log_p = jnp.concatenate([likely, wanted_logits], axis=2) - prediction.log_normalizer[:, :, None]
        banks = needed_after(state.live_tokens, state.position, tokens, phrases)
        rows, _, per_parent = tokens.shape
        values = (token_log_p + state.live_log_p[:, :, None]).reshape(rows, -1)
        values, order = jax.lax.top_k(values, values.shape[1])
        banks = jnp.where(jnp.isneginf(values), NEVER, gather(banks.reshape(rows, -1), order))
        places = jnp.tril(banks[:, :, None] == banks[:, None], -1).sum(axis=2)  # in the banks
        turns = jnp.where(banks == NEVER, NEVER, places)
        chosen = jnp.sort(jnp.argsort(turns, axis=1, stable=True)[:, :count], axis=1)
        index = gather(order, chosen)
        tokens, token_log_p = (gather(x.reshape(rows, -1), index) for x in (tokens, token_log_p))
        return gather(values, chosen), index // per_parent, tokens, token_log_p


def make_search(models: Models, sentences: Sentences, config: Config, n_best: int) -> BeamSearch:
    """Returns the search, for outputs with required phrases if there are any. It knows no coverage penalty."""
    kind = PhraseSearch if "required" in sentences.constraints else BeamSearch
    return kind(models, sentences, config, n_best)


def search_with_phrases(models: Models, sentences: Sentences, config: Config, n_best: int) -> SearchResult:
    """Returns the best hypotheses by their scores, coverage penalty included, and which rows are done."""
    if not config.coverage_penalty:
        return make_search(models, sentences, config, n_best).run()
    hypotheses, done = make_search(models, sentences, config, config.beam_size).run()
    return rank_by_coverage(models, sentences.source, hypotheses, config.coverage_penalty, n_best), done
