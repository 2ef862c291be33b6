"""The dtypes for which the processor has fast matmuls."""

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
    if not DESCRIPTION.exists():
        return ()
    for line in DESCRIPTION.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(("flags", "Features")):
            return tuple(line.split())
    return ()
