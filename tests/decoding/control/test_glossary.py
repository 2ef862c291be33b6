"""Glossaries: which terms a text has, and what contradicts itself."""

import pytest

from transformer.decoding.control.glossary import Glossary
from transformer.support.errors import UserError


def make(**entries) -> Glossary:
    return Glossary(
        (term, term.replace("_", " "), [translations]) for term, translations in entries.items()
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("A man rides a horse.", ["Pferd"]),
        ("Horses and a racehorse", []),
        ("A horse  race", ["Rennen"]),  # its words belong to the longer term
        ("a horse race, (horse)", ["Rennen", "Pferd"]),
        ("a horse race-horse", ["Rennen", "Pferd"]),
        ("horse horse", ["Pferd"]),
        ("kein Cafe\u0301", ["Kaffee"]),
        ("我在東京都", ["Tokio"]),
        ("C++, C", ["C plus"]),
        ("Horse", []),
    ],
)
def test_terms_are_found_at_the_boundaries_of_words_the_longest_first(source, found):
    entries = {
        "horse": "Pferd",
        "horse_race": "Rennen",
        "race": "Lauf",
        "Café": "Kaffee",
        "東京": "Tokio",
    }
    glossary = make(**entries, **{"C++": "C plus"})
    assert glossary.required(source, []) == [[translation] for translation in found]
    assert glossary.required(source, [["x"], ["Pferd"]])[:2] == [["x"], ["Pferd"]]


def test_a_longer_term_later_in_the_text_comes_first():
    assert make(a_b="short", b_c_d="long").required("a b c d", []) == [["long"]]


def test_a_file_has_alternatives_in_further_columns(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("horse\tPferd\tPferde\n\nhorse  race\tRennen\nhorse\tPferd\tPferde\n")
    assert Glossary.read(str(path)).required("horse, horse race", []) == [
        ["Rennen"],
        ["Pferd", "Pferde"],
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "horse\tPferd\n horse \tRoss\n",
            "FILE: line 2: 'horse' has other translations already, 'Pferd'; list all",
        ),
        ("horse", "FILE: line 1: must be a term with its translation"),
        ("\tPferd", "FILE: line 1: must be a term with its translation"),
        ("horse\tPferd\t ", "FILE: line 1: must be a term with its translation"),
    ],
)
def test_a_file_that_contradicts_itself_or_lacks_a_column_is_refused(content, message, tmp_path):
    (tmp_path / "terms").write_text(content)
    with pytest.raises(UserError) as caught:
        Glossary.read(str(tmp_path / "terms"))
    assert str(caught.value).replace(str(tmp_path / "terms"), "FILE").startswith(message)
