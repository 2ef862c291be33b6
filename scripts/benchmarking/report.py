"""Results of a benchmark, and the machine and code that they belong to."""

import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts import markdown


class Report(NamedTuple):
    """The rows of a table, with the header first, notes below the table, and the same values for JSON.

    `summary` has a line for each batch, for the README. `dtype` is the fastest one of the processor, if the results
    depend on it. The marks in a file name it, so that the file can have a table for each kind of processor.
    """

    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    values: Any
    summary: str = ""
    dtype: str = ""

    @property
    def text(self) -> str:
        """The table and its notes in Markdown."""
        return markdown.table(self.rows) + "".join(f"\n{note}\n" for note in self.notes)


def describe_machine(threads: int) -> str:
    """Returns the processor, the number of threads and the commit, + with uncommitted changes."""
    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8") if information.exists() else ""
    name = re.search(r"model name\s*: (.*)", text)
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    processor = name[1] if name else platform.processor() or platform.machine()
    return f"{processor}, {threads} threads, commit {result.stdout.strip() or 'unknown'}"
