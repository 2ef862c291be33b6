"""Translation datasets in Parquet files, in the folders that Hugging Face's hub serves."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from absl import logging
from pyarrow import parquet

from scripts.datasets.folder import SPLITS, Pair, write_record
from transformer.data.sources.lines import counted
from transformer.support.errors import UserError
from transformer.support.files import new_folder

# A file belongs to the split that its name begins with, as in train-00000-of-00003.parquet, or that
# its folder has.
NAMES = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "dev": "validation",
    "test": "test",
}
ROWS = 10_000  # read at once


def get_parquet(pair: Pair, source: Path, output: Path) -> dict[str, Any]:
    """Writes the splits in a folder of Parquet files as parallel text. Returns the record of the
    new folder.

    Pairs with a missing side are dropped, and so are splits without pairs. Line breaks within a
    sentence become spaces. Raises UserError if a file cannot be read or does not have the
    languages, or no split has pairs.
    """
    files = find_files(source, pair)
    with new_folder(output) as folder:
        dropped = {
            split: write_split(paths, pair, folder / split) for split, paths in files.items()
        }
        for split, count in dropped.items():
            if count:
                logging.warning(
                    "%s: %s with a missing side dropped.", split, counted(count, "pair")
                )
            if not (folder / f"{split}.{pair[0]}").stat().st_size:
                for language in pair:
                    (folder / f"{split}.{language}").unlink()
                logging.warning("%s: has no pair with both sides, and is left out.", split)
        if not any(folder.iterdir()):
            raise UserError(f"--hf={source}: no pair has both sides; name a folder that has some")
        read = {split: [str(path) for path in paths] for split, paths in files.items()}
        return write_record(folder, pair, {"by": "parquet", "read": read, "dropped": dropped})


def find_files(source: Path, pair: Pair) -> dict[str, list[Path]]:
    """Returns the files of each split in `source` or its subfolder of the pair's name.

    Raises UserError without any.
    """
    if not source.is_dir():
        raise UserError(
            f"--hf={source}: no such folder; download the dataset first: hf download --repo-type=dataset {source} "
            "--local-dir=FOLDER"
        )
    subfolders = [source / "-".join(languages) for languages in (pair, pair[::-1])]
    folder = next((subfolder for subfolder in subfolders if subfolder.is_dir()), source)
    files = {}
    for path in sorted(folder.rglob("*.parquet")):
        words = (re.split(r"[-._]", path.name)[0], *path.relative_to(folder).parts[-2:-1])
        if split := next((NAMES[word] for word in words if word in NAMES), None):
            files.setdefault(split, []).append(path)
        else:
            logging.warning(
                "%s: is of no split that is known, and is left out.", path.relative_to(source)
            )
    if not files:
        raise UserError(
            f"--hf={source}: no Parquet file of a split in {folder}; needs names such as train-00000-of-00001.parquet "
            "or train/0000.parquet"
        )
    for split, paths in files.items():
        # A split may be the folder of its files.
        folders = {
            path.parent.parent if path.parent.name in NAMES else path.parent for path in paths
        }
        if len(folders) > 1:
            names = ", ".join(sorted(str(folder.relative_to(source)) for folder in folders))
            raise UserError(
                f"--hf={source}: {split} is in several folders ({names}); name one of them"
            )
        if (count := re.search(r"-of-(\d+)", paths[0].name)) and len(paths) < int(count[1]):
            raise UserError(
                f"--hf={source}: has {len(paths)} of {int(count[1])} files of {split}; download the others"
            )
    return {split: files[split] for split in SPLITS if split in files}


def write_split(paths: list[Path], pair: Pair, stem: Path) -> int:
    """Writes `stem`.LANGUAGE for both languages. Returns the number of pairs that were dropped."""
    dropped = 0
    with (
        stem.with_suffix(f".{pair[0]}").open("w", encoding="utf-8", newline="\n") as first,
        stem.with_suffix(f".{pair[1]}").open("w", encoding="utf-8", newline="\n") as second,
    ):
        for path in paths:
            for texts in read_pairs(path, pair):
                if None in texts:
                    dropped += 1
                    continue
                for file, text in zip((first, second), texts, strict=True):
                    file.write(" ".join(re.split(r"[\r\n]+", text)) + "\n")
    return dropped


def read_pairs(path: Path, pair: Pair) -> Iterator[tuple[str | None, str | None]]:
    """Yields the pairs of a file.

    Raises UserError if it is damaged or does not have the languages as text.
    """
    try:
        with parquet.ParquetFile(path) as file:
            columns = find_columns(path, file.schema_arrow, pair)
            for batch in file.iter_batches(ROWS, columns=columns):
                flat = pyarrow.Table.from_batches([batch]).flatten()
                yield from zip(*(flat[column].to_pylist() for column in columns), strict=True)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({str(error).splitlines()[0]:.200}); download it again"
        ) from error


def find_columns(path: Path, schema: pyarrow.Schema, pair: Pair) -> list[str]:
    """Returns the names of the two columns: "translation.de" for the field of a structure, or "de"."""
    columns = [field.name for field in schema.empty_table().flatten().schema if is_text(field.type)]
    texts = {column.rpartition(".")[2]: column for column in columns}
    if missing := [language for language in pair if language not in texts]:
        raise UserError(
            f"--pair={'-'.join(pair)}: {path} has no text of {' or '.join(missing)}; "
            f"it has {', '.join(texts) or 'none'}"
        )
    return [texts[language] for language in pair]


def is_text(kind: pyarrow.DataType) -> bool:
    """Returns whether a column of this type has text in any layout of Arrow, or only missing
    values.
    """
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.null())
