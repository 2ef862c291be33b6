"""Beam search for outputs that have given phrases, by dynamic beam allocation (Post and Vilar 2018).

A required phrase has alternatives, of which an output needs one. The hypotheses that need equally many more tokens for
their phrases form a bank. The beam takes the best of each bank in turn, so those that follow a phrase survive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.decoding import ensemble
from transformer.decoding.beam_search import BeamSearch, Hypotheses, State
from transformer.decoding.coverage import rank_by_coverage
from transformer.decoding.top_k import gather, top_k
from transformer.special_tokens import EOS, PAD

NEVER = 1 << 16  # tokens that an absent alternative needs


@dataclass(frozen=True, kw_only=True)
class PhraseSearch(BeamSearch):
    """A search for outputs with C phrases of A alternatives; PAD fills up tokens, alternatives and phrases."""

    phrases: Int[Array, "B C A M"]

    def best_extensions(
        self, state: State, prediction: ensemble.Prediction, count: int
    ) -> tuple[Float[Array, "B N"], Int[Array, "B N"], Int[Array, "B N"], Float[Array, "B N"]]:
        """Returns the best extensions of each bank in turn, `count` in total, the likeliest first."""
        excluded = (EOS, *ensemble.forbidden_tokens(self.forbid_unk))
        logits = prediction.logits.at[:, :, jnp.array(excluded)].set(-jnp.inf)
        likely, tokens = top_k(logits, min(count, logits.shape[-1]))
        wanted = self.phrases.reshape(len(self.phrases), 1, -1)
        is_first = jnp.tril(wanted[:, :, :, None] == wanted[:, :, None], -1).sum(axis=3) == 0
        is_new = is_first & (wanted[:, :, :, None] != tokens[:, :, None]).all(axis=3)
        wanted = jnp.broadcast_to(wanted, is_new.shape)
        wanted_logits = jnp.where(is_new, jnp.take_along_axis(logits, wanted, axis=2), -jnp.inf)
        tokens = jnp.concatenate([tokens, wanted], axis=2)
        token_log_p = jnp.concatenate([likely, wanted_logits], axis=2) - prediction.log_normalizer[:, :, None]
        banks = needed_after(state.live_tokens, state.position, tokens, self.phrases)
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


def make_search(
    models: Sequence[ensemble.AutoregressiveModel],
    limits: Int[Array, "B"],
    *,
    phrases: Int[Array, "B C A M"] | None = None,
    coverage_penalty: float = 0.0,
    **options: Any,
) -> BeamSearch:
    """Returns the search for outputs that have the phrases, if there are any. `options`: see `BeamSearch`.

    The coverage penalty has no part in the search.
    """
    if phrases is None:
        return BeamSearch(models, limits, **options)
    return PhraseSearch(models, limits, phrases=phrases, **options)


def search_with_phrases(
    models: Sequence[ensemble.AutoregressiveModel], source: Int[Array, "B S"], limits: Int[Array, "B"], **options: Any
) -> tuple[Hypotheses, Bool[Array, "B"]]:
    """Returns what `beam_search` does. `options`: see `make_search`; `coverage_penalty`: see `rank_by_coverage`."""
    if not (beta := options.pop("coverage_penalty", 0.0)):
        return make_search(models, limits, **options).run(source)
    hypotheses, done = make_search(models, limits, **options | {"n_best": options["beam_size"]}).run(source)
    return rank_by_coverage(models, source, hypotheses, beta, options["n_best"]), done


def needed_after(
    tokens: Int[Array, "B K L"],
    position: Int[Array, ""],
    following: Int[Array, "B K N"],
    phrases: Int[Array, "B C A M"],
) -> Int[Array, "B K N"]:
    """Returns how many more tokens each hypothesis needs for its phrases after each of the N following tokens."""
    extended = jnp.broadcast_to(tokens[:, :, None], (*following.shape, tokens.shape[2]))
    extended = extended.at[:, :, :, position].set(following)
    return jax.vmap(jax.vmap(jax.vmap(needed, (0, None, None)), (0, None, None)), (0, None, 0))(
        extended, position + 1, phrases
    )


def needed(tokens: Int[Array, "L"], length: Int[Array, ""], phrases: Int[Array, "C A M"]) -> Int[Array, ""]:
    """Returns the fewest tokens after which a hypothesis has all phrases, if it finishes the one that it has begun."""
    L, M = len(tokens), phrases.shape[2]
    starts = jnp.arange(L)
    windows = jnp.pad(tokens, (0, M))[starts[:, None] + jnp.arange(M)[None]]
    agrees = jnp.cumprod(windows[None, None] == phrases[:, :, None], axis=3).sum(axis=3)  # first tokens: (C, A, L)
    sizes = (phrases != PAD).sum(axis=2)
    is_met = ((agrees >= sizes[:, :, None]).any(axis=2) & (sizes > 0)).any(axis=1) | (sizes == 0).all(axis=1)
    begun = jnp.where(agrees == (length - starts)[None, None], agrees, 0).max(axis=2)
    whole, rest = (jnp.where(sizes > 0, count, NEVER).min(axis=1) for count in (sizes, sizes - begun))
    return jnp.where(is_met, 0, whole).sum() - jnp.where(is_met, 0, whole - rest).max()
