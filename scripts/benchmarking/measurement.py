"""Results of a benchmark, and the machine and code that they belong to."""

import contextlib
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scripts import markdown
from transformer.model import kernels


class Measurement(NamedTuple):
    """The rows of a table, with the header first, and notes below the table.

    `processor` is the kind of processor, if the results depend on it. The marks in a file name it, so that the file can
    have a table for each kind.
    """

    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    processor: str = ""

    @property
    def text(self) -> str:
        """The table and its notes in Markdown."""
        return markdown.table(self.rows) + "".join(f"\n{note}\n" for note in self.notes)


def describe_machine(threads: int) -> str:
    """Returns the processor, the number of threads and the commit, + with uncommitted changes."""
    return f"{processor_name()}, {threads} threads, commit {commit()}"


def processor_name() -> str:
    described = kernels.PROCESSOR.read_text(encoding="utf-8") if kernels.PROCESSOR.exists() else ""
    name = re.search(r"model name\s*: (.*)", described)
    return name[1] if name else platform.processor() or platform.machine()


def commit() -> str:
    """Returns the commit of the code, + with uncommitted changes; "unknown" without git."""
    command, described = ["git", "describe", "--always", "--dirty=+", "--exclude=*"], ""
    with contextlib.suppress(OSError):
        described = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    return described or "unknown"


def processor_kind() -> str:
    """Returns how this processor computes in bfloat16: by a matrix unit (amx), by vector instructions, or not."""
    if not kernels.computes_bfloat16():
        return "no-bfloat16"
    return "amx" if "amx_bf16" in kernels.processor_words() else "bfloat16"
