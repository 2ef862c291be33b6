"""Lines of standard input, as they come."""

import io
import select
import time
from collections.abc import Iterable, Iterator

from absl import logging

from transformer.data.sources.lines import check_encoding, probable_encoding, strip_line_end
from transformer.errors import UserError

PATIENCE = 0.02  # seconds in which a chunk waits for more lines: long enough for a fast writer to fill its pipe again
BLOCK_BYTES = 1 << 16  # read at once, as much as a pipe holds


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
            _warn_about_encoding(line)
        line = strip_line_end(line, first=number == 1)
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            logging.warning(
                "Line %d is not UTF-8 (byte %d): such bytes become U+FFFD; %s.",
                *(number, error.start + 1, probable_encoding(line)),
            )
            yield line.decode(errors="replace")


def _warn_about_encoding(first_line: bytes) -> None:
    try:
        check_encoding(first_line, "standard input")
    except UserError as error:  # each line still gets its line of output
        logging.warning("%s", error)
