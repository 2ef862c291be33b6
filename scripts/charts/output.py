"""Files of charts: PDF, SVG and PNG, rendered by vl-convert without a browser or a network."""

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer import files
from transformer.errors import UserError

FORMATS = ("pdf", "svg", "png")
RESOLUTION = 300  # pixels an inch of a PNG


def check_output(path: Path, formats: Sequence[str] = FORMATS) -> None:
    """Raises UserError unless a file in one of the formats can be written there, before anything is computed."""
    endings = " or ".join(f".{ending}" for ending in formats)
    if path.suffix[1:].lower() not in formats:
        raise UserError(f"--output={path}: must end in {endings}")
    if path.is_dir():
        raise UserError(f"--output={path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise UserError(f"--output={path}: there is no folder {path.parent}; make it first, or name another")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"--output={path}: the folder {path.parent} cannot be written; name another")


def write(chart: Any, path: Path) -> None:
    """Writes the chart atomically. Raises UserError if the file cannot be written, except for a full disk."""
    ending = path.suffix[1:].lower()
    content = io.StringIO() if ending == "svg" else io.BytesIO()
    chart.save(content, format=ending, **({"ppi": RESOLUTION} if ending == "png" else {}))
    try:
        files.write_bytes(path, content.getvalue().encode() if ending == "svg" else content.getvalue())
    except OSError as error:
        if error.errno in files.FULL_DISK:
            raise
        raise UserError(f"--output={path}: cannot be written ({error.strerror}); name another file") from error
