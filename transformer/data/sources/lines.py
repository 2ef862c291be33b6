"""Text files as sequences of lines, readable from any line.

A line ends with "\\n" or "\\r\\n"; other Unicode line breaks are text. A byte order mark at the start is skipped.
"""

import codecs
import contextlib
import gzip
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np

from transformer.errors import UserError

LINES_PER_MARK = 1024  # lines for each offset in the index, which needs 280 kB for 36 million lines
_BLOCK = 1 << 22  # bytes read at once when counting lines


@dataclass(frozen=True)
class LineFile:
    """The lines of a plain or gzip file. Only a plain file can be read from any line without reading those before."""

    path: Path

    @property
    def seekable(self) -> bool:
        return self.path.suffix != ".gz"

    @property
    def identity(self) -> list:
        status = self.path.stat()
        return [str(self.path), status.st_size, status.st_mtime_ns]

    def __len__(self) -> int:
        return self._index[0]

    @cached_property
    def _index(self) -> tuple[int, np.ndarray]:
        """The number of lines, and the byte offsets of lines 0, LINES_PER_MARK, 2 LINES_PER_MARK, ..."""
        count, position, marks, last = 0, 0, [0], b"\n"
        with _open(self.path) as file:
            while block := file.read(_BLOCK):
                starts = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + position + 1
                marks += starts[LINES_PER_MARK - 1 - count % LINES_PER_MARK :: LINES_PER_MARK].tolist()
                count, position, last = count + len(starts), position + len(block), block[-1:]
        return count + (last != b"\n"), np.array(marks)

    def lines(self, start: int, stop: int | None) -> Iterator[bytes]:
        """Yields lines start to stop (None: to the end), counted from 0, without their line ends."""
        with _open(self.path) as file:
            skipped = start // LINES_PER_MARK * LINES_PER_MARK if self.seekable else 0
            if skipped:
                file.seek(self._index[1][start // LINES_PER_MARK])
            lines = itertools.islice(file, start - skipped, None if stop is None else stop - skipped)
            for number, line in enumerate(lines, start):
                yield strip_line_end(line, first=number == 0)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Opens a plain or gzip file for reading. Raises UserError if it cannot be opened or read."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); replace it") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a file that can be read") from error


def strip_line_end(line: bytes, first: bool) -> bytes:
    """Removes the line end, and from the first line of a file also the byte order mark."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.removeprefix(codecs.BOM_UTF8) if first else line


def read_text_file(path: Path) -> list[str]:
    """Returns the lines of a plain or gzip file. Raises UserError if it cannot be read or a line is not UTF-8."""
    return [decode(line, f"{path}, line {number}") for number, line in enumerate(LineFile(path).lines(0, None), 1)]


def decode(line: bytes, where: str) -> str:
    """Decodes UTF-8. Raises UserError, with the position `where`, if the bytes are not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start + 1}); convert the file to UTF-8") from error


def is_natural_number(token: str | bytes) -> bool:
    """Returns whether the token is a decimal integer of at least 0 that fits 64 bits."""
    return token.isascii() and token.isdigit() and len(token) <= 18
