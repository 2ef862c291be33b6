"""The table of metrics, and scores compared with sacreBLEU and numbers worked out by hand."""

import math

import ml_collections
import pytest
import sacrebleu

from transformer.decoding.bleu import Language, bleu_language
from transformer.decoding.metrics import METRICS, applicable, compute_metrics

HYPOTHESES = ["Der Hund, „Rex“, läuft.", "Ein Mann schläft."]
REFERENCES = ['der hund , "rex" , läuft .', "Ein Mann liest."]


def score(
    hypotheses: list[str],
    references: list[str],
    language: str | None,
    tokenizer: str = "auto",
    others: tuple = (),
) -> dict:
    """Returns all metrics. `others`: more lists of references."""
    data = ml_collections.ConfigDict(
        {"source": "text" if language else "ids", "target_language": language or "out"}
    )
    data.bleu_tokenizer = tokenizer
    data.target_form = "text"
    return compute_metrics(hypotheses, [references, *others], bleu_language(data), METRICS)


def test_cased_bleu_and_chrf_equal_sacrebleu_on_raw_text():
    scores = score(HYPOTHESES, REFERENCES, "de")
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score)
    assert scores["bleu"] < scores["bleu_lowercase_tokenized"]
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert "tok:13a" in scores["bleu_signature"] and "case:mixed" in scores["bleu_signature"]
    assert scores["chrf_signature"].startswith("nrefs:1|case:mixed")


def test_perfect_translations():
    scores = score(REFERENCES, [f" {reference} " for reference in REFERENCES], "de")
    assert (
        scores["bleu"]
        == scores["bleu_lowercase_tokenized"]
        == scores["bleu_paper"]
        == pytest.approx(100.0)
    )
    assert scores["exact_match"] == 1.0
    assert score(HYPOTHESES, [HYPOTHESES[0], "other"], "de")["exact_match"] == 0.5


def test_several_references_by_hand():
    hypotheses, references = ["a b c d e", "X y z w"], ["a b c d x x x x x x", "x y z v"]
    scores = score(hypotheses, references, "fr", others=(["q r c d e", "X y z w"],))
    # All n-grams match one reference or the other but the two of "b c d e". The closest references
    # have 5 and 4 tokens.
    precisions = [9 / 9, 7 / 7, 5 / 5, 2 / 3]
    expected = 100 * math.exp(sum(map(math.log, precisions)) / 4)
    assert scores["bleu"] == scores["bleu_paper"] == pytest.approx(expected)
    assert scores["bleu_lowercase_tokenized"] == pytest.approx(expected)
    assert (
        scores["exact_match"] == 0.5 and score(hypotheses, references, "fr")["exact_match"] == 0.0
    )
    assert all(
        scores[f"{name}_signature"].startswith("nrefs:2|")
        for name in applicable(METRICS, "text")
        if name != "exact_match"
    )


def test_a_blank_reference_beside_another_changes_nothing():
    hypotheses, references = (
        ["ein Hund", "", "zwei kleine Katzen"],
        ["ein Hund läuft", "nichts", "zwei Katzen"],
    )
    one, two = (
        score(hypotheses, references, "de", others=others)
        for others in ((), (["", " ", "zwei Katzen"],))
    )
    names = applicable(METRICS, "text")
    assert [two[name] for name in names] == [one[name] for name in names]
    assert one["exact_match"] == 0.0


def test_only_the_metrics_that_are_named_are_computed(monkeypatch):
    monkeypatch.setitem(METRICS, "bleu_paper", None)
    scores = compute_metrics(
        HYPOTHESES, [REFERENCES], Language("de", "13a"), ("chrf", "exact_match")
    )
    assert set(scores) == {"chrf", "chrf_signature", "exact_match"}
