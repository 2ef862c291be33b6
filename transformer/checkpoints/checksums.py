"""The seal of a checkpoint: size and digest of every file in it, so that damage is seen before it does harm."""

import hashlib
import json
from pathlib import Path

from transformer import files

NAME = "seal.json"


def write(folder: Path) -> None:
    """Seals what is in the folder's own folders, one an item; files beside them are Orbax's notes on its progress."""
    files.write_json(folder / NAME, {name: _describe(folder / name) for name in _names(folder)})


def damage(folder: Path) -> str | None:
    """What is wrong with the folder's files, or None."""
    try:
        sealed = json.loads((folder / NAME).read_bytes())
        missing = sorted(set(sealed) - set(_names(folder)))
        if missing:
            return f"damaged: {missing[0]} is missing"
        changed = [name for name, description in sealed.items() if _describe(folder / name) != description]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"damaged: its seal cannot be checked ({type(error).__name__}: {error})"
    return f"damaged: {changed[0]} is not as it was written" if changed else None


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/**/*") if path.is_file())


def _describe(path: Path) -> list[int | str]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest()[:32]]
