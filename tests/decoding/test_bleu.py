"""BLEU of prepared texts, compared with numbers worked out by hand."""

import math
import re

import pytest

from tests.decoding.test_metrics import HYPOTHESES, REFERENCES, score
from transformer.decoding import bleu


def test_preparation_by_hand():
    # Moses replaces German quotes by escaped straight ones and splits off punctuation.
    assert bleu.lowercase_tokenize(HYPOTHESES, "de") == [
        "der hund , &quot; rex &quot; , läuft .",
        "ein mann schläft .",
    ]


def test_lowercase_tokenized_bleu_by_hand():
    scores = score(HYPOTHESES, REFERENCES, "de")
    # Both sides have 9 + 4 tokens. In the first pair all 9 + 8 + 7 + 6 n-grams match; in the second
    # "ein", "mann", "." and "ein mann" do.
    precisions = [12 / 13, 9 / 11, 7 / 9, 6 / 7]
    expected = 100 * math.exp(sum(map(math.log, precisions)) / 4)
    assert scores["bleu_lowercase_tokenized"] == pytest.approx(expected)
    assert "tok:none" in scores["bleu_lowercase_tokenized_signature"]
    prepared = r"\|prepared:sacremoses\.[\d.]+\.normalized\.tokenized\.lowercased$"
    assert re.search(prepared, scores["bleu_lowercase_tokenized_signature"])


PAPER_HYPOTHESES = ["Der „Science-Fiction“-Film läuft.", "Es kostet 5,30 Euro."]
PAPER_REFERENCES = ["Der “Science-Fiction”-Film läuft !", "Es kostet 5,30 Dollar."]


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("ein rich-text Format", "ein rich ##AT##-##AT## text Format"),
        ("Film - Fest -los a- b", "Film - Fest -los a- b"),
        ("Nord-Süd-Achse", "Nord ##AT##-##AT## Süd ##AT##-##AT## Achse"),
        ("A-1-b", "A ##AT##-##AT## 1-b"),  # the first match consumes the 1
        ("A-ä-b", "A ##AT##-##AT## ä ##AT##-##AT## b"),  # ä has two bytes
        ("a--b", "a ##AT##-##AT## -b"),
    ],
)
def test_compounds_are_split_as_perl_does(text, split):
    """The expected texts are the output of perl -ple with the substitution of get_ende_bleu.sh."""
    assert bleu.split_compounds(text) == split


def test_preparation_of_the_papers_measure_by_hand():
    # The rules replace upper quotes, not the lower one. Moses leaves 5,30 whole and escapes quotes
    # and ampersands. The period stays with German abbreviations.
    assert bleu.paper_tokenize([*PAPER_HYPOTHESES, "A & B… usw. so."], "de-DE") == [
        "Der „ Science ##AT##-##AT## Fiction &quot; -Film läuft .",
        "Es kostet 5,30 Euro .",
        "A &amp; B ... usw. so .",
    ]
    assert bleu.paper_tokenize(["L’arc-en-ciel, c’est 3,5 % !"], "fr") == [
        "L&apos; arc-en-ciel , c&apos; est 3,5 % !"
    ]


def test_the_papers_measure_by_hand():
    scores = score(PAPER_HYPOTHESES, PAPER_REFERENCES, "de")
    # Tokens: Der „ Science @ Fiction " -Film läuft . and Es kostet 5,30 Euro . (9 + 5), against
    #         Der " Science @ Fiction " -Film läuft ! and Es kostet 5,30 Dollar . (9 + 5).
    # The first pair matches in 7, 5, 4 and 3 n-grams, the second in 4, 2, 1 and 0.
    precisions = [11 / 14, 7 / 12, 5 / 10, 3 / 8]
    assert scores["bleu_paper"] == pytest.approx(100 * math.exp(sum(map(math.log, precisions)) / 4))
    assert re.fullmatch(
        r"nrefs:1\|case:mixed\|eff:no\|tok:none\|smooth:none\|version:[\d.]+\|"
        r"prepared:sacremoses\.[\d.]+\.plain-punctuation\.tokenized\.compounds-split",
        scores["bleu_paper_signature"],
    )


def test_the_papers_measure_penalizes_brevity_and_does_not_smooth():
    # 4 of 4 tokens, against 6: the penalty is exp(1 - 6 / 4).
    assert score(["a b c d"], ["a b c d e f"], "fr")["bleu_paper"] == pytest.approx(
        100 * math.exp(-0.5)
    )
    assert score(["a b c x"], ["a b c d"], "fr")["bleu_paper"] == 0.0
    assert "compounds-split" not in score(["a"], ["a"], "fr")["bleu_paper_signature"]


def test_integers_are_not_tokenized_further():
    scores = score(["1 2 3 4 15", "7 8"], ["1 2 3 4 5", "7 8"], None)
    precisions = [6 / 7, 4 / 5, 2 / 3, 1 / 2]
    assert scores["bleu"] == pytest.approx(100 * math.exp(sum(map(math.log, precisions)) / 4))
    assert scores["bleu"] == scores["bleu_lowercase_tokenized"] == scores["bleu_paper"]
    assert "tok:none" in scores["bleu_signature"]
    assert scores["bleu_lowercase_tokenized_signature"].endswith("|prepared:lowercased")
    assert scores["bleu_paper_signature"].endswith("|prepared:none")


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("languages", "tokenizer"),
    [
        ("de fr deu_Latn ms-MY es-BO en_TH", "13a"),
        ("zh zh-CN zh_TW zho zho_Hans cmn cmn_Hant yue_Hant", "zh"),
        ("ja jpn jpn_Jpan", "char|ja-mecab.*"),
        ("ko kor kor_Hang", "char|ko-mecab.*"),
        ("th tha tha_Thai lo lao_Laoo km khm_Khmr my mya_Mymr shn_Mymr", "char"),
    ],
)
def test_tokenizer_follows_the_language(languages, tokenizer):
    for language in languages.split():
        signature = score(["a b c d"], ["a b c d"], language)["bleu_signature"]
        assert re.search(rf"tok:({tokenizer})\|", signature), language


def test_thai_words_without_spaces_have_a_score_and_a_key_overrides_the_tokenizer():
    # 11 of 12 characters are equal, up to the last: n-grams 11/12, 10/11, 9/10, 8/9 are in the
    # reference.
    scores = score(["กขคงจฉชซฌญฎฏ"], ["กขคงจฉชซฌญฎฐ"], "tha_Thai")
    assert scores["bleu"] == pytest.approx(100 * (8 / 12) ** 0.25)
    assert score(["กขคงจฉชซฌญฎฏ"], ["กขคงจฉชซฌญฎฐ"], "tha_Thai", "13a")["bleu"] == 0.0
    assert "tok:char|" in score(["1 2"], ["1 2"], None, "char")["bleu_signature"]
