"""JAX's persistent compilation cache: a resumed run or a second evaluation does not compile again."""

import hashlib
import platform
from pathlib import Path

import jax

from transformer import cache
from transformer.errors import UserError

MIN_COMPILE_SECONDS = 0.5  # programs that compile faster are not cached


def enable_compilation_cache(cache_dir: str = "") -> None:
    """Enables JAX's compilation cache in the folder `compiled` of the cache.

    JAX executes what it finds there, so the folder must come from the user's own settings and never from a workdir that
    is only read. $JAX_COMPILATION_CACHE_DIR takes precedence. If the folder cannot be created, nothing is cached.
    """
    if jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        folder = cache.folder(cache_dir) / "compiled" / _processor()
    except UserError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)


def _processor() -> str:
    """Returns a digest of the processor's features: code compiled for others may use instructions it lacks."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {flags}".encode()).hexdigest()[:16]
