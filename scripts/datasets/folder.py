"""Folders of parallel text, as `data.source=text` reads them: their files, and the record of how
they were made.
"""

import hashlib
from pathlib import Path
from typing import Any

from transformer.data.sources.lines import count_lines
from transformer.data.sources.source import ORIGIN
from transformer.support import files
from transformer.support.environment import now
from transformer.support.errors import UserError

Pair = tuple[str, str]  # the codes of the source and the target language, such as ("en", "de")
# the stems of the files, which are the default splits of configs/base.py
SPLITS = ("train", "validation", "test")


def write_record(folder: Path, languages: Pair, facts: dict[str, Any]) -> dict[str, Any]:
    """Writes `data.json`, with the facts and the files of text.

    Raises UserError for empty or unequal files.
    """
    described = {}
    found = {path.name.removesuffix(".gz"): path for path in folder.iterdir()}
    for stem in sorted(
        name.removesuffix(f".{languages[0]}") for name in found if name.endswith(f".{languages[0]}")
    ):
        names = [f"{stem}.{language}" for language in languages]
        paths = [found.get(name, folder / name) for name in names]
        counts = [count_lines(path) for path in paths]
        if counts[0] != counts[1] or not counts[0]:
            raise UserError(
                f"{stem}: has {counts[0]} sentences of {languages[0]} and {counts[1]} of {languages[1]}; a split needs "
                "equally many, at least 1; leave it out, or replace its data"
            )
        for path, lines in zip(paths, counts, strict=True):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            described[path.name] = {"lines": lines, "bytes": path.stat().st_size, "sha256": digest}
    record = {"made": now(), "languages": list(languages)} | facts | {"files": described}
    files.write_json(folder / ORIGIN, record)
    return record
