"""The shards of a corpus to translate, and the settings that all workers must share."""

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
Json = dict[str, Any]  # the content of `FILE_NAME`, or a request
DOCUMENTATION = (".md", ".json", ".yaml", ".yml")  # of datasets, beside their Parquet files
# The default size takes a CPU core a few minutes. A killed worker loses at most one shard.
SHARD_LINES = 10_000
UNREADABLE = (OSError, EOFError, zlib.error, pyarrow.ArrowException)


class Shard(NamedTuple):
    """A range of lines of one file, the unit of work.

    Attributes:
      number: of the shard in the corpus, from 1.
      start, count: the shard has `count` lines (rows in Parquet) after the first `start`.
      offset: the first byte of the shard in the text, after unpacking; 0 in Parquet.
    """

    number: int
    file: str
    start: int
    count: int
    offset: int


class ShardedCorpus(NamedTuple):
    """The shards of a corpus, and the request for their translation.

    Attributes:
      output: the folder of the translations.
      request: the model, the files, and the format of the output. All workers have the same.
    """

    output: Path
    request: Json
    shards: list[Shard]

    def path(self, shard: Shard) -> Path:
        """Returns the file of a shard's translations."""
        suffix = {"text": "tsv", "parquet": "parquet"}[self.request["format"]]
        return self.output / f"shard-{shard.number:06}-of-{len(self.shards):06}.{suffix}"

    def missing(self, part: int, parts: int) -> list[Shard]:
        """Returns the shards of part `part` of `parts` with an absent or damaged file."""
        # For example, part 2 of 8 has the shards 2, 10, 18 and so on.
        shards = self.shards[part - 1 :: parts]
        return [shard for shard in shards if not self._is_complete(self.path(shard))]

    def _is_complete(self, path: Path) -> bool:
        # Only Parquet files can be checked: their metadata is at the end.
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
                advice = "delete it, and scripts.translate_corpus makes it again"
                raise _unreadable(path, error, advice) from error
            # A line has a row for each of its translations.
            lines = itertools.groupby(rows, key=lambda row: (row["line"], row["source"]))
            for (_, text), group in lines:
                translations = []
                for row in group:
                    is_usable = row["translation"] and not row.get("cut")
                    translations.append(row["translation"] if is_usable else "")
                yield text, translations

    def read(self, shard: Shard) -> Iterator[bytes | None]:
        """Yields the lines of a shard; None for a missing value of Parquet."""
        path = Path(shard.file)
        try:
            if path.suffix == ".parquet":
                yield from _read_rows(path, self.request["column"], shard)
                return

            # Only the first line of a file may have a byte order mark.
            with _open(path) as file:
                file.seek(shard.offset)
                for number, line in enumerate(itertools.islice(file, shard.count), shard.start):
                    yield strip_line_end(line, first=number == 0)
        except UNREADABLE as error:
            raise _unreadable(path, error) from error


def open_shards(output: Path, request: Json) -> ShardedCorpus:
    """Returns the shards in `output`, or makes them, for which it counts the lines of all files.

    All workers may call this at once: they write the same record. Raises UserError if the shards
    were made for another request, or a file cannot be read.
    """
    request = json.loads(json.dumps(request))  # tuples become lists, as in the record
    path = output / FILE_NAME
    if not path.exists():
        files.make_folder(output, "--output")
        shards = make_shards([Path(name) for name, _ in request["files"]], request)
        files.write_text(path, json.dumps({"request": request, "shards": shards}) + "\n")
        return ShardedCorpus(output, request, shards)

    # Dotted keys name the differences: decoding.beam_size=4.
    corpus = read_shards(output)
    recorded = keys.flatten(ml_collections.ConfigDict(corpus.request))
    differences = []
    for key, value in keys.flatten(ml_collections.ConfigDict(request)).items():
        if recorded.get(key) != value:
            differences.append(f"{key}={recorded.get(key)!s:.200}")
    if differences:
        raise UserError(
            f"--output={output}: its shards were made with {first_of(differences, 3, ', ')}; "
            "give the same flags, files and checkpoint as before, or name another folder"
        )
    return corpus


def read_shards(output: Path) -> ShardedCorpus:
    """Returns the shards that `open_shards` has recorded. Raises UserError if they are damaged."""

    def parse(record: Json) -> ShardedCorpus:
        shards = [Shard(*values) for values in record["shards"]]
        return ShardedCorpus(output, record["request"], shards)

    return files.read_json(output / FILE_NAME, parse, "name another --output")


