"""Scores, compared with numbers worked out by hand."""

import math
import re

import pytest
import sacrebleu

from transformer.decoding import bleu

HYPOTHESES = ["Der Hund, „Rex“, läuft.", "Ein Mann schläft."]
REFERENCES = ['der hund , "rex" , läuft .', "Ein Mann liest."]


def test_preparation_by_hand():
    # Moses replaces German quotes by escaped straight ones and splits off punctuation.
    assert bleu.lowercase_tokenize(HYPOTHESES, "de") == [
        "der hund , &quot; rex &quot; , läuft .",
        "ein mann schläft .",
    ]


def test_lowercase_tokenized_bleu_by_hand():
    scores = bleu.score(HYPOTHESES, REFERENCES, "de")
    # Both sides have 9 + 4 tokens. In the first pair all 9 + 8 + 7 + 6 n-grams match; in the second "ein", "mann", "."
    # and "ein mann" do.
    precisions = [12 / 13, 9 / 11, 7 / 9, 6 / 7]
    expected = 100 * math.exp(sum(map(math.log, precisions)) / 4)
    assert scores.bleu_lowercase_tokenized == pytest.approx(expected)
    assert "tok:none" in scores.bleu_lowercase_tokenized_signature
    assert "sacremoses" in scores.bleu_lowercase_tokenized_signature


def test_cased_bleu_and_chrf_equal_sacrebleu_on_raw_text():
    scores = bleu.score(HYPOTHESES, REFERENCES, "de")
    assert scores.bleu == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score)
    assert scores.bleu < scores.bleu_lowercase_tokenized
    assert scores.chrf == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert "tok:13a" in scores.bleu_signature and "case:mixed" in scores.bleu_signature
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed")


def test_perfect_translations():
    scores = bleu.score(REFERENCES, [f" {reference} " for reference in REFERENCES], "de")
    assert scores.bleu == scores.bleu_lowercase_tokenized == pytest.approx(100.0)
    assert scores.exact_match == 1.0
    assert bleu.score(HYPOTHESES, [HYPOTHESES[0], "other"], "de").exact_match == 0.5


def test_integers_are_not_tokenized_further():
    scores = bleu.score(["1 2 3 4 15", "7 8"], ["1 2 3 4 5", "7 8"], None)
    precisions = [6 / 7, 4 / 5, 2 / 3, 1 / 2]
    assert scores.bleu == pytest.approx(100 * math.exp(sum(map(math.log, precisions)) / 4))
    assert scores.bleu == scores.bleu_lowercase_tokenized
    assert "tok:none" in scores.bleu_signature


@pytest.mark.parametrize(
    ("language", "tokenizer"), [("de", "13a"), ("fr", "13a"), ("zh", "zh"), ("zh-CN", "zh"), ("ja", "char|ja-mecab.*")]
)
def test_tokenizer_follows_the_language(language, tokenizer):
    signature = bleu.score(["a b c d"], ["a b c d"], language).bleu_signature
    assert re.search(rf"tok:({tokenizer})\|", signature)
