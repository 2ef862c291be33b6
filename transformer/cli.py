"""The frame around every command: flags, logging, and how it ends.

Standard output carries results alone. What a user can mend is one line on standard error and exit code 2; an
interruption is one line and 130; only a bug shows a traceback, and exits with 1.
"""

import argparse
import contextlib
import errno
import logging as standard_logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import logging

from transformer import files
from transformer.allocator import keep_freed_memory
from transformer.config.keys import expected_types, nearest
from transformer.errors import UserError

OWN_CODE = tuple(str(Path(__file__).resolve().parent.parent / folder) + os.sep for folder in ("transformer", "scripts"))
DISK_IS_FULL = "the disk is full"
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
NOT_AS_NAMED = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP)


class Terminated(KeyboardInterrupt):
    """By SIGTERM."""


class Parser(argparse.ArgumentParser):
    """Flags of one command. Its errors are `UserError`s that name the nearest flag.

    Besides what `add_argument` declares it takes overrides of configuration keys: `--config.GROUP.KEY=VALUE` for
    overrides="config", `--GROUP.KEY=VALUE` for the name of a group. They come out as `arguments.overrides`, a list of
    (key with its group, text) for `config.load_file` or `config.override`.
    """

    def __init__(self, module: str, description: str, overrides: str | None = None):
        epilog = f"--{overrides}.KEY=VALUE sets a configuration key; configs/base.py explains each."
        super().__init__(
            prog=f"python -m {module}",
            description=description.splitlines()[0],
            epilog=epilog if overrides else None,
            allow_abbrev=False,
        )
        self.overrides = overrides

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Raises `UserError` for anything that is not a flag of this command with a value it may have."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        for flag in argv:
            name = flag.partition("=")[0]
            if flag.startswith("--") and name not in flags and not self._is_override(name):
                advice = nearest(name, flags + self._override_flags())
                raise UserError(f"{flag}: there is no such flag{advice} (--help lists them)")
        arguments, others = self.parse_known_args(argv)
        arguments.overrides, others = [], iter(others)
        for flag in others:
            name, equals, text = flag.partition("=")
            if not self._is_override(name):
                raise UserError(f"{flag}: is no flag, and nothing else is expected here (--help lists the flags)")
            if not equals and (text := next(others, None)) is None:
                raise UserError(f"{flag}: needs a value, {flag}=VALUE")
            arguments.overrides.append((name.removeprefix("--").removeprefix("config."), text))
        return arguments

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the flags)")

    def _is_override(self, name: str) -> bool:
        return self.overrides is not None and name.startswith(f"--{self.overrides}.")

    def _override_flags(self) -> list[str]:
        keys = [f"--config.{key}" if self.overrides == "config" else f"--{key}" for key in expected_types()]
        return [flag for flag in keys if self._is_override(flag)]


def run(parser: Parser, main: Callable[[argparse.Namespace], None]) -> NoReturn:
    """Runs `main` on the command line's arguments and ends the process."""
    keep_freed_memory()  # first, since threads that already run keep their arenas
    # A machine that is taken away says so by SIGTERM: training then saves as it does on Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    sys.unraisablehook = _tell_unraisable
    sys.exit(execute(parser, main, sys.argv[1:]))


def execute(parser: Parser, main: Callable[[argparse.Namespace], None], argv: Sequence[str]) -> int:
    """Runs `main` on the arguments in `argv` and returns the exit code."""
    root, handlers = standard_logging.getLogger(), standard_logging.getLogger().handlers[:]
    _start_logging()
    try:
        main(parser.parse(argv))
        _flush_output()
        return 0
    except UserError as error:
        logging.error("%s", " ".join(str(error).splitlines()))
        return 2
    except KeyboardInterrupt as interruption:
        logging.error("%s", str(interruption) or "interrupted")
        return 130
    except BrokenPipeError:  # the reader has gone: `| head`, for one
        return 128 + signal.SIGPIPE
    except Exception as error:
        if advice := _advice(error):
            logging.error("%s", advice)
            return 2
        logging.exception("unexpected %s; this is a bug", type(error).__name__)
        return 1
    finally:
        _end_output()
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
            handler.close()
        root.handlers[:] = handlers
        standard_logging.captureWarnings(False)


def log_to(path: Path) -> None:
    """From here on log lines are also appended to the file `path`, until the command ends."""
    handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(standard_logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(_worth_reading)
    standard_logging.getLogger().addHandler(handler)


class _StandardError(standard_logging.StreamHandler):
    """Writes where `sys.stderr` is at that moment: a progress bar puts itself in its place to keep lines apart."""

    def emit(self, record: standard_logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: standard_logging.LogRecord) -> str:
        if record.levelno >= standard_logging.ERROR:
            return f"error: {super().format(record)}"
        time = standard_logging.Formatter().formatTime(record, "%H:%M:%S")
        level = "warning: " if record.levelno >= standard_logging.WARNING else ""
        return f"{time} {level}{super().format(record)}"


class _LogFile(standard_logging.FileHandler):
    """What it cannot write, on a full disk, is on standard error all the same."""

    def handleError(self, record: standard_logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def _start_logging() -> None:
    handler = _StandardError()
    handler.addFilter(_worth_reading)
    standard_logging.getLogger().handlers[:] = [handler]
    logging.set_verbosity(logging.INFO)
    standard_logging.captureWarnings(True)
    # Of one failure in Orbax it tells as often as there are arrays, once the command has ended with the first.
    standard_logging.getLogger("asyncio").setLevel(standard_logging.CRITICAL)
    # Threads of Orbax may fail when the command has ended, and its handlers are gone.
    standard_logging.getLogger("absl").addFilter(_worth_reading)


def _worth_reading(record: standard_logging.LogRecord) -> bool:
    """Our own lines, and what libraries warn of; not their progress.

    Of Orbax errors alone, since no user can act on its warnings, and none that it raises besides.
    """
    if f"{os.sep}orbax{os.sep}" in record.pathname:
        return record.levelno >= standard_logging.ERROR and record.exc_info is None
    return record.pathname.startswith(OWN_CODE) or record.levelno >= standard_logging.WARNING


def _advice(error: BaseException | None) -> str | None:
    """One line for failures of the machine rather than of the code, however deep a library has wrapped them."""
    while error is not None:
        number = error.errno if isinstance(error, OSError) else None
        if number in files.FULL_DISK or "No space left on device" in str(error):
            return f"{DISK_IS_FULL} ({str(error).splitlines()[0]}); make room and run the same command again"
        if number in NOT_ALLOWED:
            return f"{error.filename}: {error.strerror}; choose another folder or change its permissions"
        if number in NOT_AS_NAMED and error.filename is not None:
            return f"{error.filename}: {error.strerror}; give another name, or move what is there out of the way"
        if type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error):
            return "out of device memory; lower config.batch.tokens and raise config.training.accumulation in return"
        error = error.__cause__ or error.__context__
    return None


def _end_output() -> None:
    """Writes what is left of standard output. If that fails, the interpreter must not try again when it exits."""
    try:
        _flush_output()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush_output() -> None:
    if sys.stdout is not None:  # None: it was closed before the command started
        sys.stdout.flush()


def _tell_unraisable(unraisable: Any) -> None:
    """Of what threads of Orbax have failed at the command ends; what they do after that finds their loop closed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise Terminated(f"terminated by signal {number}")
