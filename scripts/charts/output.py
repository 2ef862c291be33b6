"""Files of charts: PDF, SVG and PNG, rendered by vl-convert without a browser or a network."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer import files
from transformer.errors import UserError

FORMATS = ("pdf", "svg", "png")
RESOLUTION = 300  # pixels an inch of a PNG


def check_output(path: Path, formats: Sequence[str] = FORMATS) -> None:
    """Raises UserError unless the file has one of the endings and its folder exists, before anything is computed."""
    endings = " or ".join(f".{ending}" for ending in formats)
    if path.suffix[1:].lower() not in formats:
        raise UserError(f"--output={path}: must end in {endings}")
    if not path.parent.is_dir():
        raise UserError(f"--output={path}: there is no folder {path.parent}; make it first, or name another")


def write(chart: Any, path: Path) -> None:
    """Writes the chart atomically."""
    ending = path.suffix[1:].lower()
    content = io.StringIO() if ending == "svg" else io.BytesIO()
    chart.save(content, format=ending, **({"ppi": RESOLUTION} if ending == "png" else {}))
    files.write_bytes(path, content.getvalue().encode() if ending == "svg" else content.getvalue())
