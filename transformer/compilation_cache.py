"""Compiled programs, kept: a run that goes on, or is evaluated again, does not wait for the compiler a second time."""

import hashlib
import platform
from pathlib import Path

import jax

from transformer import cache
from transformer.config_types import Config
from transformer.errors import UserError

MINIMUM_SECONDS = 0.5  # of compilation, below which a program is not worth a file


def enable_compilation_cache(data: Config) -> None:
    """Keeps what JAX compiles beside the prepared corpora, unless $JAX_COMPILATION_CACHE_DIR says where.

    `data` is the group `config.data`. A convenience: where its folder cannot be written, nothing is kept.
    """
    if jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        folder = cache.folder(data) / "compiled" / _processor()
    except UserError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MINIMUM_SECONDS)


def _processor() -> str:
    """A name for this kind of processor: code compiled for another may use instructions that it lacks."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {flags}".encode()).hexdigest()[:16]
