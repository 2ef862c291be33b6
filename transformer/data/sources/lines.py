"""Text files and standard input as sequences of lines.

A line ends with "\\n" or "\\r\\n"; other Unicode line breaks are text. A byte order mark at the
start is skipped. UTF-16 and UTF-32 are refused: they would look like damaged lines.
"""

import codecs
import gzip
import io
import itertools
import math
import re
import select
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from absl import logging

from transformer.support.errors import UserError

# The seconds that a chunk waits for more lines: enough for a fast writer to fill its pipe again.
PATIENCE = 0.02
BLOCK_BYTES = 1 << 16  # read at once, as much as a pipe holds; the first ones tell the encoding
# Compressed formats other than .gz, which cannot be read.
PACKED = (".bz2", ".xz", ".zip", ".zst", ".tar", ".tgz")
# The first line of test sets in SGML or XML.
_MARKUP = re.compile(r"\s*<(\?xml|!doctype|srcset|refset|tstset)\b", re.IGNORECASE)
_CONVERT = "correct the line, or convert the text, as with iconv -f WINDOWS-1252 -t UTF-8"


def count_lines(path: Path) -> int:
    """Returns how many lines `read_lines` yields."""
    return sum(1 for _ in read_lines(path))


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a plain or gzip file without their ends.

    Raises UserError if the file is damaged, cannot be read, or is UTF-16.
    """
    try:
        with _open(path) as file:
            _check_encoding(file.peek(BLOCK_BYTES), path)
            for number, line in enumerate(file):
                yield strip_line_end(line, first=number == 0)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); replace it") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a file that can be read") from error


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return io.BufferedReader(path.open("rb", buffering=0), BLOCK_BYTES)


def _check_encoding(head: bytes, path: Path | str) -> None:
    # Without a mark, wide characters show in newlines that have a zero byte beside them.
    has_mark = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE))
    wide_newlines = max(head.count(b"\n\0"), head.count(b"\0\n"))
    if has_mark or 2 * wide_newlines > head.count(b"\n"):
        raise UserError(
            f"{path}: is UTF-16 or UTF-32, must be UTF-8; convert it, as with "
            "iconv -f UTF-16 -t UTF-8"
        )


def strip_line_end(line: bytes, first: bool) -> bytes:
    """Removes the line end, and from the first line of a file also the byte order mark."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.removeprefix(codecs.BOM_UTF8) if first else line


def read_chunks(stream: io.BufferedIOBase, chunk_lines: int) -> Iterator[list[bytes]]:
    """Yields the lines of a stream in chunks of `chunk_lines` lines.

    A chunk is shorter if no more input is ready for `PATIENCE` seconds. Raises UserError if the
    stream is UTF-16.
    """
    lines = []
    parts = []  # of the line after `lines`, which has no end yet
    is_first = True
    while _is_ready(stream, None):
        block = stream.read1(BLOCK_BYTES)
        if not block:
            break
        if is_first:
            _check_encoding(block, "standard input")
            is_first = False
        if not lines:
            patient_until = time.monotonic() + PATIENCE

        # The block continues the line without an end, and may end with another such line.
        first, *following = block.split(b"\n")
        parts.append(first)
        if following:
            lines += [b"".join(parts), *following[:-1]]
            parts = following[-1:]

        # Yield full chunks, and shorter chunks if the writer is slow.
        while lines:
            is_full = len(lines) >= chunk_lines
            if not is_full and _is_ready(stream, patient_until - time.monotonic()):
                break
            yield lines[:chunk_lines]
            del lines[:chunk_lines]

    # The last line may have no end.
    if any(parts):
        lines.append(b"".join(parts))
    if lines:
        yield lines


def _is_ready(stream: io.BufferedIOBase, timeout: float | None) -> bool:
    """Waits for input or the end of the stream; False after `timeout` seconds."""
    if timeout is not None:
        timeout = max(timeout, 0.0)
    try:
        return bool(select.select([stream], [], [], timeout)[0])
    except io.UnsupportedOperation:  # a stream in memory
        return True


def is_blank(line: bytes) -> bool:
    """True if a line has only spaces of any kind, as between two documents."""
    return not line.decode(errors="replace").strip()


def count_documents(has_text: Iterable[bool]) -> int:
    """Returns the number of documents in a text, where lines without text divide documents."""
    return sum(bool(has) for has, _ in itertools.groupby(has_text))


def log_documents(name: str, documents: int) -> None:
    """Logs the number of documents of a text. Warns if there is only one."""
    if documents > 1:
        logging.info("%s: %s documents.", name, f"{documents:,}")
    else:
        logging.warning(
            "%s: no blank line divides it, so it is one document: sentences of any origin become "
            "the context of the next ones; put blank lines between documents.",
            name,
        )


def whole_documents(chunks: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Divides the lines of the chunks into other chunks, which end after blank lines."""
    lines: list[bytes] = []
    for chunk in chunks:
        stop = 0  # after the last blank line
        for number, line in enumerate(chunk, start=len(lines) + 1):
            if is_blank(line):
                stop = number

        # The lines after the last blank line may continue in the next chunk.
        lines += chunk
        if stop:
            yield lines[:stop]
            del lines[:stop]
    if lines:
        yield lines


def decode_lines(lines: Iterable[bytes], first_line: int = 1) -> Iterator[str]:
    """Yields the lines as text, without their ends.

    Bytes that are not UTF-8 become U+FFFD, with a warning.
    """
    for number, line in enumerate(lines, start=first_line):
        line = strip_line_end(line, first=number == 1)
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            message = "Line %d is not UTF-8 (byte %d): such bytes become U+FFFD; %s."
            logging.warning(message, number, error.start + 1, _CONVERT)
            yield line.decode(errors="replace")


def read_text_file(path: Path) -> list[str]:
    """Returns the lines of a plain or gzip file.

    Raises UserError if the file cannot be read, or if a line is not UTF-8.
    """
    lines = enumerate(read_lines(path), start=1)
    return [decode(line, f"{path}, line {number}") for number, line in lines]


def read_parallel_files(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Returns the lines of two files.

    Raises UserError if `read_text_file` does, if a file is SGML or XML, or if the numbers of lines
    differ.
    """
    texts = read_text_file(source)
    translations = read_text_file(target)

    # WMT distributes its test sets in these formats.
    for path, lines in ((source, texts), (target, translations)):
        if lines and _MARKUP.match(lines[0]):
            raise UserError(
                f"{path}: is SGML or XML, must be text; write each segment to a line of a file"
            )
    if len(texts) != len(translations):
        raise different_lengths(source, target, len(texts), len(translations))
    return texts, translations


def different_lengths(source: Path, target: Path, lines: int, target_lines: int) -> UserError:
    """Returns the error for parallel files whose numbers of lines differ."""
    counts = f"{source} has {count_noun(lines, 'line')} and {target} has {target_lines}"
    return UserError(f"{counts}: line N of one must translate line N of the other")


def decode(line: bytes, where: str) -> str:
    """Decodes UTF-8. Raises UserError, with the position `where`, if the bytes are not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start + 1}); {_CONVERT}") from error


def count_noun(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 pair" or "2,000 pairs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parse_number(text: str) -> float:
    """Returns the value of a text that is a number, else NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def is_natural_number(token: str | bytes) -> bool:
    """True if the token is a decimal integer of at least 0 that fits 64 bits."""
    return token.isascii() and token.isdigit() and len(token) <= 18
