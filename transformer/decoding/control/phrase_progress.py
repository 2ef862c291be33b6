"""The progress of hypotheses towards their required phrases: how many tokens they still need."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from transformer.support.special_tokens import PAD

NEVER = 1 << 16  # number of tokens that an absent alternative needs


def phrase_tokens(phrases: Int[Array, "B C A M"], beams: int) -> Int[Array, "B K N"]:
    """Returns the tokens of all phrases for each hypothesis, and PAD for any other token."""
    tokens = jnp.pad(phrases.reshape(len(phrases), 1, -1), ((0, 0), (0, 0), (0, 1)))
    return jnp.broadcast_to(tokens, (len(phrases), beams, tokens.shape[2]))


class PhraseProgress(NamedTuple):
    """The state of required phrases in hypotheses: C phrases of A alternatives with M tokens.

    edges: `Spelling.edges`.
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
        """Returns how many more tokens each hypothesis needs after each of the following tokens.

        A hypothesis first finishes a phrase that it has begun. A phrase that ends within a word
        does not count.
        """
        phrases, edges, is_met, ends_with, ends_in_word = self
        size = (phrases != PAD).sum(axis=3)  # (B, C, A)
        is_alternative = size > 0
        M = phrases.shape[3]

        # A phrase does not begin within a word.
        continues_word = edges[following, 0] & ends_in_word[..., None]  # (B, K, N)
        is_first = (jnp.arange(M) == 0)[None, None, None]
        begins = ~(is_first & continues_word[..., None])  # (B, K, N, M)

        # extends[..., j]: the token comes after the first j tokens of an alternative.
        extends = ends_with[:, :, None, :, :, :M]
        extends &= phrases[:, None, None] == following[..., None, None, None]
        extends &= (phrases != PAD)[:, None, None]  # (B, K, N, C, A, M)
        extends &= begins[:, :, :, None, None]
        counts = jnp.arange(1, M + 1).reshape(1, 1, 1, 1, 1, M)
        matched = jnp.where(extends, counts, 0).max(axis=5)  # (B, K, N, C, A)
        is_completed = (matched == size[:, None, None]) & is_alternative[:, None, None]
        is_completed = is_completed.any(axis=4)

        # A phrase at the end of the hypothesis stays unless the token continues its last word.
        at_end = jnp.take_along_axis(ends_with, size[:, None, :, :, None], axis=4)[..., 0]
        at_end = (at_end & is_alternative[:, None]).any(axis=3)  # (B, K, C)
        stays_met = is_met[:, :, None] | (at_end[:, :, None] & ~continues_word[..., None])
        is_empty = ~is_alternative.any(axis=2)[:, None, None]
        lacks = ~(stays_met | is_completed | is_empty)  # (B, K, N, C)

        # The tokens of the missing phrases, less the most that are matched of one of them.
        whole = jnp.where(is_alternative, size, NEVER).min(axis=2)[:, None, None]
        rest = jnp.where(is_alternative[:, None, None], size[:, None, None] - matched, NEVER)
        rest = rest.min(axis=4)
        missing = jnp.where(lacks, whole, 0).sum(axis=3)
        return missing - jnp.where(lacks, whole - rest, 0).max(axis=3)


def measure_progress(
    tokens: Int[Array, "B K L"],
    position: Int[Array, ""],
    phrases: Int[Array, "B C A M"],
    edges: Bool[Array, "V 2"],
) -> PhraseProgress:
    """Returns the progress of hypotheses of `position` tokens."""
    L = tokens.shape[2]
    M = phrases.shape[3]
    before = ((0, 0), (0, 0), (M, 0))
    after = ((0, 0), (0, 0), (0, M))
    shape = (*tokens.shape[:2], *phrases.shape[1:3])

    # is_whole[..., l]: an alternative begins at position l. The loop over its tokens avoids a large
    # array with an axis for them.
    padded = jnp.pad(tokens, after)

    def compare(m, is_equal):  # (), (B, K, C, A, L)
        token = phrases[:, None, :, :, m, None]
        shifted = jax.lax.dynamic_slice_in_dim(padded, m, L, axis=2)[:, :, None, None]
        return is_equal & ((shifted == token) | (token == PAD))

    is_whole = jax.lax.fori_loop(0, M, compare, jnp.ones((*shape, L), bool))

    # It counts if it does not begin within a word, and more tokens follow, of which the first does
    # not continue its last word.
    size = (phrases != PAD).sum(axis=3)[:, None, :, :, None]
    ends = jnp.arange(L).reshape(1, 1, 1, 1, L) + size  # (B, 1, C, A, L)
    continues_word = edges[tokens[..., 1:], 0] & edges[tokens[..., :-1], 1]
    continues_word = jnp.pad(continues_word, ((0, 0), (0, 0), (1, 0)))  # (B, K, L)
    is_split = jax.vmap(lambda row, at: row[:, at[0]])(jnp.pad(continues_word, after), ends)
    is_followed = is_whole & (size > 0) & (ends < position) & ~is_split  # (B, K, C, A, L)
    is_followed &= ~continues_word[:, :, None, None]

    # The last tokens of the hypotheses, compared with the first tokens of the alternatives.
    recent = jax.lax.dynamic_slice_in_dim(jnp.pad(tokens, before), position, M, axis=2)
    lengths = jnp.arange(M + 1)

    def compare_ends(m, is_equal):  # (), (B, K, C, A, M + 1)
        index = jnp.minimum(M - lengths + m, M - 1)
        token = recent[..., index][:, :, None, None]
        is_match = token == phrases[:, None, :, :, m, None]
        return is_equal & (is_match | (m >= lengths).reshape(1, 1, 1, 1, -1))

    ends_with = jax.lax.fori_loop(0, M, compare_ends, jnp.ones((*shape, M + 1), bool))
    starts = jnp.take(continues_word, position - lengths, axis=2, mode="fill", fill_value=False)
    starts &= (lengths > 0)[None, None]
    ends_with &= ~starts[:, :, None, None]
    last = jnp.where(position > 0, tokens[..., position - 1], PAD)
    return PhraseProgress(phrases, edges, is_followed.any(axis=(3, 4)), ends_with, edges[last, 1])
