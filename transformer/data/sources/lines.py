"""Text files and standard input as sequences of lines.

A line ends with "\\n" or "\\r\\n"; other Unicode line breaks are text. A byte order mark at the start is skipped.
UTF-16, UTF-32 and lines that end with "\\r" only are refused: they would look like one line, or like damaged ones.
"""

import codecs
import contextlib
import gzip
import io
import select
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from absl import logging

from transformer.errors import UserError

_HEAD = 1 << 16  # bytes that tell the encoding
PATIENCE = 0.02  # seconds in which a chunk waits for more lines: long enough for a fast writer to fill its pipe again
BLOCK_BYTES = 1 << 16  # read at once, as much as a pipe holds
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


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
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb", buffering=_HEAD) as file:
            check_encoding(file.peek(_HEAD), str(path))
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); replace it") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a file that can be read") from error


def check_encoding(head: bytes, name: str) -> None:
    """Raises UserError if a file that begins with `head` is UTF-16 or UTF-32, or has no line end but "\\r"."""
    if encoding := _wide_encoding(head):
        raise UserError(f"{name}: is {encoding}, must be UTF-8; convert it: iconv -f {encoding} -t UTF-8")
    if b"\r" in head and b"\n" not in head:
        raise UserError(f"{name}: its lines end with CR only, must end with LF; convert it: tr '\\r' '\\n'")


def _wide_encoding(head: bytes) -> str | None:
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    for encoding in ("UTF-16LE", "UTF-16BE") if b"\0" in head else ():
        with contextlib.suppress(UnicodeDecodeError):
            text = codecs.getincrementaldecoder(encoding)().decode(head)  # the head may end within a character
            if "\n" in text and "\0" not in text:
                return encoding
    return None


def strip_line_end(line: bytes, first: bool) -> bytes:
    """Removes the line end, and from the first line of a file also the byte order mark."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.removeprefix(codecs.BOM_UTF8) if first else line


def read_chunks(stream: io.BufferedIOBase, chunk_lines: int) -> Iterator[list[bytes]]:
    """Yields the lines of a stream, `chunk_lines` at a time, or those that have come when no more input is ready.

    So a program that writes a line and waits for its translation gets it. Regular files are always ready.
    """
    lines, parts = [], []  # complete lines, and the parts of the next one
    while _is_ready(stream, None) and (block := stream.read1(BLOCK_BYTES)):
        if not lines:
            patient_until = time.monotonic() + PATIENCE
        first, *following = block.split(b"\n")
        parts.append(first)
        if following:
            lines += [b"".join(parts), *following[:-1]]
            parts = following[-1:]
        while len(lines) >= chunk_lines or (lines and not _is_ready(stream, patient_until - time.monotonic())):
            yield lines[:chunk_lines]
            del lines[:chunk_lines]
    if any(parts):
        lines.append(b"".join(parts))
    if lines:
        yield lines


def _is_ready(stream: io.BufferedIOBase, seconds: float | None) -> bool:
    """Waits until the stream has input or ends, at most so many seconds, and tells whether it does."""
    try:
        return bool(select.select([stream], [], [], seconds if seconds is None else max(seconds, 0.0))[0])
    except io.UnsupportedOperation:  # a stream in memory
        return True


def decode_lines(lines: Iterable[bytes], first_line: int = 1) -> Iterator[str]:
    """Yields the lines without their ends. Replaces bytes that are not UTF-8 by U+FFFD, with a warning."""
    for number, line in enumerate(lines, start=first_line):
        if number == 1:
            try:
                check_encoding(line, "standard input")
            except UserError as error:  # each line still gets its line of output
                logging.warning("%s", error)
        line = strip_line_end(line, first=number == 1)
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            logging.warning(
                "Line %d is not UTF-8 (byte %d): such bytes become U+FFFD; %s.",
                *(number, error.start + 1, probable_encoding(line)),
            )
            yield line.decode(errors="replace")


def read_text_file(path: Path) -> list[str]:
    """Returns the lines of a plain or gzip file. Raises UserError if it cannot be read or a line is not UTF-8."""
    return [decode(line, f"{path}, line {number}") for number, line in enumerate(read_lines(path), 1)]


def read_parallel_files(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Returns the lines of two files. Raises UserError as `read_text_file` does, and if the numbers of lines differ."""
    texts, translations = read_text_file(source), read_text_file(target)
    if len(texts) != len(translations):
        raise UserError(
            f"{source} has {counted(len(texts), 'line')} and {target} has {len(translations)}: "
            "line N of one must translate line N of the other"
        )
    return texts, translations


def decode(line: bytes, where: str) -> str:
    """Decodes UTF-8. Raises UserError, with the position `where`, if the bytes are not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start + 1}); {probable_encoding(line)}") from error


def probable_encoding(line: bytes) -> str:
    """Returns what a line that is not UTF-8 probably is, and how to correct it."""
    beyond_ascii = [byte for byte in line if byte >= 0x80]
    invalid = len(line) - len(line.decode(errors="ignore").encode())
    if 2 * invalid < len(beyond_ascii):
        return "it is damaged UTF-8; correct the line"
    if 2 * len(beyond_ascii) > len(line):
        return (
            "it is probably in an older encoding of its language, such as GB18030, Shift_JIS or WINDOWS-1251; convert "
            "the file to UTF-8 with iconv"
        )
    encoding = "WINDOWS-1252" if min(beyond_ascii) < 0xA0 else "ISO-8859-1"
    return f"it is probably {encoding}; convert the file to UTF-8: iconv -f {encoding} -t UTF-8"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 pair" or "2,000 pairs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def is_natural_number(token: str | bytes) -> bool:
    """Returns whether the token is a decimal integer of at least 0 that fits 64 bits."""
    return token.isascii() and token.isdigit() and len(token) <= 18
