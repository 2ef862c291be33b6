"""Bracket scores against the output of EVALB, which is recorded here."""

import pytest

from scripts.datasets.treebank import linearize
from scripts.results.sufficient_statistics import additive_metrics
from transformer.decoding import bleu, metrics
from transformer.decoding.trees import bracket_scores
from transformer.support.errors import UserError

# References with their tags, and hypotheses.
PAIRS = [
    ("(S (NP DT NN )NP (VP VBZ )VP . )S", "(S (NP XX XX )NP (VP XX )VP . )S"),
    (
        "(S (NP DT NN )NP (VP VBZ (NP NNP )NP )VP . )S",
        "(S (NP XX (NP XX )NP )NP (VP XX XX )VP . )S",
    ),
    # ADVP and PRT are equal, and the final period is in no bracket.
    (
        "(S (VP VB (PRT RP )PRT (NP NN )NP )VP . )S",
        "(S (VP XX (ADVP XX )ADVP (NP XX )NP . )VP )S",
    ),
    (
        "(S `` (S (NP PRP )NP (VP VBZ )VP )S , '' (NP NNP )NP (VP VBD )VP . )S",
        "(S `` (NP XX (VP XX )VP )NP , '' (NP XX )NP (VP XX . )VP )S",
    ),
    # Two equal brackets match two, and not the third.
    ("(S (NP (NP NN )NP )NP (VP VBZ )VP )S", "(S (NP (NP (NP XX )NP )NP )NP (NP XX )NP )S"),
    # Errors: not closed, a word missing, and other words.
    ("(S (NP NN )NP (VP VBZ (NP NN )NP )VP . )S", "(S (NP XX )NP (VP XX (NP XX )NP . )S"),
    ("(S (NP NN )NP (VP VBZ (NP NN )NP )VP . )S", "(S (NP XX )NP (VP XX )VP . )S"),
    ("(S (NP NN )NP (VP VBZ )VP . )S", "(S (NP XX )NP (PRN : )PRN (VP )VP )S"),
    # The tag of the reference counts, not the leaf of the hypothesis.
    ("(NP NN : )NP", "(FRAG XX . )FRAG"),
    (
        "(S (NP DT NN )NP (VP VBZ (PP IN (NP NNP )NP )PP )VP . )S",
        "(S (NP XX XX )NP (VP XX (PP XX XX )PP (NP )NP )VP XX )S",
    ),
]
REFERENCES = [linearize(reference.split()) for reference, _ in PAIRS]
HYPOTHESES = [hypothesis for _, hypothesis in PAIRS]
# EVALB's columns of matched, gold and test brackets; zeros for its errors.
COUNTS = [
    *[(3, 3, 3), (3, 4, 4), (4, 4, 4), (4, 6, 5), (3, 4, 5)],
    *[(0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 1, 1), (4, 5, 4)],
]
# What EVALB prints for all sentences.
EVALB = {
    "bracket_recall": "77.78",
    "bracket_precision": "80.77",
    "bracket_f1": "79.25",
    "bracket_complete_match": "28.57",
    "bracket_errors": "3.00",
}
LANGUAGE = bleu.Language(None, "none", "tree")


@pytest.mark.parametrize("leaves", [linearize, " ".join])
def test_the_scores_are_those_of_evalb(leaves):
    references = [leaves(reference.split()) for reference, _ in PAIRS]
    counts = bracket_scores.statistics(HYPOTHESES, references)
    assert [tuple(row[:3]) for row in counts.tolist()] == COUNTS
    scores = metrics.compute_metrics(HYPOTHESES, [references], LANGUAGE, metrics.METRICS)
    assert {name: f"{scores[name]:.2f}" for name in EVALB} == EVALB
    # The three errors have 4 + 4 + 3 brackets of their references.
    assert scores["bracket_f1_with_errors"] == pytest.approx(100 * 2 * 21 / (27 + 26 + 11))
    assert scores["bracket_f1_signature"] == bracket_scores.SIGNATURE


def test_a_sentence_of_punctuation_counts_in_no_sum():
    (row,) = bracket_scores.statistics(["(NP"], ["(NP : . )NP"])
    assert not row.any()


def test_no_output_is_an_error_of_each_sentence():
    scores = metrics.compute_metrics(
        [""] * len(REFERENCES), [REFERENCES], LANGUAGE, metrics.METRICS
    )
    assert scores["bracket_f1"] == scores["bracket_f1_with_errors"] == 0
    assert scores["bracket_errors"] == len(REFERENCES)


def test_a_reference_that_is_no_tree_is_refused():
    with pytest.raises(UserError, match=r"the reference '\(S XX' is no linearized tree"):
        bracket_scores.statistics(["XX", "XX"], ["(S XX )S", "(S XX"])


def test_only_trees_have_bracket_scores():
    trees = {name for name in metrics.METRICS if name.startswith("bracket_")}
    text = metrics.compute_metrics(
        HYPOTHESES, [REFERENCES], bleu.Language("de", "13a"), metrics.METRICS
    )
    assert trees == set(bracket_scores.SCORES) and not trees & set(text)


def test_the_comparison_of_runs_sums_the_same_counts():
    metric = additive_metrics(LANGUAGE)["bracket_f1"]
    sums = metric.statistics(HYPOTHESES, REFERENCES).sum(axis=0, keepdims=True)
    assert f"{metric.score(sums).item():.2f}" == EVALB["bracket_f1"]
    assert "bracket_f1" not in additive_metrics(bleu.Language("de", "13a"))
