"""The processor's name, and the dtypes for which it has fast matmuls."""

import functools
from pathlib import Path

# Linux describes the processor in this file.
DESCRIPTION = Path("/proc/cpuinfo")


def auto_dtype(platform: str) -> str:
    """Returns the dtype for `model.dtype=auto`: bfloat16, but float32 on CPUs without bfloat16."""
    return "bfloat16" if platform != "cpu" or computes_bfloat16() else "float32"


def computes_bfloat16() -> bool:
    """True if this processor has dot products (AVX-512, Arm) or a matrix unit (AMX) in bfloat16."""
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(processor_features())


def computes_int8() -> bool:
    """True if this processor has dot products (VNNI, Arm) or a matrix unit (AMX) in int8."""
    return not {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}.isdisjoint(processor_features())


@functools.cache
def processor_features() -> tuple[str, ...]:
    """Returns the names of the processor's features on Linux, and none on other systems."""
    return tuple(_read_line("flags", "Features").split())


def processor_name() -> str | None:
    """Returns the name of the processor's model, or None if the system does not state it."""
    return _read_line("model name").partition(":")[2].strip() or None


def _read_line(*beginnings: str) -> str:
    """Returns the first line of the description with one of these beginnings, or ""."""
    if DESCRIPTION.exists():
        for line in DESCRIPTION.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(beginnings):
                return line
    return ""
