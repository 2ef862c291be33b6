"""`scripts.get_data --perturb`: copies of parallel text with capitals, typos, emoji and tags."""

import gzip
import json
import re
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import get_data
from scripts.datasets.perturbed import EMOJI, KINDS, TYPOS, perturb
from tests.checkpoints.workdirs import run

SOURCE = "A man, who rides a horse, doesn't sleep."
TARGET = "Ein Mann, der ein Pferd reitet, schläft nicht."
LINES = [
    (SOURCE, TARGET),
    ("", ""),
    ("Two dogs\u2028play in\x85the\x0bsnow!", "Zwei Hunde\x1cspielen im Schnee!"),
    ("A straße", "Eine Straße"),
    ("?", "?"),
    ("Only one side", " "),
    ("A man sleeps.", "Ein Mann schläft."),
]
INSERTIONS = {
    "emoji": "|".join(map(re.escape, EMOJI.split())),
    "numbers": r"\d{1,6}",
    "placeholders": r"%[sd]|%\([a-z]+\)s|\$?\{[a-z]+\}|https://[a-z]+\.com/[a-z]+|[a-z]+@[a-z]+\.org",
    "tags": r"</?[a-z]+>",
}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "clean"
    path.mkdir()
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in LINES).encode()
        (path / f"train.{language}").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
        name = f"test.{language}" + (".gz" if side else "")
        (path / name).write_bytes(gzip.compress(text) if side else text)
    return path


def make(folder, output, *flags) -> dict:
    flags = [f"--perturb={folder}", f"--output={output}", *flags]
    assert run(get_data, "--pair=en-de", *flags) == 0
    return json.loads((output / "data.json").read_text())


def error(capsys, *flags) -> str:
    capsys.readouterr()
    assert run(get_data, *flags) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


def lines(path) -> list[str]:
    text = path.read_bytes().decode()
    assert text.endswith("\n")
    return text[:-1].split("\n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_the_splits_and_lines_of_its_data(folder, tmp_path, capsys, kind):
    record = make(folder, tmp_path / "copy", f"--kind={kind}")
    assert json.loads(capsys.readouterr().out) == record
    assert (record["by"], record["kind"], record["seed"]) == ("perturb", kind, 0)
    for stem in ("train", "test"):
        # Byte order marks and carriage returns are not text. Other line breaks are.
        sides = [lines(tmp_path / "copy" / f"{stem}.{language}") for language in ("en", "de")]
        assert list(zip(*sides, strict=True)) == [perturb(pair, kind, 0) for pair in LINES]
    changed = sum(perturb(pair, kind, 0) != pair for pair in LINES)
    assert record["changed"] == 2 * changed > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_depends_on_the_seed_and_its_source(kind):
    pairs = [perturb((f"{SOURCE} {i}x", TARGET), kind, seed) for i in range(20) for seed in (1, 1)]
    assert pairs[::2] == pairs[1::2]
    others = [perturb((f"{SOURCE} {i}x", TARGET), kind, 2) for i in range(20)]
    is_random = kind in ("typos", *INSERTIONS)
    assert (others != pairs[::2]) == is_random


@given(st.text(), st.text(), st.sampled_from(list(KINDS)))
def test_blank_sides_stay_and_no_line_ends_appear(source, target, kind):
    pair = perturb((source, target), kind, 0)
    if not source.strip() or not target.strip():
        assert pair == (source, target)
    for before, after in zip((source, target), pair, strict=True):
        assert after.strip() or not before.strip()
        assert after.count("\n") <= before.count("\n")


@given(st.text(), st.text())
def test_capitals_are_the_uppercase_text_of_both_sides(source, target):
    pair = source, target
    is_blank = not all(text.strip() for text in pair)
    assert perturb(pair, "capitals", 0) == (pair if is_blank else (source.upper(), target.upper()))
    # Titles only change case.
    titles = perturb(pair, "titles", 0)
    assert [text.upper() for text in titles] == [text.upper() for text in pair]


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        (
            "titles",
            "A Man, Who Rides A Horse, Doesn't Sleep.",
            "Ein Mann, Der Ein Pferd Reitet, Schläft Nicht.",
        ),
        ("no_final_punctuation", SOURCE[:-1], TARGET[:-1]),
    ],
)
def test_what_changes_on_both_sides(kind, source, target):
    assert perturb((SOURCE, TARGET), kind, 0) == (source, target)
    assert perturb(("Why ?! ", "为什么？"), "no_final_punctuation", 0) == ("Why", "为什么")
    assert perturb(("...", "?"), "no_final_punctuation", 0) == ("...", "?")


