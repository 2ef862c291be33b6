"""Prefix beam search for models of training.objective=ctc (Graves et al. 2006; Hannun et al. 2014).

A prefix is a sequence of tokens, an alignment has one label per frame. The probability of a prefix
is the sum over all alignments that collapse to it. Alignments that end in BLANK and alignments that
end in the prefix's last token extend differently.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config
from transformer.decoding import ensemble
from transformer.decoding.beam_search import Hypotheses, SearchResult, SourceBatch, length_penalty
from transformer.decoding.top_k import gather
from transformer.model.matmul import FLOAT32
from transformer.model.single_stack import BLANK, CtcTransformer, emits_token, left_align
from transformer.support.special_tokens import BOS, EOS, PAD, UNK

CHUNK_BYTES = 2**28  # size of the logits of the rows that are searched at once


class Prefixes(NamedTuple):
    """The K best prefixes of a source: tokens, numbers of tokens, and log-probabilities.

    `ends_blank` sums over the alignments that end in BLANK, `ends_token` over the alignments that
    end in the last token.
    """

    tokens: Int[Array, "*B K L"]
    lengths: Int[Array, "*B K"]
    ends_blank: Float[Array, "*B K"]
    ends_token: Float[Array, "*B K"]

    @property
    def log_p(self) -> Float[Array, "*B K"]:
        return jnp.logaddexp(self.ends_blank, self.ends_token)

    def log_p_before(self, repeats_last: Bool[Array, "K N"]) -> Float[Array, "K N"]:
        """Returns log p of what a token extends: only alignments in BLANK if the token repeats."""

        return jnp.where(repeats_last, self.ends_blank[:, None], self.log_p[:, None])


def ctc_search(
    models: Sequence[CtcTransformer], sentences: SourceBatch, decoding_config: Config, n_best: int
) -> SearchResult:
    """Returns the `n_best` translations of each row, and True for each row: all are done.

    A beam of 1 takes the most likely label of each frame. The search does not know the
    probabilities of tokens: in `token_log_probabilities`, EOS has the whole log-probability. All
    models have the same number of frames. The limits of `sentences` only mark filler rows.
    """
    source = sentences.source
    is_frame = models[0].frames(source) != PAD
    hidden = tuple(model.hidden(source) for model in models)

    def search_row(row):
        hidden, is_frame = row  # (F, D) of each model, (F,)
        pairs = zip(models, hidden, strict=True)
        log_p = ensemble.log_probabilities([model.logits(x) for model, x in pairs])
        forbidden = (BOS, EOS, UNK) if decoding_config.forbid_unk else (BOS, EOS)
        log_p = log_p.at[:, jnp.array(forbidden)].set(-jnp.inf)
        if decoding_config.beam_size == 1:
            return _greedy(log_p, is_frame)
        return _search(log_p, is_frame, decoding_config.beam_size)

    # The logits of all rows may not fit into memory. The number of rows at once divides the batch:
    # a smaller last chunk would be another program, with other rounding.
    vocab_size = len(models[0].output_table_and_bias[0])
    row_bytes = FLOAT32.itemsize * vocab_size * is_frame.shape[1]
    divisors = [size for size in range(1, len(source) + 1) if len(source) % size == 0]
    rows = max(size for size in divisors if size == 1 or size * row_bytes <= CHUNK_BYTES)
    prefixes = jax.lax.map(search_row, (hidden, is_frame), batch_size=rows)

    # A score counts EOS in the length. Filler rows have no hypotheses.
    scores = prefixes.log_p / length_penalty(prefixes.lengths + 1, decoding_config)
    scores = jnp.where((sentences.limits < 0)[:, None], -jnp.inf, scores)
    scores, best = jax.lax.top_k(scores, n_best)
    tokens, lengths, log_p = gather((prefixes.tokens, prefixes.lengths, prefixes.log_p), best)
    is_end = jnp.arange(tokens.shape[2])[None, None] == lengths[..., None]
    hypotheses = Hypotheses(
        tokens=jnp.where(is_end, EOS, tokens),
        scores=scores,
        token_log_probabilities=jnp.where(is_end, log_p[..., None], 0.0),
    )
    return hypotheses, jnp.ones(len(source), bool)


def _greedy(log_p: Float[Array, "F V"], is_frame: Bool[Array, " F"]) -> Prefixes:
    """Returns the prefix of the most likely alignment, as a beam of 1."""
    labels = jnp.where(is_frame, jnp.argmax(log_p, axis=-1), BLANK)[None]  # (1, F)
    is_token = emits_token(labels)
    frame_log_p = jnp.where(is_frame, jnp.max(log_p, axis=-1), 0.0)
    total = jnp.sum(frame_log_p)[None]
    tokens = jnp.pad(left_align(labels, is_token), ((0, 0), (0, 1)))
    lengths = jnp.sum(is_token, axis=1)
    return Prefixes(tokens, lengths, total, jnp.full_like(total, -jnp.inf))


def _search(log_p: Float[Array, "F V"], is_frame: Bool[Array, " F"], beam_size: int) -> Prefixes:
    """Returns the prefixes of a beam search over the frames."""
    # At the start, only the first slot has a prefix: the empty one, as if after a BLANK.
    tokens = jnp.full((beam_size, len(log_p) + 1), PAD)
    impossible = jnp.full(beam_size, -jnp.inf)
    lengths = jnp.zeros(beam_size, jnp.int32)
    start = Prefixes(tokens, lengths, impossible.at[0].set(0.0), impossible)

    def advance(prefixes, frame):
        log_p, is_real = frame
        after = _advance(prefixes, log_p)

        # Frames of padding change nothing.
        after = jax.tree.map(lambda new, old: jnp.where(is_real, new, old), after, prefixes)
        return after, None

    return jax.lax.scan(advance, start, (log_p, is_frame))[0]


def _advance(prefixes: Prefixes, log_p: Float[Array, " V"]) -> Prefixes:
    """Returns the best prefixes after one more frame."""
    count, _ = prefixes.tokens.shape
    index = jnp.arange(count)

    # The row of the empty prefix is all PAD, so its last element, at index -1, is PAD.
    last = prefixes.tokens[index, prefixes.lengths - 1]
    last_log_p = jnp.where(prefixes.lengths > 0, log_p[last], -jnp.inf)

    # Extensions of each prefix by the K + 1 likeliest tokens suffice for the K best: only a
    # repeated token may score lower than a less likely one, since it needs a BLANK before it. An
    # extension that equals another prefix is removed below; that prefix has at least its score.
    choices = min(count + 1, len(log_p))
    token_log_p, tokens = jax.lax.top_k(log_p.at[BLANK].set(-jnp.inf), choices)
    is_repeated = tokens[None] == last[:, None]
    extended = token_log_p[None] + prefixes.log_p_before(is_repeated)  # (K, choices)

    # If it equals prefix j, an extension of prefix i adds its probability to prefix j.
    is_next = _is_next(prefixes)
    repeats_last = last[None] == last[:, None]
    from_shorter = prefixes.log_p_before(repeats_last) + last_log_p[None]
    from_shorter = jnp.where(is_next, from_shorter, -jnp.inf)
    merged = jax.nn.logsumexp(from_shorter, axis=0)
    is_merged = is_next[..., None] & (last[None, :, None] == tokens[None, None])
    is_merged = is_merged.any(axis=1)  # (K, choices)
    extended = jnp.where(is_merged, -jnp.inf, extended)

    # A prefix stays the same after a BLANK, and after another frame of its last token.
    stays_blank = prefixes.log_p + log_p[BLANK]
    stays_token = jnp.logaddexp(prefixes.ends_token + last_log_p, merged)
    stays = jnp.logaddexp(stays_blank, stays_token)

    # The best of the K prefixes that stay and their K * choices extensions.
    scores = jnp.concatenate([stays, extended.reshape(-1)])
    _, best = jax.lax.top_k(scores, count)
    is_extension = best >= count
    parent = jnp.where(is_extension, (best - count) // choices, best)
    token = tokens[(best - count) % choices]
    lengths = prefixes.lengths[parent]
    rows = prefixes.tokens[parent]
    new_token = jnp.where(is_extension, token, rows[index, lengths])
    return Prefixes(
        tokens=rows.at[index, lengths].set(new_token),
        lengths=lengths + is_extension,
        ends_blank=jnp.where(is_extension, -jnp.inf, stays_blank[parent]),
        ends_token=jnp.where(is_extension, scores[best], stays_token[parent]),
    )


def _is_next(prefixes: Prefixes) -> Bool[Array, "K K"]:
    """Returns whether prefix j (column) is prefix i (row) with one more token."""
    is_equal = prefixes.tokens[None] == prefixes.tokens[:, None]  # (K, K, L)
    places = jnp.arange(prefixes.tokens.shape[1])[None, None]
    is_beyond = places >= prefixes.lengths[:, None, None]
    is_next = (is_equal | is_beyond).all(axis=2)
    is_next &= prefixes.lengths[None] == prefixes.lengths[:, None] + 1
    is_next &= jnp.isfinite(prefixes.log_p)[None]  # an empty slot may have the same tokens
    return is_next
