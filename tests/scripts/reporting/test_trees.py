"""Drawings of trees in the report's page."""

import re
from types import SimpleNamespace

import pytest

from scripts.reporting import page, trees
from scripts.reporting.scores import Comparison

WORDS = ["The", "dog", "sleeps", "<b>"]
REFERENCE = "(S (NP XX XX )NP (VP XX )VP . )S"


def texts(drawing, differs: bool) -> list[str]:
    return [node.text for node in drawing["nodes"] if node.differs == differs]


def test_what_differs_is_marked_in_both_trees():
    reference, output = trees.draw_pair(WORDS, REFERENCE, "(S (NP XX )NP (VP XX XX )VP . )S")
    assert texts(reference, True) == texts(output, True) == ["NP", "VP"]
    assert texts(output, False) == ["S", *WORDS] and output["title"] == "output"
    same, _ = trees.draw_pair(WORDS, REFERENCE, REFERENCE)
    assert not texts(same, True)
    # One of two equal brackets is missing.
    _, output = trees.draw_pair(["a"], "(NP XX )NP", "(NP (NP XX )NP )NP")
    assert texts(output, True) == ["NP"] and texts(output, False) == ["NP", "a"]
    # A bracket without words cannot be drawn.
    _, output = trees.draw_pair(["a"], "(S XX )S", "(S XX (NP )NP )S")
    assert texts(output, False) == ["S", "a"] and "repaired" in output["title"]


def test_a_bracket_stands_above_the_middle_of_its_words():
    drawing = trees.draw(WORDS, REFERENCE.split(), REFERENCE.split())
    nodes = {node.text: node for node in drawing["nodes"]}
    assert nodes["NP"].x == pytest.approx((nodes["The"].x + nodes["dog"].x) / 2)
    assert nodes["The"].parent == (nodes["NP"].x, nodes["NP"].y)
    assert nodes["S"].parent is None and nodes["NP"].parent == (nodes["S"].x, nodes["S"].y)
    assert nodes["S"].y < nodes["NP"].y < nodes["The"].y == nodes["sleeps"].y < drawing["height"]
    assert nodes["<b>"].y == nodes["NP"].y  # below S, so that no edges cross
    xs = [nodes[word].x for word in WORDS]
    assert xs == sorted(xs) and xs[-1] < drawing["width"]


def compared(form: str, hypotheses: list[str]) -> Comparison:
    evaluation = SimpleNamespace(
        config=SimpleNamespace(data=SimpleNamespace(target_form=form)),
        sources=[" ".join(WORDS)] * len(hypotheses),
        references=[REFERENCE] * len(hypotheses),
        hypotheses=hypotheses,
    )
    system = SimpleNamespace(evaluations=[evaluation], label="run")
    return Comparison([system], {}, [], {})


def test_only_differing_trees_are_shown_and_damaged_ones_are_repaired():
    assert trees.tree_sections(compared("text", ["a"])) == []
    (section,) = trees.tree_sections(compared("tree", [REFERENCE, "(S XX", ""]))
    assert [sentence["line"] for sentence in section.content["sentences"]] == [2, 3]
    html = page.render("trees", [section])
    assert html.count("output, repaired: it was no tree of the sentence") == 3 * 2
    assert html.count('aria-label="Tree of line') == 4 and "&lt;b&gt;" in html and "<b>" not in html
    assert re.findall(r'<text [^>]*class="differs">(\w+)<', html) == ["NP", "VP", "S", "NP", "VP"]
    (section,) = trees.tree_sections(compared("tree", [REFERENCE]))
    assert section.notes and not section.content["sentences"]


@pytest.mark.parametrize("reference", ["", "(S XX )S", "(S XX"])
def test_a_reference_of_other_words_is_not_drawn(reference):
    other = compared("tree", [REFERENCE])
    other.first.references[:] = [reference]
    (section,) = trees.tree_sections(other)
    assert not section.content["sentences"]
