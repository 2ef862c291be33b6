"""Constraints of a search: the tokens that may not come next in a hypothesis.

A forbidden token is never chosen. The other log-probabilities are the same as in forced decoding.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from transformer.decoding.control.phrase_progress import measure_progress, phrase_tokens
from transformer.decoding.control.phrases import BOUNDARY
from transformer.decoding.ensemble import Prediction
from transformer.decoding.history import Forbidden, History
from transformer.decoding.trees.well_formed import require_tree
from transformer.support.special_tokens import EOS, PAD


def forbid_early_end(min_length: int, history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids EOS until a hypothesis has `min_length` tokens, or as many as its limit allows."""
    is_short = history.position < jnp.minimum(min_length, history.limits)
    return forbidden.at[..., EOS].max(is_short[:, None])


def forbid_repeated_ngrams(size: int, history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids the tokens that would repeat an n-gram of this size."""
    tokens = history.tokens

    # is_repeated[b, k, l]: position l ends an n-gram that begins with the last n - 1 tokens.
    ends = jnp.arange(tokens.shape[2])[None, None]
    is_repeated = (size - 1 <= ends) & (tokens != PAD)
    for i in range(1, size):
        # A negative index counts from the end, which is still empty.
        last = tokens[..., history.position - i]
        is_repeated &= jnp.roll(tokens, i, axis=2) == last[..., None]
    return _forbid(tokens, is_repeated, forbidden)


def forbid_banned_phrases(
    rules: Int[Array, "#B N C"], history: History, forbidden: Forbidden
) -> Forbidden:
    """Forbids the tokens that end a banned phrase after the text of a hypothesis.

    A rule is a token and the characters before it, the last one first. A character is a code of
    `Spelling`, `BOUNDARY`, or 0 for any.
    """
    tokens = rules[:, None, :, 0]
    before = rules[:, None, :, 1:]

    # The characters of each hypothesis, the last one first. Its last `length` tokens have all
    # characters to compare.
    length = before.shape[3]
    recent = jnp.flip(jnp.roll(history.tokens, -history.position, axis=2), axis=2)[..., :length]
    codes = history.spelling["table"][recent].reshape(*recent.shape[:2], -1)  # (B, K, length * W)
    places = jnp.where(codes == 0, length, jnp.cumsum(codes != 0, axis=2) - 1)

    # Without the zeros that fill up the table's rows.
    def left_align(codes, places):
        return jnp.zeros(length, int).at[places].set(codes, mode="drop")

    text = jax.vmap(jax.vmap(left_align))(codes, places)  # (B, K, length)

    # A rule applies if each of its characters is any, equal, or a boundary where it must be.
    agrees = (before == 0) | (before == text[:, :, None])
    agrees |= (before == BOUNDARY) & (text[:, :, None] <= 0)
    return _forbid(tokens, agrees.all(axis=3), forbidden)


def require_phrases(
    phrases: Int[Array, "B C A M"], history: History, forbidden: Forbidden
) -> Forbidden:
    """Forbids EOS until a hypothesis has all phrases, and tokens after which they do not fit.

    The phrases fit if the hypothesis can have all of them within its limit.
    """
    required = phrase_tokens(phrases, history.tokens.shape[1])
    edges = history.spelling["edges"]
    progress = measure_progress(history.tokens, history.position, phrases, edges)
    remaining = progress.needed_after(required)  # (B, K, N)
    is_late = remaining > (history.limits - history.position)[:, None, None] - 1

    # The last of the required tokens, PAD, represents all others.
    too_late = jnp.broadcast_to(is_late[..., -1:], forbidden.shape)
    too_late = jax.vmap(jax.vmap(lambda row, token, value: row.at[token].set(value)))(
        too_late, required, is_late
    )
    return forbidden | too_late.at[..., EOS].set(remaining[..., -1] > 0)


def match_fragment(
    states: Int[Array, "B F N"], history: History, forbidden: Forbidden
) -> Forbidden:
    """Forbids tokens that do not continue the last word of a prefix.

    See `prefixes.fragment_states` for the states.
    """
    # The number of characters after the forced tokens is the state of a hypothesis.
    num_forced = states[:, 0, 0]
    is_after = (jnp.arange(history.tokens.shape[2])[None] >= num_forced[:, None])[:, None]
    is_counted = is_after & (history.tokens != PAD)
    characters = jnp.where(is_counted, history.spelling["lengths"][history.tokens], 0)
    count = characters.sum(axis=2)
    state = jax.vmap(lambda rows, at: rows.at[at].get(mode="fill", fill_value=0))(states, count)

    # The next token begins with the rest of the fragment, or is a beginning of it.
    first = state[..., 1:2]  # (B, K, 1)
    end = state[..., 2:3] - 1
    tokens = state[..., 3:]
    is_active = (history.position >= num_forced)[:, None, None] & (end >= 0)
    ranks = history.spelling["ranks"][None, None]
    begins_with_rest = (ranks >= first) & (ranks < end)
    is_beginning = _forbid(tokens, tokens != PAD, jnp.zeros_like(forbidden))
    continues = begins_with_rest | is_beginning
    # After the word, where the hypothesis may end, tokens that another constraint forbids stay so.
    is_required = is_beginning & ~(tokens == EOS).any(axis=2, keepdims=True)
    return jnp.where(is_active, (forbidden | ~continues) & ~is_required, forbidden)


def allow_prompt(
    is_prompt: Bool[Array, "B K 1"], history: History, forbidden: Forbidden
) -> Forbidden:
    """Allows the tokens of a language model's prompt, which the entries above may forbid."""
    return forbidden & ~is_prompt


def require_prefix(prefix: Int[Array, "B P"], history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids all tokens except the token of the prefix, which it allows. PAD ends the prefix."""
    token = jnp.take(prefix, history.position, axis=1, mode="fill", fill_value=PAD)
    token = token[:, None, None]
    is_after = token == PAD
    is_other = jnp.arange(forbidden.shape[2])[None, None] != token
    return jnp.where(is_after, forbidden, is_other)


# Functions of a constraint's value, the hypotheses, and the tokens that the entries above forbid. A
# value has a row for each sentence, or is the value of the key with the same name.
CONSTRAINTS: dict[str, Callable[[Any, History, Forbidden], Forbidden]] = {
    "min_length": forbid_early_end,
    "no_repeat_ngram": forbid_repeated_ngrams,
    "banned": forbid_banned_phrases,
    "banned_here": forbid_banned_phrases,
    "required": require_phrases,
    "fragment": match_fragment,
    "well_formed": require_tree,
    "prompt": allow_prompt,
    "prefix": require_prefix,
}


def constrain(
    values: Mapping[str, Any],
    limits: Int[Array, " B"],
    prediction: Prediction,
    tokens: Int[Array, "B K L"],
    position: Int[Array, ""],
) -> Prediction:
    """Returns the prediction without the tokens that the constraints forbid.

    `values` has the values of constraints by name, and `History.spelling` if one needs it.
    """
    if not values:
        return prediction

    # Within its prompt, a language model predicts only the next token of the prompt.
    values = {**values, "prompt": jnp.isfinite(prediction.logits).sum(axis=2, keepdims=True) == 1}
    forbidden = jnp.zeros(prediction.logits.shape, bool)
    history = History(tokens, position, limits, values.get("spelling", {}))
    for name, forbid in CONSTRAINTS.items():
        if name in values:
            forbidden = forbid(values[name], history, forbidden)
    return prediction._replace(logits=jnp.where(forbidden, -jnp.inf, prediction.logits))


def _forbid(
    tokens: Int[Array, "#B #K N"], which: Bool[Array, "#B #K N"], forbidden: Forbidden
) -> Forbidden:
    """Forbids the tokens that `which` marks."""
    # Other tokens get an index beyond the vocabulary, which is dropped.
    index = jnp.where(which, tokens, forbidden.shape[2])
    index = jnp.broadcast_to(index, (*forbidden.shape[:2], index.shape[2]))
    mark = jax.vmap(jax.vmap(lambda row, tokens: row.at[tokens].set(True, mode="drop")))
    return mark(forbidden, index)
