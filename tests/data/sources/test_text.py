"""Sources of text and integer files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.files import text_config, write, write_pairs
from transformer.data.sources import lines
from transformer.data.sources import source as sources
from transformer.data.sources.lines import read_lines
from transformer.support.errors import UserError

PAIRS = [(f"word {number}", f"Wort {number}") for number in range(20)]
RAW = [(source.encode(), target.encode()) for source, target in PAIRS]


@pytest.fixture
def data(tmp_path):
    return text_config(tmp_path, tmp_path / "cache").data


@given(
    content=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\r", b"\xe2\x80\xa8", b"\x85"])).map(
        b"".join
    )
)
@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_lines_equal_the_content_split_at_newlines(tmp_path_factory, name, content):
    path = tmp_path_factory.mktemp("lines") / name
    write(path, content)
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()  # nothing follows the last line end
    assert list(read_lines(path)) == [line.removesuffix(b"\r") for line in expected]
    assert lines.count_lines(path) == len(expected)


def test_only_the_first_training_pairs_are_used(tmp_path, data):
    write_pairs(tmp_path, "train", PAIRS)
    write_pairs(tmp_path, "valid", PAIRS)
    whole = sources.open_source(data, "train")
    data.train_pairs = 7
    first = sources.open_source(data, "train")
    assert list(first) == RAW[:7] and len(first) == 7
    assert first.identity != whole.identity and first.where(6, 1) == whole.where(6, 1)
    assert len(sources.open_source(data, "valid")) == 20
    data.train_pairs = 1000
    assert len(sources.open_source(data, "train")) == 20


@given(excluded=st.sets(st.integers(1, 20)), limit=st.integers(0, 20))
def test_excluded_training_pairs_are_left_out(tmp_path_factory, excluded, limit):
    folder = tmp_path_factory.mktemp("excluded")
    data = text_config(folder, folder / "cache").data
    for name in ("train", "valid"):
        write_pairs(folder, name, PAIRS)
    whole = sources.open_source(data, "train")
    write(folder / "list", [f"{number}\t3.5" for number in sorted(excluded, reverse=True)])
    data.exclude, data.train_pairs = str(folder / "list"), limit
    remaining = sources.open_source(data, "train")
    kept = [i for i in range(20) if i + 1 not in excluded][: limit or None]
    assert list(remaining) == [RAW[i] for i in kept] and len(remaining) == len(kept)
    assert [remaining.where(number, 1) for number in range(len(kept))] == [
        whole.where(i, 1) for i in kept
    ]
    assert remaining.identity != whole.identity
    assert len(sources.open_source(data, "valid")) == 20


@pytest.mark.parametrize("line", ["0", "21", "-1", "x", "", "1.5", "\u0663"])
def test_a_list_of_excluded_pairs_with_another_line_is_refused(tmp_path, data, line):
    write_pairs(tmp_path, "train", PAIRS)
    write(tmp_path / "list", ["3", line])
    data.exclude = str(tmp_path / "list")
    with pytest.raises(UserError, match="list: line 2: .* must be the number of a pair, 1 to 20"):
        sources.open_source(data, "train")


@pytest.mark.parametrize("side", [0, 1])
def test_monolingual_text_has_one_file(tmp_path, data, side):
    languages = ("en", "de")
    write(tmp_path / f"train.{languages[side]}", [pair[side] for pair in PAIRS])
    data[("target_language", "source_language")[side]] = ""
    source = sources.open_source(data, "train")
    assert len(source) == 20 and source.where(2, side).endswith(f"train.{languages[side]}, line 3")
    assert list(source) == [(pair[0], b"") if side == 0 else (b"", pair[1]) for pair in RAW]
    assert source.name == str(tmp_path / f"train.{languages[side]}")


def test_the_name_of_a_link_tells_the_format(tmp_path, data):
    for side, language in enumerate(("en", "de")):
        write(tmp_path / f"packed{side}.gz", [pair[side] for pair in PAIRS])
        blob = (tmp_path / f"packed{side}.gz").rename(tmp_path / f"blob{side}")
        (tmp_path / f"train.{language}.gz").symlink_to(blob)
    assert list(sources.open_source(data, "train")) == RAW


@pytest.mark.parametrize("content", ["[1]", '{"a": 1}\n{"a": 2}\n', '{"version": 3}'])
def test_a_json_file_that_is_no_record_is_left_out(tmp_path, data, content):
    (tmp_path / "data.json").write_text(content)
    assert sources.read_origin(data) is None


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_are_joined(tmp_path, data, ending):
    write_pairs(tmp_path, "one", PAIRS[:7], ending=ending)
    write_pairs(tmp_path, "two", PAIRS[7:], ending=ending)
    data.train_split = "one+two"
    source = sources.open_source(data, "train")
    assert len(source) == 20 and list(source) == RAW
    assert source.where(8, 1) == f"{tmp_path}/two.de{ending}, line 2"


def test_unicode_line_breaks_do_not_shift_lines(tmp_path, data):
    write(tmp_path / "train.en", "one\u2028still one\x85\x0b\nsecond\r\n".encode())
    write(tmp_path / "train.de", b"eins\nzwei\n")
    assert sources.read_pairs(data, "train") == (
        ["one\u2028still one\x85\x0b", "second"],
        ["eins", "zwei"],
    )


def test_files_of_different_lengths_are_named_with_their_counts(tmp_path, data):
    write_pairs(tmp_path, "train", PAIRS)
    write(tmp_path / "train.de", ["eins", "zwei"])
    for use in (len, lambda source: next(iter(source))):
        with pytest.raises(UserError, match=r"train\.en has 20 lines and .*train\.de has 2:"):
            use(sources.open_source(data, "train"))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("train.tsv", "train.tsv: write each column to a file STEM.LANG, as with cut -f1"),
        ("train.csv", "train.csv: write each side"),
        ("train.jsonl", "train.jsonl: write each side"),
        ("train.en.bz2", "train.en.bz2: unpack it"),
        ("train.zip", "train.zip: unpack it"),
        ("train-0.parquet", "train-0.parquet: python -m scripts.get_data --hf=FOLDER reads it"),
    ],
)
def test_files_of_other_kinds_are_named_with_what_converts_them(tmp_path, data, name, advice):
    write(tmp_path / name, ["a\tb"])
    with pytest.raises(UserError, match=f"found: no file ending in .en; {advice}"):
        sources.open_source(data, "train")


def test_a_missing_file_is_reported_with_the_existing_stems(tmp_path, data):
    write_pairs(tmp_path, "training", PAIRS)
    with pytest.raises(
        UserError,
        match=r"data\.train_split=train: no train\.en or train\.en\.gz in .*; found: training",
    ):
        sources.open_source(data, "train")
    data.path = str(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"data\.path=.*nowhere: no such folder"):
        sources.open_source(data, "train")


def test_the_identity_changes_with_the_file(tmp_path, data):
    write_pairs(tmp_path, "train", PAIRS)
    before = sources.open_source(data, "train").identity
    assert sources.open_source(data, "train").identity == before
    write(tmp_path / "train.de", ["other"] * 20)
    assert sources.open_source(data, "train").identity != before


def test_held_out_text_must_be_utf8(tmp_path, data):
    write(tmp_path / "valid.en", b"fine\nbad \xff\n")
    write(tmp_path / "valid.de", b"gut\nschlecht\n")
    with pytest.raises(UserError, match=r"valid\.en, line 2: not UTF-8 \(byte 5\)"):
        sources.read_pairs(data, "valid")


def test_held_out_pairs_keep_empty_sides_and_spaces(tmp_path, data):
    write(tmp_path / "valid.en", b"\n a  b \n")
    write(tmp_path / "valid.de", b"leer\n\n")
    assert sources.read_pairs(data, "valid") == (["", " a  b "], ["leer", ""])


def test_a_held_out_split_without_sentences_is_refused(tmp_path, data):
    write_pairs(tmp_path, "valid", [])
    with pytest.raises(UserError, match="no sentences"):
        sources.read_pairs(data, "valid")


def test_text_files_are_read_or_refused(tmp_path):
    write(tmp_path / "good.gz", ["eins", "", "drei\u2028vier"])
    assert lines.read_text_file(tmp_path / "good.gz") == ["eins", "", "drei\u2028vier"]
    write(tmp_path / "bad", b"eins\n\xc3\n")
    with pytest.raises(UserError, match=r"bad, line 2: not UTF-8"):
        lines.read_text_file(tmp_path / "bad")
    with pytest.raises(UserError, match="nowhere: No such file"):
        lines.read_text_file(tmp_path / "nowhere")


@pytest.mark.parametrize("damage", [lambda whole: whole[:-10], lambda whole: b"plain text\n"])
def test_a_damaged_gzip_file_is_refused(tmp_path, damage):
    write(tmp_path / "good.gz", [str(number) for number in range(1000)])
    (tmp_path / "bad.gz").write_bytes(damage((tmp_path / "good.gz").read_bytes()))
    with pytest.raises(UserError, match=r"bad\.gz: damaged gzip file"):
        lines.read_text_file(tmp_path / "bad.gz")


def test_anything_but_integers_is_refused_with_file_and_line(tmp_path, data):
    data.source = "ids"
    write_pairs(tmp_path, "train", [("1 2 3", "4"), ("", "5 6")])
    assert list(sources.open_source(data, "train")) == [(b"1 2 3", b"4"), (b"", b"5 6")]
    write_pairs(tmp_path, "train", [("1 2 3", "4"), ("1", "5 -6")])
    with pytest.raises(UserError, match=r"train\.de, line 2: '-6' is not a non-negative integer"):
        list(sources.open_source(data, "train"))


def test_a_source_in_the_table_can_be_named(tmp_path, data, monkeypatch):
    class Reversed(sources.TextSource):
        def __iter__(self):
            return reversed(list(super().__iter__()))

    monkeypatch.setitem(sources.SOURCES, "reversed", Reversed)
    write_pairs(tmp_path, "train", PAIRS)
    data.source = "reversed"
    assert list(sources.open_source(data, "train")) == RAW[::-1]


def test_an_unknown_source_has_no_default(data):
    data.source = "unknown"
    with pytest.raises(KeyError, match="unknown"):
        sources.open_source(data, "train")


@pytest.mark.parametrize("name", ["file", "file.gz"])
@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
@pytest.mark.parametrize("text", ["上海的一个男人\n二\n" * 3000, "a man\n"])
def test_other_encodings_are_named(tmp_path, name, encoding, text):
    write(tmp_path / name, text.encode(encoding))
    with pytest.raises(UserError, match=f"{name}: is UTF-16 or UTF-32, must be UTF-8; convert it"):
        lines.count_lines(tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_one_short_line_without_an_end_is_refused_if_it_has_a_mark(tmp_path, encoding):
    mark = b"" if encoding == "utf-16" else "\ufeff".encode(encoding)
    write(tmp_path / "file", mark + "a man".encode(encoding))
    with pytest.raises(UserError, match="is UTF-16 or UTF-32"):
        lines.count_lines(tmp_path / "file")
