"""The constraint that outputs are linearized trees with a leaf for each word of the source.

Only tokens that are whole symbols may come: a bracket with its label, or a leaf. A tree is one
bracket with all others, so that an output ends when its first bracket is closed.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.history import Forbidden, History
from transformer.decoding.trees.linearized import LEAF, PUNCTUATION, is_close, is_open
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, SPECIAL, WORD_START

# Tags of the Penn Treebank, the leaves of --leaves=tags.
TAGS = (
    "CC CD DT EX FW IN JJ JJR JJS LS MD NN NNS NNP NNPS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH "
    "VB VBD VBG VBN VBP VBZ WDT WP WP$ WRB # $ -LRB- -RRB- HYPH NFP AFX ADD"
)
LEAVES = {LEAF, *PUNCTUATION, *TAGS.split()}
OTHER, OPEN, CLOSE, WORD = range(4)


class TreeRule(NamedTuple):
    """The value of the constraint.

    kinds: OPEN, CLOSE or WORD (a leaf) of each target token; OTHER is forbidden.
    labels: a number for the label of each bracket, from 1 on.
    num_words: the number of leaves of each output.
    """

    kinds: Int[Array, " V"]
    labels: Int[Array, " V"]
    num_words: Int[Array, " B"]


def make_rule(tokenizer: Tokenizer) -> Callable[[Int[Array, "B S"]], TreeRule]:
    """Returns the function from source tokens to the value of the constraint.

    Words of a source are its tokens that begin with a space.

    Raises UserError if the vocabulary has no leaf, or no label with both brackets, as one token.
    """
    pieces = tokenizer.target.pieces
    symbols = [
        piece.removeprefix(WORD_START) if piece.startswith(WORD_START) else "" for piece in pieces
    ]
    symbols[:SPECIAL] = [""] * SPECIAL
    # A label needs both brackets.
    names = {symbol[1:] for symbol in symbols if is_open(symbol)}
    names &= {symbol[1:] for symbol in symbols if is_close(symbol)}
    numbers = {name: number for number, name in enumerate(sorted(names - {""}), 1)}
    # Words of the source may be pieces with the spelling of a tag.
    leaves = {LEAF, *PUNCTUATION} if LEAF in symbols else LEAVES
    kinds = np.full(len(pieces), OTHER)
    labels = np.zeros(len(pieces), int)
    for token, symbol in enumerate(symbols):
        if symbol in leaves:
            kinds[token] = WORD
        elif symbol[1:] in numbers and (is_open(symbol) or is_close(symbol)):
            kinds[token] = OPEN if is_open(symbol) else CLOSE
            labels[token] = numbers[symbol[1:]]
    for kind, what in ((OPEN, "label with both brackets"), (WORD, "leaf such as XX")):
        if kind not in kinds:
            raise UserError(
                f"decoding.well_formed=True: no token of the vocabulary is a {what}; give the "
                "symbols of trees in tokenizer.user_symbols, as configs/parsing.py does"
            )
    starts = jnp.array([piece.startswith(WORD_START) for piece in tokenizer.source.pieces])

    def rule(source):
        # Some vocabularies do not mark the first word.
        num_words = 1 + starts[source[:, 1:]].sum(axis=1)
        return TreeRule(jnp.array(kinds), jnp.array(labels), num_words)

    return rule


def require_tree(rule: TreeRule, history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids the tokens after which an output cannot become a tree within its limit."""
    kinds = rule.kinds[history.tokens]  # (B, K, L); PAD after the last token is OTHER
    depths = jnp.cumsum((kinds == OPEN).astype(int) - (kinds == CLOSE), axis=2)
    depth = depths[..., -1:]  # (B, K, 1)
    missing = rule.num_words[:, None, None] - (kinds == WORD).sum(axis=2, keepdims=True)

    # The innermost open bracket is the last one that opened at this depth.
    places = jnp.arange(kinds.shape[2])[None, None]
    innermost = jnp.where((kinds == OPEN) & (depths == depth), places, -1).max(axis=2)
    label = jnp.take_along_axis(
        rule.labels[history.tokens], jnp.maximum(innermost, 0)[..., None], axis=2
    )
    is_empty = innermost[..., None] == history.position - 1

    # After an opening bracket, the missing leaves and all closing brackets must still fit.
    rest = history.limits[:, None, None] - history.position
    is_first = history.position == 0
    can_open = ((depth > 0) | is_first) & (missing > 0) & (missing + depth + 2 <= rest)
    can_close = (depth > 0) & ~is_empty & ((depth > 1) | (missing == 0))
    next_kinds = rule.kinds[None, None]  # (1, 1, V)
    allowed = (next_kinds == OPEN) & can_open
    allowed |= (next_kinds == WORD) & (depth > 0) & (missing > 0)
    allowed |= (next_kinds == CLOSE) & can_close & (rule.labels[None, None] == label)
    allowed = allowed.at[..., EOS].set((depth[..., 0] == 0) & ~is_first)
    return forbidden | ~allowed