def edits(first: str, second: str) -> int:
    """Returns the Levenshtein distance. Two swapped letters have a distance of 2."""
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            cost = min(row[j] + 1, row[j - 1] + 1, diagonal + (letter != other))
            diagonal, row[j] = row[j], cost
    return row[-1]


@pytest.mark.parametrize("source", ["-5 degrees.", "$5 a day.", "'Tis so.", "\u201eJa\u201c."])
def test_an_insertion_at_the_start_stays_apart(source):
    changed = {perturb((source, source), "numbers", seed)[0] for seed in range(30)}
    first = [text for text in changed if text.endswith(source)]
    assert first and all(re.fullmatch(rf"\d+ {re.escape(source)}", text) for text in first)


def test_combining_marks_and_soft_hyphens_are_within_words():
    text = unicodedata.normalize("NFD", "d\u00e9j\u00e0 vu")
    (titles, _) = perturb((text, "co\u00adoperate"), "titles", 0)
    assert unicodedata.normalize("NFC", titles) == "D\u00e9j\u00e0 Vu"


@pytest.mark.parametrize("end", ["\u0589", "\u104b", "\u1362", "\u061f\u200f", ".\u3000"])
def test_final_punctuation_of_other_scripts(end):
    assert perturb((f"a{end}", "b"), "no_final_punctuation", 0) == ("a", "b")


def test_no_element_is_empty_on_one_side():
    for seed in range(20):
        source, target = perturb(("Wait,", "Warte, ja"), "tags", seed)
        assert not re.search(r">\s*<", f"{source}|{target}")


def test_sources_have_a_few_typos_of_all_kinds_and_targets_have_none():
    distances = []
    counts = Counter()
    for seed in range(200):
        source, target = perturb((SOURCE, TARGET), "typos", seed)
        assert target == TARGET
        distances.append(edits(SOURCE, source))
        assert abs(len(source) - len(SOURCE)) <= TYPOS
        counts["spaces"] += source.count(" ") != SOURCE.count(" ")
        counts["letters"] += len(source.replace(" ", "")) != len(SOURCE.replace(" ", ""))
    # A typo may undo an earlier one.
    assert max(distances) <= 2 * TYPOS and distances.count(0) < 3
    assert TYPOS <= sum(distances) / len(distances) <= 1.4 * TYPOS
    assert counts["spaces"] > 40 and counts["letters"] > 80
    assert perturb(("I", "Ich"), "typos", 0) == ("I", "Ich")


@pytest.mark.parametrize("kind", INSERTIONS)
def test_both_sides_have_the_same_insertion_at_the_same_place(kind):
    pattern = INSERTIONS[kind]
    places = set()
    for seed in range(100):
        pair = perturb((SOURCE, TARGET), kind, seed)
        if kind != "tags":
            spaced = [re.sub(rf" ?({pattern})", "", text).strip() for text in pair]
            assert spaced == [SOURCE, TARGET]
        inserted = [re.findall(pattern, text) for text in pair]
        assert inserted[0] == inserted[1] and len(inserted[0]) == 1 + (kind == "tags")
        if kind == "tags":
            assert [re.sub(pattern, "", text) for text in pair] == [SOURCE, TARGET]
        # As many commas precede it on both sides, and punctuation ends both.
        before = [text[: re.search(pattern, text).start()] for text in pair]
        assert before[0].count(",") == before[1].count(",")
        after = [re.split(pattern, text)[-1] for text in pair]
        assert bool(after[0]) == bool(after[1])
        places.add((before[0].count(","), after[0] in ("", ".")))
    assert len(places) >= 4


