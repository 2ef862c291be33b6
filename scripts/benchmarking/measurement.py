"""The machine and the version of the code, which the results of a benchmark name."""

import platform
import re

from transformer.support import processor
from transformer.support.environment import git


def describe_machine(threads: int) -> str:
    """Returns the processor, the number of threads and the commit."""
    return f"{processor_name()}, {threads} threads, commit {commit()}"


def processor_name() -> str:
    if processor.DESCRIPTION.exists():
        name = re.search(r"model name\s*: (.*)", processor.DESCRIPTION.read_text("utf-8"))
        if name:
            return name[1]
    return platform.processor() or platform.machine()


def commit() -> str:
    """Returns the commit of the code, with a + if files differ from it; "unknown" without git."""
    return (git("describe", "--always", "--dirty=+", "--exclude=*") or "unknown").strip()


def processor_kind() -> str:
    """Returns how this processor computes in bfloat16: "amx", "bfloat16" or "no-bfloat16".

    "amx" is a matrix unit, "bfloat16" vector instructions. The marks of a table have this name, so
    that a file can have a table for each kind.
    """
    if not processor.computes_bfloat16():
        return "no-bfloat16"
    return "amx" if "amx_bf16" in processor.processor_features() else "bfloat16"
