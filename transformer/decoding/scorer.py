"""Scores of translations by a command, such as a neural metric in a separate environment.

A command has the fields {source}, {reference} and {hypothesis}, of which it may use some. Each
becomes the name of a file with one text on each line. The command prints one number for each line.
Its other output may go to standard error.
"""

import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer.data.sources.lines import parse_number
from transformer.support.errors import UserError

FIELDS = ("source", "reference", "hypothesis")
SECONDS = 3600.0  # without an end of the command
_FIELD = re.compile(r"\{(\w*)\}")
_SHOWN = 200  # characters of a command's output in an error


def check_command(name: str, command: str, fields: Sequence[str] = FIELDS) -> None:
    """Raises UserError, which has the name, if a command cannot be split or has other fields."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"{name}={command}: is not a command ({error}); quote it") from error
    used = set(_FIELD.findall(" ".join(words)))
    unknown = sorted(used - set(fields))
    if not words or unknown or "hypothesis" not in used:
        has = f"has {{{unknown[0]}}}" if unknown else "has no {hypothesis}"
        allowed = ", ".join(f"{{{field}}}" for field in fields)
        raise UserError(f"{name}={command}: {has}, and may have {allowed}")


def run_scorer(
    command: str, texts: Mapping[str, Sequence[str]], seconds: float = SECONDS
) -> list[float]:
    """Returns the number that the command prints for each line of the texts, which are by field.

    Raises UserError, with the end of what the command printed, if it fails, takes longer than
    `seconds`, or prints anything but one finite number for each line.
    """
    count = len(texts["hypothesis"])
    if not count:
        return []
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for field, lines in texts.items():
            paths[field] = Path(folder) / f"{field}.txt"
            # A line of a file is a text, so a text has no line breaks.
            content = "".join(f"{' '.join(line.splitlines())}\n" for line in lines)
            paths[field].write_text(content, "utf-8")
        words = [
            _FIELD.sub(lambda match: str(paths[match[1]]), word) for word in shlex.split(command)
        ]
        printed = _run(command, words, seconds)

    lines = printed.splitlines()
    if len(lines) != count:
        raise UserError(
            f"{command}: printed {len(lines)} lines for {count} translations, must print one "
            f"number for each{_described(printed)}"
        )
    return [parse_score(line, f"{command}: line {i}") for i, line in enumerate(lines, start=1)]


def parse_score(text: str, where: str) -> float:
    """Returns a score. Raises UserError, which begins with `where`, if it is not finite."""
    value = parse_number(text)
    if not math.isfinite(value):
        raise UserError(f"{where}: '{text.strip():.40}' is not a finite number")
    return value


def _run(command: str, words: Sequence[str], seconds: float) -> str:
    """Returns what the command prints."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise UserError(f"{command}: cannot be run ({error.strerror or error})") from error
    is_late = False
    try:
        printed, messages = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        is_late = True
        _kill(process)
        printed, messages = process.communicate()
    except BaseException:  # an interrupt does not reach the session of the command
        _kill(process)
        raise
    described = _described(messages.strip() or printed)
    if is_late:
        raise UserError(f"{command}: did not end within {seconds:g} seconds{described}")
    if process.returncode:
        raise UserError(f"{command}: failed with exit code {process.returncode}{described}")
    return printed


def _kill(process: subprocess.Popen) -> None:
    """Kills the processes that the command has started too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _described(printed: str) -> str:
    """Returns the end of what a command printed, as the end of an error."""
    text = " ".join(printed.split())
    return f"; it printed: {text[-_SHOWN:]}" if text else "; it printed nothing"
