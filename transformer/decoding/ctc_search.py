"""Prefix beam search for models of training.objective=ctc (Graves et al. 2006; Hannun et al. 2014).

The probability of a prefix, a sequence of tokens, is the sum over all alignments, one label per
frame, that collapse to it. Alignments that end in BLANK and those that end in the prefix's last
token extend differently.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config
from transformer.decoding import ensemble
from transformer.decoding.beam_search import Hypotheses, SearchResult, Sentences, length_penalty
from transformer.decoding.top_k import gather
from transformer.model.kernels import FLOAT32
from transformer.model.single_stack import BLANK, CtcTransformer, compact, emits_token
from transformer.support.special_tokens import BOS, EOS, PAD, UNK

CHUNK_BYTES = 2**28  # of the logits of the frames that are searched at once


class Prefixes(NamedTuple):
    """The K best prefixes of a source, or of each, with their numbers of tokens and
    log-probabilities.
    """

    tokens: Int[Array, "*B K L"]
    lengths: Int[Array, "*B K"]
    ends_blank: Float[Array, "*B K"]
    ends_token: Float[Array, "*B K"]

    @property
    def log_p(self) -> Float[Array, "*B K"]:
        return jnp.logaddexp(self.ends_blank, self.ends_token)


def ctc_search(
    models: Sequence[CtcTransformer], sentences: Sentences, config: Config, n_best: int
) -> SearchResult:
    """Returns the `n_best` translations of each row, and True for each row: all are done.

    A beam of 1 takes the most likely label of each frame. The probabilities of tokens are not
    known: `token_log_probabilities` has the whole log-probability at the end of a hypothesis. All
    models have the same number of frames. The limits of `sentences` only mark filler rows. `config`
    is the group `config.decoding`.
    """
    source, beam_size = sentences.source, config.beam_size
    is_frame = models[0].frames(source) != PAD
    hidden = tuple(model.hidden(source) for model in models)

    def search_row(hidden, is_frame):  # (F, D) of each model, (F,)
        log_p = ensemble.log_probabilities(
            [model.logits(x) for model, x in zip(models, hidden, strict=True)]
        )
        log_p = log_p.at[:, jnp.array((BOS, EOS, UNK) if config.forbid_unk else (BOS, EOS))].set(
            -jnp.inf
        )
        return _greedy(log_p, is_frame) if beam_size == 1 else _search(log_p, is_frame, beam_size)

    row_bytes = FLOAT32.itemsize * len(models[0].output_table_and_bias[0]) * is_frame.shape[1]
    # A divisor: a smaller last chunk would be another program, whose rounding differs.
    divisors = [size for size in range(1, len(source) + 1) if len(source) % size == 0]
    rows = max(size for size in divisors if size == 1 or size * row_bytes <= CHUNK_BYTES)
    prefixes = jax.lax.map(lambda row: search_row(*row), (hidden, is_frame), batch_size=rows)
    scores = prefixes.log_p / length_penalty(prefixes.lengths + 1, config)
    scores = jnp.where((sentences.limits < 0)[:, None], -jnp.inf, scores)
    scores, best = jax.lax.top_k(scores, n_best)
    tokens, lengths, totals = (
        gather(x, best) for x in (prefixes.tokens, prefixes.lengths, prefixes.log_p)
    )
    is_end = jnp.arange(tokens.shape[2])[None, None] == lengths[:, :, None]
    hypotheses = Hypotheses(
        jnp.where(is_end, EOS, tokens), scores, jnp.where(is_end, totals[:, :, None], 0.0)
    )
    return hypotheses, jnp.ones(len(source), bool)


def _greedy(log_p: Float[Array, "F V"], is_frame: Bool[Array, "F"]) -> Prefixes:
    labels = jnp.where(is_frame, jnp.argmax(log_p, axis=-1), BLANK)[None]
    kept = emits_token(labels)
    total = jnp.sum(jnp.where(is_frame, jnp.max(log_p, axis=-1), 0.0))[None]
    tokens = jnp.pad(compact(labels, kept), ((0, 0), (0, 1)))
    return Prefixes(tokens, jnp.sum(kept, axis=1), total, jnp.full_like(total, -jnp.inf))


def _search(log_p: Float[Array, "F V"], is_frame: Bool[Array, "F"], beam_size: int) -> Prefixes:
    tokens, nothing = jnp.full((beam_size, len(log_p) + 1), PAD), jnp.full(beam_size, -jnp.inf)
    start = Prefixes(tokens, jnp.zeros(beam_size, jnp.int32), nothing.at[0].set(0.0), nothing)

    def advance(prefixes, frame):
        log_p, is_real = frame
        after = _advance(prefixes, log_p)
        return Prefixes(
            *(jnp.where(is_real, new, old) for new, old in zip(after, prefixes, strict=True))
        ), None

    return jax.lax.scan(advance, start, (log_p, is_frame))[0]


def _advance(prefixes: Prefixes, log_p: Float[Array, "V"]) -> Prefixes:
    """Returns the best prefixes after one more frame."""
    count, length = prefixes.tokens.shape
    index = jnp.arange(count)
    # PAD for the empty prefix, which is padded to its end
    last = prefixes.tokens[index, prefixes.lengths - 1]
    last_log_p = jnp.where(prefixes.lengths > 0, log_p[last], -jnp.inf)

    # Extensions of each prefix by the K + 1 likeliest tokens suffice for the K best: only a
    # repeated token may score lower than a less likely one, since it needs a BLANK before it. An
    # extension that equals another prefix is removed below; that prefix has at least its score.
    choices = min(count + 1, len(log_p))
    gained, tokens = jax.lax.top_k(log_p.at[BLANK].set(-jnp.inf), choices)
    is_repeated = tokens[None] == last[:, None]
    extended = gained[None] + jnp.where(
        is_repeated, prefixes.ends_blank[:, None], prefixes.log_p[:, None]
    )

    # An extension may be a prefix that is there already.
    is_equal = prefixes.tokens[None] == prefixes.tokens[:, None]
    is_beyond = jnp.arange(length)[None, None] >= prefixes.lengths[:, None, None]
    is_next = (is_equal | is_beyond).all(axis=2) & (
        prefixes.lengths[None] == prefixes.lengths[:, None] + 1
    )
    is_next &= jnp.isfinite(prefixes.log_p)[None]  # an empty slot may have the same tokens
    repeats_last = last[None] == last[:, None]
    from_shorter = (
        jnp.where(repeats_last, prefixes.ends_blank[:, None], prefixes.log_p[:, None])
        + last_log_p[None]
    )
    merged = jax.nn.logsumexp(jnp.where(is_next, from_shorter, -jnp.inf), axis=0)
    is_there = (is_next[:, :, None] & (last[None, :, None] == tokens[None, None])).any(axis=1)
    extended = jnp.where(is_there, -jnp.inf, extended)

    stays_blank = prefixes.log_p + log_p[BLANK]
    stays_token = jnp.logaddexp(prefixes.ends_token + last_log_p, merged)
    scores = jnp.concatenate([jnp.logaddexp(stays_blank, stays_token), extended.reshape(-1)])
    _, best = jax.lax.top_k(scores, count)
    is_extension = best >= count
    parent = jnp.where(is_extension, (best - count) // choices, best)
    token = tokens[(best - count) % choices]
    lengths, rows = prefixes.lengths[parent], prefixes.tokens[parent]
    return Prefixes(
        rows.at[index, lengths].set(jnp.where(is_extension, token, rows[index, lengths])),
        lengths + is_extension,
        jnp.where(is_extension, -jnp.inf, stays_blank[parent]),
        jnp.where(is_extension, scores[best], stays_token[parent]),
    )
