"""The plan of a corpus's translation: its shards, and the settings that all workers must share."""

import gzip
import itertools
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections
import pyarrow
from absl import logging
from pyarrow import parquet

from scripts.datasets.parquet import is_text
from transformer.config import keys
from transformer.data.sources.lines import PACKED, read_lines, strip_line_end
from transformer.support import files
from transformer.support.errors import UserError, first_of

FILE_NAME = "plan.json"
DOCUMENTATION = (".md", ".json", ".yaml", ".yml")  # of datasets, beside their Parquet files
# without --shards: a few minutes of one CPU core, and what a killed worker does again at most
SHARD_LINES = 10_000
UNREADABLE = (OSError, EOFError, zlib.error, pyarrow.ArrowException)


# model, files and form of the output, by which all workers make the same plan
Request = dict[str, Any]


class Shard(NamedTuple):
    """A range of lines of one file, the unit of work: `count` lines (rows in Parquet) after the
    first `start`.

    `offset` is the byte at which they begin in the text, unpacked if it is gzip; 0 in Parquet.
    Numbers begin with 1.
    """

    number: int
    file: str
    start: int
    count: int
    offset: int


class Plan(NamedTuple):
    """The shards of a corpus, and the request that they answer: model, files, and form of the
    output.
    """

    output: Path
    request: Request
    shards: list[Shard]

    def path(self, shard: Shard) -> Path:
        """Returns the file of a shard's translations."""
        suffix = {"text": "tsv", "parquet": "parquet"}[self.request["format"]]
        return self.output / f"shard-{shard.number:06}-of-{len(self.shards):06}.{suffix}"

    def missing(self, part: int, parts: int) -> list[Shard]:
        """Returns the shards of part `part` of `parts` whose file is absent or damaged."""
        own = self.shards[part - 1 :: parts]
        return [shard for shard in own if not self._is_complete(self.path(shard))]

    def _is_complete(self, path: Path) -> bool:
        if self.request["format"] == "text" or not path.exists():
            return path.exists()
        try:
            parquet.read_metadata(path)
            return True
        except UNREADABLE as error:
            logging.warning("%s: is damaged (%.200s), and counts as missing.", path, error)
            return False

    def translations(self) -> Iterator[tuple[str, list[str]]]:
        """Yields each line with its translations, best first; "" if it was cut or not translated.

        Raises UserError if the file of a shard cannot be read.
        """
        columns = ["line", "source", "translation", "cut"]  # older shards do not have `cut`
        for path in map(self.path, self.shards):
            try:
                with parquet.ParquetFile(path) as file:
                    rows = file.read(columns).to_pylist()
            except UNREADABLE as error:
                raise _unreadable(
                    path, error, "delete it, and scripts.translate_corpus makes it again"
                ) from error
            lines = itertools.groupby(rows, key=lambda row: (row["line"], row["source"]))
            for (_, text), group in lines:
                yield text, ["" if row.get("cut") else row["translation"] or "" for row in group]

    def read(self, shard: Shard) -> Iterator[bytes | None]:
        """Yields the lines of a shard; None for a missing value of Parquet."""
        path = Path(shard.file)
        try:
            if path.suffix == ".parquet":
                yield from _read_rows(path, self.request["column"], shard)
                return
            with _open(path) as file:
                file.seek(shard.offset)
                for number, line in enumerate(itertools.islice(file, shard.count)):
                    yield strip_line_end(line, first=shard.start + number == 0)
        except UNREADABLE as error:
            raise _unreadable(path, error) from error


def open_plan(output: Path, request: Request) -> Plan:
    """Returns the plan in `output`, or makes it, which counts the lines of all files.

    All workers may call this at once: they write the same plan. Raises UserError if the plan
    answers another request, or a file cannot be read.
    """
    path = output / FILE_NAME
    request = json.loads(json.dumps(request))
    if path.exists():
        plan = files.read_json(
            path,
            lambda record: Plan(
                output, record["request"], [Shard(*values) for values in record["shards"]]
            ),
            "name another --output",
        )
        made, asked = (
            keys.flatten(ml_collections.ConfigDict(settings))
            for settings in (plan.request, request)
        )
        if differing := [
            f"{key}={made.get(key)!s:.200}"
            for key, value in asked.items()
            if made.get(key) != value
        ]:
            raise UserError(
                f"--output={output}: its shards were made with {first_of(differing, 3, ', ')}; give the same flags, "
                "files and checkpoint as before, or name another folder"
            )
        return plan
    files.make_folder(output, "--output")
    plan = Plan(output, request, make_shards([Path(name) for name, _ in request["files"]], request))
    files.write_text(path, json.dumps({"request": request, "shards": plan.shards}) + "\n")
    return plan


