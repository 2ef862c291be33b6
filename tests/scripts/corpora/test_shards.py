"""The shards of a corpus: every line is in exactly one, whatever the form of the files."""

import gzip
import itertools
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from scripts.corpora import shards
from scripts.corpora.shards import ShardedCorpus, find_files, make_shards, open_shards
from transformer.support import files
from transformer.support.errors import UserError

LINES = [b"", b"one two", "drei\u2028vier".encode(), b"caf\xe9", b" ", b"six", b"7" * 200, b"eight"]
REQUEST = {"format": "text", "column": "text"}


def request_for(paths: list[Path], shards: int | None = 2) -> dict:
    return {
        **REQUEST,
        "files": [(str(path), path.stat().st_size) for path in paths],
        "shards": shards,
    }


@pytest.fixture
def corpus(tmp_path) -> list[Path]:
    """Returns two files of the same lines: with a byte order mark and \\r\\n, and packed without
    the last line end.
    """
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"".join(line + b"\r\n" for line in LINES))
    (folder / "b.gz").write_bytes(gzip.compress(b"\n".join(LINES)))
    return find_files(str(folder))


@pytest.mark.parametrize("shards", [None, 1, 2, 3, 5, 16, 100])
def test_every_line_is_in_one_shard_and_in_order(corpus, tmp_path, shards):
    request = request_for(corpus, shards)
    made = make_shards(corpus, request)
    assert [shard.number for shard in made] == list(range(1, len(made) + 1))
    assert len(made) == {None: 2, 1: 2, 2: 2, 3: 4, 5: 4, 16: 16, 100: 16}[shards]
    opened = ShardedCorpus(tmp_path, request, made)
    assert list(itertools.chain.from_iterable(map(opened.read, made))) == LINES + LINES
    assert [(shard.file, shard.start) for shard in made] == sorted(
        (shard.file, shard.start) for shard in made
    )


@pytest.mark.parametrize("shards", [1, 3, 4])
def test_rows_of_parquet_are_read_over_the_bounds_of_row_groups(tmp_path, shards):
    path, rows = tmp_path / "c.parquet", ["null", None, "zwei", "", "vier", "fünf", "sechs"]
    parquet.write_table(pyarrow.table({"id": range(7), "text": rows}), path, row_group_size=3)
    request = request_for([path], shards)
    made = make_shards([path], request)
    assert len(made) == shards
    read = list(
        itertools.chain.from_iterable(map(ShardedCorpus(tmp_path, request, made).read, made))
    )
    assert [None if row is None else row.decode() for row in read] == rows
    with pytest.raises(
        UserError,
        match=r"--column=id: .* no such column of text; it has id \(int64\), text \(string\)",
    ):
        make_shards([path], {**request, "column": "id"})


def test_parts_share_the_shards(corpus, tmp_path):
    opened = open_shards(tmp_path / "out", request_for(corpus, 8))
    parts = [opened.missing(part, 3) for part in (1, 2, 3)]
    assert sorted(shard.number for part in parts for shard in part) == list(range(1, 9))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    files.write_bytes(opened.path(opened.shards[3]), b"")
    assert [shard.number for shard in opened.missing(1, 3)] == [1, 7]


def test_shards_are_made_once_and_answer_only_their_own_request(corpus, tmp_path, monkeypatch):
    request = request_for(corpus)
    made = open_shards(tmp_path / "out", request)
    monkeypatch.setattr(shards, "make_shards", None)  # would fail if it were called
    assert open_shards(tmp_path / "out", request) == made
    with corpus[0].open("ab") as file:
        file.write(b"more\n")
    with pytest.raises(UserError, match=r"--output=.*: its shards were made with files=.*;"):
        open_shards(tmp_path / "out", request_for(corpus))
    with pytest.raises(UserError, match="with format=text;"):
        open_shards(tmp_path / "out", {**request, "format": "parquet"})
    (tmp_path / "out" / shards.FILE_NAME).write_text('{"request"')
    with pytest.raises(UserError, match="plan.json: damaged"):
        open_shards(tmp_path / "out", request)


def test_a_folder_of_parquet_has_no_other_text(tmp_path):
    for name in ("b.parquet", "a.parquet", "README.md", "dataset_infos.json", ".gitattributes"):
        (tmp_path / name).write_bytes(b"")
    assert find_files(str(tmp_path)) == [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    (tmp_path / "mono.de").write_bytes(b"")
    with pytest.raises(
        UserError, match="has Parquet files beside mono.de; move these, or name all files"
    ):
        find_files(str(tmp_path))


@pytest.mark.parametrize("kind", [pyarrow.string_view(), pyarrow.large_string(), "dictionary"])
def test_text_of_all_layouts_is_read(tmp_path, kind):
    path, texts = tmp_path / "c.parquet", pyarrow.array(["eins", None, "zwei", "eins"])
    column = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind)
    parquet.write_table(pyarrow.table({"id": range(4), "text": column}), path)
    request = request_for([path], 2)
    made = make_shards([path], request)
    read = itertools.chain.from_iterable(map(ShardedCorpus(tmp_path, request, made).read, made))
    assert list(read) == [b"eins", None, b"zwei", b"eins"]


def test_unusable_files_are_named(tmp_path):
    for name, content, message in (
        ("damaged.gz", b"\x1f\x8b\x08", "damaged.gz: (damaged gzip|cannot be read)"),
        ("damaged.parquet", b"PAR1", "damaged.parquet: cannot be read"),
        ("wide.txt", "weit\n".encode("utf-16"), "wide.txt: is UTF-16"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            make_shards([tmp_path / name], {"column": "text", "shards": 2})
    for names, message in (
        (f"{tmp_path}/wide.txt,{tmp_path}/none", "none is not a file"),
        ("", "is not a file"),
    ):
        with pytest.raises(UserError, match=message):
            find_files(names)
    (tmp_path / "linked.parquet").symlink_to(tmp_path / "damaged.parquet")
    # whose name tells the format
    assert find_files(f"{tmp_path}/linked.parquet") == [tmp_path / "linked.parquet"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "packed.xz").write_bytes(b"")
    with pytest.raises(
        UserError, match="packed.xz is compressed in a format other than .gz; unpack it"
    ):
        find_files(str(tmp_path / "packed.xz"))
    with pytest.raises(UserError, match="the folder has no files"):
        find_files(str(tmp_path / "empty"))
