"""Text files by lines, read from any line on.

Lines end at "\\n" alone, a carriage return before it aside: what else Unicode counts as a line break is text. The byte
order mark with which programs on Windows begin a file is no part of its first line.
"""

import codecs
import gzip
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from transformer.errors import UserError

LINES_PER_MARK = 1024  # the index holds the place of every so many lines: 36 million lines need 280 kB
_BLOCK = 1 << 22  # bytes read at once when counting lines


@dataclass(frozen=True)
class LineFile:
    """The lines of a plain or gzip file. A plain one can be read from any line on; a gzip one only from the first."""

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
        """The number of lines, and the byte at which lines 0, LINES_PER_MARK, 2 LINES_PER_MARK, ... start."""
        count, position, marks, last = 0, 0, [0], b"\n"
        with self._opened() as file:
            while block := file.read(_BLOCK):
                starts = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + position + 1
                marks += starts[LINES_PER_MARK - 1 - count % LINES_PER_MARK :: LINES_PER_MARK].tolist()
                count, position, last = count + len(starts), position + len(block), block[-1:]
        return count + (last != b"\n"), np.array(marks)

    def lines(self, start: int, stop: int | None) -> Iterator[bytes]:
        """Lines start to stop (None: to the end), counted from 0, without their ends."""
        with self._opened() as file:
            skipped = start // LINES_PER_MARK * LINES_PER_MARK if self.seekable else 0
            if skipped:
                file.seek(self._index[1][start // LINES_PER_MARK])
            lines = itertools.islice(file, start - skipped, None if stop is None else stop - skipped)
            for number, line in enumerate(lines, start):
                yield strip_line_end(line, first=number == 0)

    def _opened(self) -> "_Opened":
        return _Opened(self.path)


class _Opened:
    """A file open for reading bytes, whose troubles are the user's to mend."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self):
        try:
            self._file = gzip.open(self._path, "rb") if self._path.suffix == ".gz" else self._path.open("rb")
        except OSError as error:
            raise UserError(f"{self._path}: {error.strerror}; give a file that can be read") from error
        return self._file

    def __exit__(self, kind, error, traceback) -> None:
        self._file.close()
        if isinstance(error, (gzip.BadGzipFile, EOFError, zlib.error)):
            raise UserError(f"{self._path}: not a whole gzip file ({error}); get it again") from error
        if isinstance(error, OSError):
            raise UserError(f"{self._path}: {error.strerror}; give a file that can be read") from error


def strip_line_end(line: bytes, first: bool) -> bytes:
    """A line as it was read, without its end; without a byte order mark too if it is the first of its file."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.removeprefix(codecs.BOM_UTF8) if first else line


def read_text_file(path: Path) -> list[str]:
    """The lines of a text file, plain or gzip. Raises UserError if it cannot be read or a line is not UTF-8."""
    return [decode(line, f"{path}, line {number}") for number, line in enumerate(LineFile(path).lines(0, None), 1)]


def decode(line: bytes, where: str) -> str:
    """The text of a line that may not be dropped. Raises UserError, saying `where`, if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start + 1}); convert the file to UTF-8") from error


def is_number(token: str | bytes) -> bool:
    """Whether it is a decimal integer from 0 on, of no more digits than 64 bits can hold."""
    return token.isascii() and token.isdigit() and len(token) <= 18
