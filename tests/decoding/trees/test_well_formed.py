"""Outputs of the constraint are trees of their sentences, and the constraint forbids no such tree
within the limit.
"""

import functools
import random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.datasets.treebank import linearize
from tests.decoding.models import make_decoding_config
from tests.decoding.trees.grammar import LABELS
from tests.decoding.trees.test_linearized import random_symbols
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import PieceVocabulary
from transformer.decoding.batches import pad
from transformer.decoding.beam_search import SourceBatch, beam_search
from transformer.decoding.control.constraints import constrain
from transformer.decoding.history import History
from transformer.decoding.sampling import sample
from transformer.decoding.trees.linearized import fits, read_brackets
from transformer.decoding.trees.well_formed import WORD, make_rule, require_tree
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, PAD, SPECIAL_PIECES

SYMBOLS = [f"{side}{label}" for side in "()" for label in LABELS] + ["XX", ".", ","]
# Pieces that are no symbols: parts of words, one bracket, and a label without its other bracket.
OTHERS = ["(NP", "S", "\u2581(", "\u2581(FRAG", "\u2581dog", "\u2581the", "ma"]
PIECES = [*SPECIAL_PIECES, *(f"\u2581{symbol}" for symbol in SYMBOLS), *OTHERS]
VOCABULARY = PieceVocabulary(PIECES, [None, None])
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY)
LENGTH = 24
LONGEST = 120


class NoCache(NamedTuple):
    def reorder(self, parents):
        return self


class RandomModel(NamedTuple):
    """A model whose logits only depend on the last token and the position."""

    table: jax.Array

    def start_cache(self, source, beams, length):
        return NoCache()

    def decode_step(self, tokens, position, cache):
        return jnp.roll(self.table, position, axis=1)[tokens], cache


@functools.partial(jax.jit, static_argnums=0)
def search(method, table, source, limits):
    """Returns the hypotheses of a search under the constraint, four of each sentence if it can."""
    rule = make_rule(TOKENIZER)(source)
    adjust = functools.partial(constrain, {"well_formed": rule}, limits)
    lines = jnp.arange(len(source))
    sentences = SourceBatch(source, limits, LENGTH, lines=lines, adjust=adjust)
    beam_size = 1 if method == "greedy" else 4
    decoding_config = make_decoding_config(beam_size=beam_size)
    run = sample if method == "sample" else beam_search
    return run([RandomModel(table)], sentences, decoding_config, beam_size)


@pytest.mark.first_case
@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
@settings(max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(1, 6), min_size=8, max_size=8),
    extra=st.lists(st.integers(2, 8), min_size=8, max_size=8),
)
def test_all_outputs_are_trees_of_their_sentences(method, seed, lengths, extra):
    generator = np.random.default_rng(seed)
    # Some words have two tokens.
    rows = []
    for length in lengths:
        words = generator.choice(["\u2581dog ma", "\u2581the"], length)
        rows.append([*VOCABULARY.encode([" ".join(words)])[0], EOS])
    limits = np.array([len(row) - 1 + more for row, more in zip(rows, extra, strict=True)])
    table = generator.normal(size=(len(PIECES), len(PIECES))).astype(np.float32) * 3
    hypotheses, done = search(method, table, pad(rows, 8, 13), limits)
    assert done.all() and np.isfinite(hypotheses.scores[:, 0]).all()
    starts = [sum(PIECES[token].startswith("\u2581") for token in row) for row in rows]
    for row, num_words in enumerate(starts):
        for tokens in np.array(hypotheses.tokens[row])[np.isfinite(hypotheses.scores[row])]:
            output = tokens[: np.argmax(tokens == EOS)].tolist()
            symbols = [PIECES[token].removeprefix("\u2581") for token in output]
            assert fits(symbols, num_words) and len(symbols) <= limits[row], symbols
            assert set(output) <= {PIECES.index(f"\u2581{symbol}") for symbol in SYMBOLS}
            brackets = read_brackets(symbols).brackets
            assert all(start < end for _, start, end in brackets)
            # One bracket has all others, and is closed last.
            assert symbols[0] == f"({brackets[-1].label}" and brackets[-1][1:] == (0, num_words)


@functools.cache
def jitted():
    return jax.jit(require_tree)


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_a_tree_within_the_limit_is_never_forbidden(seed):
    """At the tightest limit, the length of the tree."""
    symbols = linearize(random_symbols(random.Random(seed), depth=2)).split()
    tokens = [PIECES.index(f"\u2581{symbol}") for symbol in symbols]
    num_words = sum(symbol == "XX" for symbol in symbols)
    row = np.full((1, 1, LONGEST), PAD)
    row[0, 0, : len(tokens)] = tokens
    source = jnp.full((1, LONGEST), PAD).at[0, :num_words].set(PIECES.index("\u2581dog"))
    rule = make_rule(TOKENIZER)(source)
    for position, token in enumerate([*tokens, EOS]):
        before = np.where(np.arange(LONGEST) < position, row, PAD)
        history = History(
            jnp.array(before), jnp.array(position), jnp.array([len(tokens)]), spelling=None
        )
        forbidden = jitted()(rule, history, jnp.zeros((1, 1, len(PIECES)), bool))[0, 0]
        assert not forbidden[token], (symbols, position)
        allowed = {PIECES[i] for i in np.flatnonzero(~forbidden)}
        assert allowed <= {f"\u2581{symbol}" for symbol in SYMBOLS} | {"</s>"}


@pytest.mark.parametrize(("leaf", "is_leaf"), [("XX", False), ("NN", True)])
def test_words_of_a_shared_vocabulary_are_not_leaves_beside_xx(leaf, is_leaf):
    symbols = ["(S", ")S", leaf, "$"]  # "$" is a tag, and a word of many sentences
    pieces = [*SPECIAL_PIECES, *(f"\u2581{symbol}" for symbol in symbols)]
    vocabulary = PieceVocabulary(pieces, [None, None])
    rule = make_rule(Tokenizer(vocabulary, vocabulary))(jnp.zeros((1, 1), int))
    assert (rule.kinds[pieces.index("\u2581$")] == WORD) == is_leaf


@pytest.mark.parametrize(
    ("symbols", "missing"),
    [(["(S", ")S", "dog"], "leaf such as XX"), (["(S", ")NP", "XX"], "label with both brackets")],
)
def test_a_vocabulary_without_symbols_is_refused(symbols, missing):
    vocabulary = PieceVocabulary(
        [*SPECIAL_PIECES, *(f"\u2581{symbol}" for symbol in symbols)], [None, None]
    )
    with pytest.raises(UserError, match=f"no token of the vocabulary is a {missing}; give the"):
        make_rule(Tokenizer(vocabulary, vocabulary))