def find_files(names: str) -> list[Path]:
    """Returns the files of --source: of a folder, sorted by name, or a list with commas.

    Raises UserError if there are none, or a file is missing or in an unknown format.
    """
    folder = files.expand_user(names)
    if names and folder.is_dir():
        paths = sorted(path for path in folder.iterdir() if path.is_file())
        paths = [path for path in paths if not path.name.startswith(".")]
        if not paths:
            raise UserError(f"--source={names}: the folder has no files")
        parquet_paths = [path for path in paths if path.suffix == ".parquet"]
        if parquet_paths:
            # A dataset may have documentation. Other files may be text that must not be left out.
            allowed = (".parquet", *DOCUMENTATION)
            foreign = [path.name for path in paths if path.suffix not in allowed]
            if foreign:
                raise UserError(
                    f"--source={names}: has Parquet files beside {first_of(foreign, 3, ', ')}; "
                    "move these, or name all files, separated by commas"
                )
            paths = parquet_paths
    else:
        paths = [files.expand_user(name) for name in names.split(",")]

    for path in paths:
        if not path.is_file():
            raise UserError(
                f"--source={names}: {path} is not a file; "
                "name files, separated by commas, or a folder"
            )
        if path.suffix in PACKED or path.suffixes[-2:-1] == [".tar"]:
            raise UserError(
                f"--source={names}: {path} is compressed in a format other than .gz; unpack it"
            )
    # The name of a symbolic link tells the format, so links to files are not resolved.
    return [path.parent.resolve() / path.name for path in paths]


def make_shards(paths: Sequence[Path], request: Json) -> list[Shard]:
    """Returns the shards of all files in order.

    A shard never spans two files, so there may be a few more shards than requested. Raises
    UserError if a file cannot be read.
    """
    column = request["column"]
    lines = SHARD_LINES
    if request["shards"]:
        # The number of requested shards determines their size, so the lines are counted first.
        total = 0
        for path in paths:
            total += sum(count for _, _, count, _ in _cut(path, sys.maxsize, column))
        # Rounded up, so that there are not more shards than requested within a file.
        lines = max(-(-total // request["shards"]), 1)
    ranges = itertools.chain.from_iterable(_cut(path, lines, column) for path in paths)
    return [Shard(number, *values) for number, values in enumerate(ranges, start=1)]


def _cut(path: Path, lines: int, column: str) -> Iterator[tuple[str, int, int, int]]:
    """Yields (file, start, count, offset) of shards of at most `lines` lines."""
    try:
        if path.suffix == ".parquet":
            total = _count_rows(path, column)
            offsets = itertools.repeat(0)
        else:
            next(read_lines(path), None)  # raises UserError for UTF-16
            total = 0
            offsets = []
            with _open(path) as file:
                # Each turn reads the lines of one shard.
                while file.peek(1):
                    offsets.append(file.tell())
                    total += sum(1 for _ in itertools.islice(file, lines))
    except UNREADABLE as error:
        raise _unreadable(path, error) from error

    # Text has an offset for each shard, Parquet any number of zeros.
    for start, offset in zip(range(0, total, lines), offsets, strict=False):
        yield str(path), start, min(lines, total - start), offset


def _count_rows(path: Path, column: str) -> int:
    """Returns the number of rows of a Parquet file. Raises UserError if it lacks the column."""
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        if column not in [field.name for field in schema if is_text(field.type)]:
            columns = first_of([f"{field.name} ({field.type})" for field in schema], 20, ", ")
            raise UserError(
                f"--column={column}: {path} has no such column of text; it has {columns}"
            )
        return file.metadata.num_rows


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _read_rows(path: Path, column: str, shard: Shard) -> Iterator[bytes | None]:
    """Yields the rows of a shard as UTF-8. Reads only the row groups that overlap with it."""
    end = shard.start + shard.count
    with parquet.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        starts = list(itertools.accumulate(sizes, initial=0))
        groups = [
            group
            for group in range(len(sizes))
            if starts[group] < end and starts[group + 1] > shard.start
        ]

        batches = file.iter_batches(row_groups=groups, columns=[column])
        rows = itertools.chain.from_iterable(
            batch[column].cast(pyarrow.binary()).to_pylist() for batch in batches
        )
        # The first group may begin before the shard.
        first_row = starts[groups[0]]
        yield from itertools.islice(rows, shard.start - first_row, end - first_row)


def _unreadable(path: Path, error: Exception, advice: str = "replace it") -> UserError:
    return UserError(f"{path}: cannot be read ({error!s:.200}); {advice}")
