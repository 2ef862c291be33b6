"""Text files as sequences of lines.

A line ends with "\\n" or "\\r\\n"; other Unicode line breaks are text. A byte order mark at the start is skipped.
"""

import codecs
import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from transformer.errors import UserError


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a plain or gzip file without their line ends. Raises UserError if it cannot be read."""
    with _opened(path) as file:
        for number, line in enumerate(file):
            yield strip_line_end(line, first=number == 0)


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yields the content of a plain or gzip file in large parts. Raises UserError if it cannot be read."""
    with _opened(path) as file:
        while block := file.read(1 << 20):
            yield block


def count_lines(path: Path) -> int:
    """Returns how many lines `read_lines` yields, without making them."""
    count, last = 0, b"\n"
    for block in read_blocks(path):
        count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
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
    return [decode(line, f"{path}, line {number}") for number, line in enumerate(read_lines(path), 1)]


def read_parallel_files(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Returns the lines of two files. Raises UserError as `read_text_file` does, and if the numbers of lines differ."""
    texts, translations = read_text_file(source), read_text_file(target)
    if len(texts) != len(translations):
        raise UserError(
            f"{source} has {len(texts)} lines and {target} has {len(translations)}: "
            "line N of one must translate line N of the other"
        )
    return texts, translations


def decode(line: bytes, where: str) -> str:
    """Decodes UTF-8. Raises UserError, with the position `where`, if the bytes are not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start + 1}); convert the file to UTF-8") from error


def is_natural_number(token: str | bytes) -> bool:
    """Returns whether the token is a decimal integer of at least 0 that fits 64 bits."""
    return token.isascii() and token.isdigit() and len(token) <= 18
