"""Logging of the commands, on standard error and in a file.

It has the project's own lines and the warnings of libraries.
"""

import contextlib
import logging as standard_logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from absl import logging

# The folders of the project's own code.
OWN_CODE = tuple(
    str(Path(__file__).resolve().parents[2] / folder) + os.sep
    for folder in ("transformer", "scripts")
)


@contextlib.contextmanager
def to_standard_error() -> Iterator[None]:
    """Sends log lines and Python's warnings to standard error during the block.

    Closes log files after it.
    """
    # absl's logger and the warnings of Python pass their records to the root logger.
    root = standard_logging.getLogger()
    earlier = root.handlers[:]
    root.handlers[:] = [_StandardErrorHandler()]
    root.handlers[0].addFilter(_is_relevant)
    logging.set_verbosity(logging.INFO)
    standard_logging.captureWarnings(True)
    # When Orbax fails to write, asyncio logs a traceback for every array, even after the command
    # has ended.
    standard_logging.getLogger("asyncio").setLevel(standard_logging.CRITICAL)
    try:
        yield
    finally:
        standard_logging.captureWarnings(False)
        for handler in set(root.handlers) - set(earlier):
            with contextlib.suppress(OSError):  # the disk is full
                handler.close()
        root.handlers[:] = earlier


def to_file(path: Path) -> None:
    """Appends log lines to a file as well, until the end of the `to_standard_error` block."""
    standard_logging.getLogger().addHandler(file_handler(path))


def file_handler(path: Path) -> standard_logging.Handler:
    """Returns a handler that appends log lines to a file."""
    handler = _FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(standard_logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(_is_relevant)
    return handler


class _FileHandler(standard_logging.FileHandler):
    """A handler that drops the lines that it cannot write, as when the disk is full."""

    def handleError(self, record: standard_logging.LogRecord) -> None:
        return None


class _StandardErrorHandler(standard_logging.StreamHandler):
    """A handler that writes to the current `sys.stderr`.

    A progress bar replaces `sys.stderr`, so that log lines stand above the bar.
    """

    def emit(self, record: standard_logging.LogRecord) -> None:
        # The stream at the time of the record, not at the construction of the handler.
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: standard_logging.LogRecord) -> str:
        if record.levelno >= standard_logging.ERROR:
            return f"error: {super().format(record)}"
        level = "warning: " if record.levelno >= standard_logging.WARNING else ""
        return f"{time.strftime('%H:%M:%S')} {level}{super().format(record)}"


def _is_relevant(record: standard_logging.LogRecord) -> bool:
    """Selects the project's own lines, and the warnings of libraries except Orbax."""
    if record.pathname.startswith(OWN_CODE):
        return True
    # Orbax also raises the errors that it logs.
    is_orbax = f"{os.sep}orbax{os.sep}" in record.pathname
    return record.levelno >= standard_logging.WARNING and not is_orbax