def find_files(names: str) -> list[Path]:
    """Returns the files of --source: of a folder, sorted by name, or a list with commas.

    Raises UserError if none.
    """
    folder = files.expanded(names)
    if names and folder.is_dir():
        found = sorted(
            path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")
        )
        if rows := [path for path in found if path.suffix == ".parquet"]:
            beside = (path for path in found if path not in rows)
            if others := [path.name for path in beside if path.suffix not in DOCUMENTATION]:
                raise UserError(
                    f"--source={names}: has Parquet files beside {first_of(others, 3, ', ')}; move "
                    "these, or name all files, separated by commas"
                )
            found = rows
    else:
        found = [files.expanded(name) for name in names.split(",")]
    if missing := [path for path in found if not path.is_file()]:
        raise UserError(
            f"--source={names}: {missing[0]} is no file; name files, separated by commas, or a folder"
        )
    if not found:
        raise UserError(f"--source={names}: the folder has no files")
    if packed := [
        path for path in found if path.suffixes[-2:-1] == [".tar"] or path.suffix in PACKED
    ]:
        raise UserError(
            f"--source={names}: {packed[0]} is compressed in a format other than .gz; unpack it"
        )
    # the name of a link tells the format
    return [path.parent.resolve() / path.name for path in found]


def make_shards(paths: Sequence[Path], request: Request) -> list[Shard]:
    """Returns the shards of all files in order. None spans two files, so there may be a few more
    than requested.

    Raises UserError if a file cannot be read.
    """
    lines = SHARD_LINES
    if request["shards"]:
        total = sum(
            count for path in paths for _, _, count, _ in _cut(path, sys.maxsize, request["column"])
        )
        lines = max(-(-total // request["shards"]), 1)
    ranges = itertools.chain.from_iterable(_cut(path, lines, request["column"]) for path in paths)
    return [Shard(number, *values) for number, values in enumerate(ranges, start=1)]


def _cut(path: Path, lines: int, column: str) -> Iterator[tuple[str, int, int, int]]:
    """Yields file, start, count and offset of the shards of a file, with so many lines each but for
    the last.
    """
    total = 0
    offsets = []
    try:
        if path.suffix == ".parquet":
            with parquet.ParquetFile(path) as file:
                schema = file.schema_arrow
                if column not in [field.name for field in schema if is_text(field.type)]:
                    known = first_of([f"{field.name} ({field.type})" for field in schema], 20, ", ")
                    raise UserError(
                        f"--column={column}: {path} has no such column of text; it has {known}"
                    )
                total = file.metadata.num_rows
                offsets = itertools.repeat(0)
        else:
            next(read_lines(path), None)  # refuses UTF-16
            with _open(path) as file:
                while file.peek(1):
                    offsets.append(file.tell())
                    total += sum(1 for _ in itertools.islice(file, lines))
    except UNREADABLE as error:
        raise _unreadable(path, error) from error
    for start, offset in zip(range(0, total, lines), offsets, strict=False):
        yield str(path), start, min(lines, total - start), offset


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _read_rows(path: Path, column: str, shard: Shard) -> Iterator[bytes | None]:
    """Yields the rows of a shard as UTF-8, reading only the row groups that have some."""
    with parquet.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        first = shard.start
        last = shard.start + shard.count
        starts = list(itertools.accumulate(sizes, initial=0))
        groups = [
            group
            for group in range(len(sizes))
            if starts[group] < last and starts[group + 1] > first
        ]
        batches = file.iter_batches(row_groups=groups, columns=[column])
        rows = itertools.chain.from_iterable(
            batch[column].cast(pyarrow.binary()).to_pylist() for batch in batches
        )
        yield from itertools.islice(rows, first - starts[groups[0]], last - starts[groups[0]])


def _unreadable(path: Path, error: Exception, advice: str = "replace it") -> UserError:
    return UserError(f"{path}: cannot be read ({error!s:.200}); {advice}")
