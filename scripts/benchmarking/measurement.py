"""The machine and the code that the results of a benchmark belong to."""

import platform
import re

from transformer.support import processor
from transformer.support.environment import git


def describe_machine(threads: int) -> str:
    """Returns the processor, the number of threads and the commit, + with uncommitted changes."""
    return f"{processor_name()}, {threads} threads, commit {commit()}"


def processor_name() -> str:
    described = processor.DESCRIPTION.read_text("utf-8") if processor.DESCRIPTION.exists() else ""
    name = re.search(r"model name\s*: (.*)", described)
    return name[1] if name else platform.processor() or platform.machine()


def commit() -> str:
    """Returns the commit of the code, + with uncommitted changes; "unknown" without git."""
    return (git("describe", "--always", "--dirty=+", "--exclude=*") or "unknown").strip()


def processor_kind() -> str:
    """Returns how this processor computes in bfloat16: by a matrix unit (amx), by vector
    instructions, or not.

    The marks of a table name it, so that a file can have a table for each kind.
    """
    if not processor.computes_bfloat16():
        return "no-bfloat16"
    return "amx" if "amx_bf16" in processor.processor_features() else "bfloat16"
