import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.datasets.treebank import linearize
from tests.decoding.trees.grammar import LABELS
from transformer.decoding.trees.linearized import (
    Bracket,
    fits,
    is_leaf,
    print_tree,
    read_brackets,
    repair,
)

SYMBOLS = [f"{side}{label}" for side in "()" for label in ("S", "NP", "VP")] + ["XX", ".", "Mr."]
TEXT = "(S (NP NNP NNP )NP (VP VBZ )VP . )S"
TREE = TEXT.split()
WORDS = ["Mr.", "Vinken", "smokes", "."]


def random_symbols(generator: random.Random, depth: int = 0) -> list[str]:
    """Returns a tree with one outermost bracket."""
    children = []
    for _ in range(generator.randint(1, 3)):
        is_word = depth > 3 or generator.random() < 0.5
        children += ["NN"] if is_word else random_symbols(generator, depth + 1)
    label = generator.choice(LABELS)
    return [f"({label}", *children, f"){label}"]


def test_the_example_of_the_documentation():
    assert linearize(TREE) == "(S (NP XX XX )NP (VP XX )VP . )S"
    assert print_tree(WORDS, linearize(TREE).split()) == (
        "(TOP (S (NP (XX Mr.) (XX Vinken)) (VP (XX smokes)) (. .)))"
    )
    assert read_brackets(TREE) == (
        ["NNP", "NNP", "VBZ", "."],
        [Bracket("NP", 0, 2), Bracket("VP", 2, 3), Bracket("S", 0, 4)],
    )


@pytest.mark.parametrize("text", ["(S XX", "(S XX )NP", "XX )S", "(S (NP XX )S )NP"])
def test_brackets_that_are_not_balanced_are_no_tree(text):
    with pytest.raises(ValueError, match="closes no bracket|is not closed"):
        read_brackets(text.split())


@given(st.lists(st.sampled_from(SYMBOLS), max_size=30), st.integers(1, 8))
def test_repair_makes_a_tree_with_the_leaves_of_the_sentence(symbols, num_leaves):
    tree = repair(symbols, num_leaves)
    assert fits(tree, num_leaves)
    assert all(start < end for _, start, end in read_brackets(tree).brackets)
    # The first leaves are kept in order, and no label is lost but those of empty brackets.
    leaves = [symbol for symbol in symbols if is_leaf(symbol)]
    kept = [symbol for symbol in tree if is_leaf(symbol)]
    assert kept == (leaves + ["XX"] * num_leaves)[:num_leaves]
    # Repairing again, like printing and counting, changes nothing.
    assert repair(tree, num_leaves) == tree
    assert print_tree(["w"] * num_leaves, tree).count(" w)") == num_leaves


@given(st.integers(0, 10_000))
def test_repair_leaves_trees_alone(seed):
    tree = random_symbols(random.Random(seed))
    assert repair(tree, sum(map(is_leaf, tree))) == tree


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        ("(S (NP XX XX )NP (VP XX", "(S (NP XX XX )NP (VP XX )VP )S"),
        ("XX )NP (VP XX )VP XX )S", "(S (NP XX )NP (VP XX )VP XX )S"),
        ("(S (NP XX (PP XX )NP XX )S", "(S (NP XX (PP XX )PP )NP XX )S"),
        ("(S (NP XX )NP . )S", "(S (NP XX )NP . XX )S"),
        ("(S XX XX . (NP XX XX )NP )S", "(S XX XX . )S"),
        ("", "XX XX XX"),
    ],
)
def test_repair_by_the_documented_rule(symbols, expected):
    assert repair(symbols.split(), 3) == expected.split()


def test_a_long_and_deep_output_is_repaired_without_recursion():
    assert fits(repair(["(NP"] * 5000 + ["XX"] * 3000, 300), 300)