def test_a_share_of_the_pairs_is_perturbed(folder, tmp_path):
    pairs = [(f"{SOURCE} {i}", TARGET) for i in range(1000)]
    half = [perturb(pair, "capitals", 0, 0.5) for pair in pairs]
    changed = [i for i, pair in enumerate(half) if pair != pairs[i]]
    assert 430 < len(changed) < 570
    assert all(half[i] == perturb(pairs[i], "capitals", 0) for i in changed)
    # The larger share includes the smaller one.
    more = [perturb(pair, "capitals", 0, 0.7) for pair in pairs]
    assert all(more[i] == half[i] for i in changed)
    record = make(folder, tmp_path / "half", "--kind=capitals", "--share=0.5", "--seed=3")
    assert (record["share"], record["seed"]) == (0.5, 3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--kind=typo"], "--kind: invalid choice: 'typo'"),
        ([], "needs --kind=capitals|titles|typos"),
        (["--kind=typos", "--share=0"], "--share=0: must be a number above 0 and at most 1"),
        (["--kind=typos", "--share=half"], "--share=half: must be a number above 0"),
        (["--kind=typos", "--seed=-1"], "--seed: -1: must be at least 0"),
        (["--kind=typos", "--tfds=a/b"], "not allowed with argument"),
    ],
)
def test_wrong_flags_are_one_line(folder, tmp_path, capsys, flags, message):
    output = tmp_path / "copy"
    plain = ["--pair=en-de", f"--perturb={folder}", f"--output={output}"]
    assert message in error(capsys, *plain, *flags)
    assert not output.exists()


def test_data_that_cannot_be_perturbed_is_one_line(folder, tmp_path, capsys):
    output = f"--output={tmp_path / 'copy'}"

    def message(path, kind: str, pair: str = "en-de") -> str:
        return error(capsys, f"--pair={pair}", f"--perturb={path}", f"--kind={kind}", output)

    assert "is for --perturb" in error(capsys, "--pair=en-de", "--hf=a", "--kind=typos", output)
    assert "has no files STEM.en[.gz] and STEM.de[.gz]" in message(tmp_path / "none", "typos")
    assert "has no files STEM.fr[.gz]" in message(folder, "typos", "fr-de")
    assert "test.it: No such file" in message(folder, "typos", "en-it")
    (folder / "test.en").write_text("one line\n")
    assert "has 1 line and" in message(folder, "typos")
    (folder / "test.en").write_bytes(b"\xff\n" * len(LINES))
    assert "test.en, line 1: not UTF-8" in message(folder, "typos")
    for suffix in ("test.en", "test.de.gz", "train.en", "train.de"):
        (folder / suffix).unlink()
    (folder / "train.zh").write_text("一个人骑着一匹马。\n两只狗在玩 iPhone。\n")
    (folder / "train.en").write_text("A man rides a horse.\nTwo dogs play with an iPhone.\n")
    expected = "only 6 of 19 letters of zh have capitals"
    assert expected in message(folder, "capitals", "zh-en")
    assert expected in message(folder, "titles", "zh-en")
    assert not (tmp_path / "copy").exists()
    # Only the source must have capitals.
    record = make_pair(folder, tmp_path / "copy", "en-zh")
    assert record["changed"] == 2
    assert lines(tmp_path / "copy" / "train.zh")[1] == "两只狗在玩 IPHONE。"


def make_pair(folder, output, pair: str) -> dict:
    flags = [f"--perturb={folder}", "--kind=capitals", f"--output={output}"]
    assert run(get_data, f"--pair={pair}", *flags) == 0
    return json.loads((output / "data.json").read_text())
