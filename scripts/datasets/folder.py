"""Folders of parallel text for `data.source=text`, with a record of how they were made."""

import hashlib
from pathlib import Path
from typing import Any

from transformer.data.sources.lines import count_lines
from transformer.data.sources.source import ORIGIN
from transformer.support import files
from transformer.support.environment import now
from transformer.support.errors import UserError

LanguagePair = tuple[str, str]  # codes of the source and the target language: ("en", "de")
SPLITS = ("train", "validation", "test")  # stems of files; the default splits of configs/base.py


def write_record(folder: Path, languages: LanguagePair, facts: dict[str, Any]) -> dict[str, Any]:
    """Writes `data.json`, with the facts and the files of text, and returns its content.

    Raises UserError if a split has no sentences, or not equally many in both languages.
    """
    entries = {}
    for stem, pair in find_files(folder, languages).items():
        counts = [count_lines(path) for path in pair]
        if counts[0] != counts[1] or not counts[0]:
            raise UserError(
                f"{stem}: has {counts[0]} sentences of {languages[0]} and {counts[1]} of "
                f"{languages[1]}; a split needs equally many, at least 1; leave it out, "
                "or replace its data"
            )
        for path, lines in zip(pair, counts, strict=True):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            entries[path.name] = {"lines": lines, "bytes": path.stat().st_size, "sha256": digest}

    record = {"made": now(), "languages": list(languages), **facts, "files": entries}
    files.write_json(folder / ORIGIN, record)
    return record


def find_files(folder: Path, languages: LanguagePair) -> dict[str, list[Path]]:
    """Returns the two files of each STEM.LANGUAGE[.gz] of the first language, by stem.

    The file of the second language may be missing.
    """
    # One of the two may be compressed: train.en and train.de.gz are a pair.
    paths = {path.name.removesuffix(".gz"): path for path in folder.iterdir()}
    ending = f".{languages[0]}"
    stems = sorted(name.removesuffix(ending) for name in paths if name.endswith(ending))
    names = {stem: [f"{stem}.{language}" for language in languages] for stem in stems}
    return {stem: [paths.get(name, folder / name) for name in pair] for stem, pair in names.items()}
