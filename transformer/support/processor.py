"""The dtypes for which the processor has fast products."""

import functools
from pathlib import Path

DESCRIPTION = Path("/proc/cpuinfo")


def auto_dtype(platform: str) -> str:
    """Returns the name of the dtype for `model.dtype=auto`: bfloat16, but float32 on CPUs that lack
    it.
    """
    return "bfloat16" if platform != "cpu" or computes_bfloat16() else "float32"


def computes_bfloat16() -> bool:
    """Tells whether this processor has dot products (AVX-512, Arm) or a matrix unit (AMX) for
    bfloat16.
    """
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(processor_features())


def computes_int8() -> bool:
    """Tells whether this processor has dot products (VNNI, Arm) or a matrix unit (AMX) for int8."""
    return not {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}.isdisjoint(processor_features())


@functools.cache
def processor_features() -> tuple[str, ...]:
    """Returns the names of the processor's features in Linux's description of it; none on other
    systems.
    """
    lines = (
        DESCRIPTION.read_text(encoding="utf-8", errors="replace").splitlines()
        if DESCRIPTION.exists()
        else []
    )
    return tuple(
        next((line.split() for line in lines if line.startswith(("flags", "Features"))), ())
    )
