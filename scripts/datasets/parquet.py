"""Translation datasets in Parquet files, in the folders that Hugging Face's hub serves."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from absl import logging
from pyarrow import parquet

from scripts.datasets.folder import SPLITS, LanguagePair, write_record
from transformer.data.sources.lines import count_noun
from transformer.support.errors import UserError
from transformer.support.files import new_folder

# The split of a file is the first word of its name, as in train-00000-of-00003.parquet, or else the
# name of its folder.
NAMES = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "dev": "validation",
    "test": "test",
}
ROWS = 10_000  # read at once


def get_parquet(pair: LanguagePair, source: Path, output: Path) -> dict[str, Any]:
    """Writes the splits in a folder of Parquet files as parallel text.

    Pairs with a missing side are dropped, and so are splits without pairs. Line breaks within a
    sentence become spaces. Returns the record of the new folder. Raises UserError if a file cannot
    be read or does not have the languages, or no split has pairs.
    """
    files = find_files(source, pair)
    dropped = {}
    with new_folder(output) as folder:
        for split, paths in files.items():
            count = write_split(paths, pair, folder / split)
            dropped[split] = count
            if count:
                logging.warning(
                    "%s: %s with a missing side dropped.", split, count_noun(count, "pair")
                )
            # An empty split would be refused by runs on the data.
            if not (folder / f"{split}.{pair[0]}").stat().st_size:
                for language in pair:
                    (folder / f"{split}.{language}").unlink()
                logging.warning("%s: has no pair with both sides, and is left out.", split)
        if not any(folder.iterdir()):
            raise UserError(f"--hf={source}: no pair has both sides; name a folder that has some")
        read = {split: [str(path) for path in paths] for split, paths in files.items()}
        return write_record(folder, pair, {"by": "parquet", "read": read, "dropped": dropped})


def find_files(source: Path, pair: LanguagePair) -> dict[str, list[Path]]:
    """Returns the files of each split in `source`, or in its subfolder named after the pair.

    Raises UserError if there are none, or the files of a split are incomplete or ambiguous.
    """
    if not source.is_dir():
        raise UserError(
            f"--hf={source}: no such folder; download the dataset first: "
            f"hf download --repo-type=dataset {source} --local-dir=FOLDER"
        )

    # A dataset of several pairs has a subfolder for each, in either direction.
    subfolders = [source / "-".join(languages) for languages in (pair, pair[::-1])]
    folder = next((subfolder for subfolder in subfolders if subfolder.is_dir()), source)
    files = {}
    for path in sorted(folder.rglob("*.parquet")):
        first_word = re.split(r"[-._]", path.name)[0]
        parent = path.relative_to(folder).parent.name
        split = NAMES.get(first_word) or NAMES.get(parent)
        if split:
            files.setdefault(split, []).append(path)
        else:
            logging.warning(
                "%s: is of no split that is known, and is left out.", path.relative_to(source)
            )
    if not files:
        raise UserError(
            f"--hf={source}: no Parquet file of a split in {folder}; "
            "needs names such as train-00000-of-00001.parquet or train/0000.parquet"
        )
    for split, paths in files.items():
        # A split may have its own folder, such as train/0000.parquet.
        folders = {
            path.parent.parent if path.parent.name in NAMES else path.parent for path in paths
        }
        if len(folders) > 1:
            names = ", ".join(sorted(str(folder.relative_to(source)) for folder in folders))
            raise UserError(
                f"--hf={source}: {split} is in several folders ({names}); name one of them"
            )

        # The name of a file may have the number of files: train-00000-of-00003.parquet.
        total = re.search(r"-of-(\d+)", paths[0].name)
        if total and len(paths) < int(total[1]):
            raise UserError(
                f"--hf={source}: has {len(paths)} of {int(total[1])} files of {split}; "
                "download the others"
            )
    return {split: files[split] for split in SPLITS if split in files}


def write_split(paths: list[Path], pair: LanguagePair, stem: Path) -> int:
    """Writes `stem`.LANGUAGE for both languages. Returns the number of dropped pairs."""
    dropped = 0
    with (
        stem.with_suffix(f".{pair[0]}").open("w", encoding="utf-8", newline="\n") as source,
        stem.with_suffix(f".{pair[1]}").open("w", encoding="utf-8", newline="\n") as target,
    ):
        for path in paths:
            for texts in read_pairs(path, pair):
                if None in texts:
                    dropped += 1
                    continue
                for file, text in zip((source, target), texts, strict=True):
                    file.write(" ".join(re.split(r"[\r\n]+", text)) + "\n")
    return dropped


def read_pairs(path: Path, pair: LanguagePair) -> Iterator[tuple[str | None, str | None]]:
    """Yields the pairs of a file.

    Raises UserError if it is damaged or does not have the languages as text.
    """
    try:
        with parquet.ParquetFile(path) as file:
            columns = find_columns(path, file.schema_arrow, pair)
            for batch in file.iter_batches(ROWS, columns=columns):
                # Flattening makes columns of the fields of a structure.
                table = pyarrow.Table.from_batches([batch]).flatten()
                sides = [table[column].to_pylist() for column in columns]
                yield from zip(*sides, strict=True)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: cannot be read ({reason:.200}); download it again") from error


def find_columns(path: Path, schema: pyarrow.Schema, pair: LanguagePair) -> list[str]:
    """Returns the names of the two columns: "de", or "translation.de" for a structure's field."""
    flat_schema = schema.empty_table().flatten().schema
    names = [field.name for field in flat_schema if is_text(field.type)]
    # By the last part of the name: the field of a structure, or the whole name.
    columns = {name.rpartition(".")[2]: name for name in names}
    missing = [language for language in pair if language not in columns]
    if missing:
        raise UserError(
            f"--pair={'-'.join(pair)}: {path} has no text of {' or '.join(missing)}; "
            f"it has {', '.join(columns) or 'none'}"
        )
    return [columns[language] for language in pair]


def is_text(kind: pyarrow.DataType) -> bool:
    """True if a column of this type has text in any layout of Arrow, or only missing values."""
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.null())
