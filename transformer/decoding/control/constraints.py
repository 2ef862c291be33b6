"""Constraints of a search: tokens that may not come next, given those that a hypothesis has.

A forbidden token is never chosen. The other log-probabilities stay as in forced decoding.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from transformer.decoding.control.phrases import BOUNDARY
from transformer.decoding.ensemble import Prediction
from transformer.support.special_tokens import EOS, PAD

NEVER = 1 << 16  # tokens that an absent alternative of a required phrase needs


class History(NamedTuple):
    """The tokens of the hypotheses, `position` of each, and the most that a row's output may have
    before EOS.

    spelling: arrays of `Spelling` by name, for phrases and fragments. None where nothing needs
        them.
    """

    tokens: Int[Array, "B K L"]
    position: Int[Array, ""]
    limits: Int[Array, "B"]
    spelling: Mapping[str, Array] | None


Forbidden = Bool[Array, "B K V"]  # as the next token


def forbid_early_end(least: int, history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids EOS until a hypothesis has `least` tokens, or as many as its limit allows."""
    is_short = history.position < jnp.minimum(least, history.limits)
    return forbidden.at[:, :, EOS].max(is_short[:, None])


def forbid_repeated_ngrams(size: int, history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids the tokens that would end an n-gram of this size which the hypothesis has already."""
    ends = jnp.arange(history.tokens.shape[2])[None, None]  # of its n-grams
    is_repeated = (size - 1 <= ends) & (history.tokens != PAD)
    for i in range(1, size):
        # a negative index counts from the end, which is still empty
        last = history.tokens[:, :, history.position - i]
        is_repeated &= jnp.roll(history.tokens, i, axis=2) == last[:, :, None]
    return _forbid(history.tokens, is_repeated, forbidden)


def forbid_banned_phrases(
    rules: Int[Array, "#B N C"], history: History, forbidden: Forbidden
) -> Forbidden:
    """Forbids the tokens that end a banned phrase after the text of a hypothesis.

    A rule is a token and the characters before it, the last one first: a code of `Spelling`,
    `BOUNDARY`, or 0 for any.
    """
    tokens, before = rules[:, None, :, 0], rules[:, None, :, 1:]
    length = before.shape[3]  # of the text to compare, which the last `length` tokens have
    recent = jnp.flip(jnp.roll(history.tokens, -history.position, axis=2), axis=2)[:, :, :length]
    codes = history.spelling["table"][recent].reshape(*recent.shape[:2], -1)
    places = jnp.where(codes == 0, length, jnp.cumsum(codes != 0, axis=2) - 1)
    text = jax.vmap(jax.vmap(lambda row, at: jnp.zeros(length, int).at[at].set(row, mode="drop")))(
        codes, places
    )
    agrees = (
        (before == 0)
        | (before == text[:, :, None])
        | ((before == BOUNDARY) & (text[:, :, None] <= 0))
    )
    return _forbid(tokens, agrees.all(axis=3), forbidden)


def require_phrases(
    phrases: Int[Array, "B C A M"], history: History, forbidden: Forbidden
) -> Forbidden:
    """Forbids EOS before all phrases are in a hypothesis, and tokens after which they do not fit
    into its limit.
    """
    wanted = phrase_tokens(phrases, history.tokens.shape[1])
    progress = measure_progress(
        history.tokens, history.position, phrases, history.spelling["edges"]
    )
    remaining = progress.needed_after(wanted)
    is_late = remaining > (history.limits - history.position)[:, None, None] - 1
    too_late = jnp.broadcast_to(is_late[:, :, -1:], forbidden.shape)
    too_late = jax.vmap(jax.vmap(lambda row, token, value: row.at[token].set(value)))(
        too_late, wanted, is_late
    )
    return forbidden | too_late.at[:, :, EOS].set(remaining[:, :, -1] > 0)


def match_fragment(
    states: Int[Array, "B F N"], history: History, forbidden: Forbidden
) -> Forbidden:
    """Forbids tokens that do not continue the last word of a prefix.

    See `prefixes.fragment_states` for the states.
    """
    num_forced = states[:, 0, 0]
    is_after = (jnp.arange(history.tokens.shape[2])[None] >= num_forced[:, None])[:, None]
    characters = jnp.where(
        is_after & (history.tokens != PAD), history.spelling["lengths"][history.tokens], 0
    )
    count = characters.sum(axis=2)
    # (B, K, N)
    state = jax.vmap(lambda rows, at: rows.at[at].get(mode="fill", fill_value=0))(states, count)
    first, end, tokens = state[:, :, 1:2], state[:, :, 2:3] - 1, state[:, :, 3:]
    is_active = (history.position >= num_forced)[:, None, None] & (end >= 0)
    ranks = history.spelling["ranks"][None, None]
    begins_with_rest = (ranks >= first) & (ranks < end)
    is_beginning = _forbid(tokens, tokens != PAD, jnp.zeros_like(forbidden))
    return jnp.where(is_active, (forbidden | ~begins_with_rest) & ~is_beginning, forbidden)


def allow_prompt(
    is_prompt: Bool[Array, "B K 1"], history: History, forbidden: Forbidden
) -> Forbidden:
    """Allows the tokens of a language model's prompt, which the entries above may forbid."""
    return forbidden & ~is_prompt


def require_prefix(prefix: Int[Array, "B P"], history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids all tokens but that of the prefix, which it allows. PAD ends the prefix."""
    token = jnp.take(prefix, history.position, axis=1, mode="fill", fill_value=PAD)[:, None, None]
    return jnp.where(token == PAD, forbidden, jnp.arange(forbidden.shape[2])[None, None] != token)


# Functions of a constraint's value, the hypotheses and the tokens that the entries above forbid. A
# value has a row for each sentence, or is that of the key of the same name.
CONSTRAINTS = {
    "min_length": forbid_early_end,
    "no_repeat_ngram": forbid_repeated_ngrams,
    "banned": forbid_banned_phrases,
    "banned_here": forbid_banned_phrases,
    "required": require_phrases,
    "fragment": match_fragment,
    "prompt": allow_prompt,
    "prefix": require_prefix,
}


def constrain(
    values: Mapping[str, Any],
    limits: Int[Array, "B"],
    prediction: Prediction,
    tokens: Int[Array, "B K L"],
    position: Int[Array, ""],
) -> Prediction:
    """Returns the prediction without the tokens that the constraints forbid.

    values: those of entries of `CONSTRAINTS`, and `History.spelling` if one needs it.
    """
    if not values:
        return prediction
    # A language model predicts nothing but the next token of its prompt.
    values = {**values, "prompt": jnp.isfinite(prediction.logits).sum(axis=2, keepdims=True) == 1}
    forbidden = jnp.zeros(prediction.logits.shape, bool)
    history = History(tokens, position, limits, values.get("spelling"))
    for name in filter(values.__contains__, CONSTRAINTS):
        forbidden = CONSTRAINTS[name](values[name], history, forbidden)
    return prediction._replace(logits=jnp.where(forbidden, -jnp.inf, prediction.logits))


def _forbid(
    tokens: Int[Array, "#B #K N"], which: Bool[Array, "#B #K N"], forbidden: Forbidden
) -> Forbidden:
    """Forbids those of the tokens that `which` marks."""
    index = jnp.where(which, tokens, forbidden.shape[2])  # beyond the vocabulary: dropped
    index = jnp.broadcast_to(index, (*forbidden.shape[:2], index.shape[2]))
    return jax.vmap(jax.vmap(lambda row, marked: row.at[marked].set(True, mode="drop")))(
        forbidden, index
    )


def phrase_tokens(phrases: Int[Array, "B C A M"], beams: int) -> Int[Array, "B K N"]:
    """Returns the tokens of all phrases for each hypothesis, then PAD, which represents any other
    token.
    """
    tokens = jnp.pad(phrases.reshape(len(phrases), 1, -1), ((0, 0), (0, 0), (0, 1)))
    return jnp.broadcast_to(tokens, (len(phrases), beams, tokens.shape[2]))


class Progress(NamedTuple):
    """The phrases of hypotheses, and the edges of the vocabulary's tokens.

    is_met: whether a hypothesis has the phrase, and more tokens after it.
    ends_with: whether its last j tokens are the first j of the alternative, for j from 0 to M.
    ends_in_word: whether its last character belongs to a word.
    """

    phrases: Int[Array, "B C A M"]
    edges: Bool[Array, "V 2"]
    is_met: Bool[Array, "B K C"]
    ends_with: Bool[Array, "B K C A M+1"]
    ends_in_word: Bool[Array, "B K"]

    def needed_after(self, following: Int[Array, "B K N"]) -> Int[Array, "B K N"]:
        """Returns how many more tokens each hypothesis needs for its phrases after each of the N
        following tokens.

        It finishes the phrase that it has begun. A phrase that ends within a word does not count.
        """
        phrases, edges, is_met, ends_with, ends_in_word = self
        size = (phrases != PAD).sum(axis=3)  # (B, C, A)
        is_alternative = size > 0
        M = phrases.shape[3]
        # (B, K, N, C, A, M): the token extends the first j tokens of an alternative.
        extends = ends_with[:, :, None, :, :, :M] & (
            phrases[:, None, None] == following[..., None, None, None]
        )
        extends &= (phrases != PAD)[:, None, None]
        # (B, K, N, C, A)
        begun = jnp.where(extends, jnp.arange(1, M + 1).reshape(1, 1, 1, 1, 1, M), 0).max(axis=5)
        is_completed = ((begun == size[:, None, None]) & is_alternative[:, None, None]).any(axis=4)

        # (B, K, C, A)
        at_end = jnp.take_along_axis(ends_with, size[:, None, :, :, None], axis=4)[..., 0]
        at_end = (at_end & is_alternative[:, None]).any(axis=3)
        continues_word = edges[following, 0] & ends_in_word[:, :, None]
        stays_met = is_met[:, :, None] | (at_end[:, :, None] & ~continues_word[..., None])
        is_empty = ~is_alternative.any(axis=2)[:, None, None]
        lacks = ~(stays_met | is_completed | is_empty)  # (B, K, N, C)

        whole = jnp.where(is_alternative, size, NEVER).min(axis=2)[:, None, None]
        rest = jnp.where(is_alternative[:, None, None], size[:, None, None] - begun, NEVER).min(
            axis=4
        )
        return jnp.where(lacks, whole, 0).sum(axis=3) - jnp.where(lacks, whole - rest, 0).max(
            axis=3
        )


def measure_progress(
    tokens: Int[Array, "B K L"],
    position: Int[Array, ""],
    phrases: Int[Array, "B C A M"],
    edges: Bool[Array, "V 2"],
) -> Progress:
    """Returns the progress of hypotheses of `position` tokens."""
    L, M = tokens.shape[2], phrases.shape[3]
    before = ((0, 0), (0, 0), (M, 0))
    after = ((0, 0), (0, 0), (0, M))
    shape = *tokens.shape[:2], *phrases.shape[1:3]

    # Where an alternative begins. Loops over its tokens: arrays with an axis for them would be
    # large.
    padded = jnp.pad(tokens, after)

    def compare(m, is_equal):  # (), (B, K, C, A, L)
        token = phrases[:, None, :, :, m, None]
        shifted = jax.lax.dynamic_slice_in_dim(padded, m, L, axis=2)[:, :, None, None]
        return is_equal & ((shifted == token) | (token == PAD))

    is_whole = jax.lax.fori_loop(0, M, compare, jnp.ones((*shape, L), bool))
    size = (phrases != PAD).sum(axis=3)[:, None, :, :, None]
    ends = jnp.arange(L).reshape(1, 1, 1, 1, L) + size  # (B, 1, C, A, L)
    # of the word of the token before
    is_continuation = edges[tokens, 0] & jnp.roll(edges[tokens, 1], 1, axis=2)
    # (B, K, C, A, L)
    is_split = jax.vmap(lambda row, at: row[:, at[0]])(jnp.pad(is_continuation, after), ends)
    is_followed = is_whole & (size > 0) & (ends < position) & ~is_split

    recent = jax.lax.dynamic_slice_in_dim(jnp.pad(tokens, before), position, M, axis=2)
    lengths = jnp.arange(M + 1)

    def compare_ends(m, is_equal):  # (), (B, K, C, A, M + 1)
        last = recent[:, :, jnp.minimum(M - lengths + m, M - 1)][:, :, None, None]
        return is_equal & (
            (last == phrases[:, None, :, :, m, None]) | (m >= lengths).reshape(1, 1, 1, 1, -1)
        )

    ends_with = jax.lax.fori_loop(0, M, compare_ends, jnp.ones((*shape, M + 1), bool))
    last = jnp.where(position > 0, tokens[:, :, position - 1], PAD)
    return Progress(phrases, edges, is_followed.any(axis=(3, 4)), ends_with, edges[last, 1])
