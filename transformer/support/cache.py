"""The cache folder, where runs share tokenizers, corpora, downloads and compiled programs."""

import hashlib
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

from transformer.support import files, locks
from transformer.support.errors import UserError
from transformer.support.processor import processor_features

MIN_COMPILE_SECONDS = 0.5  # programs that compile faster are not cached


def cache_folder(cache_dir: str) -> Path:
    """Returns the cache folder for `config.data.cache_dir`, and creates it if it is missing.

    Raises UserError if the folder cannot be created.
    """
    default = f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/transformer"
    path = files.expand_user(cache_dir or default)
    files.make_folder(path, "data.cache_dir")
    return path.resolve()


def digest_of(content: object) -> str:
    """Returns a digest of a JSON value, for use in a folder's name."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def make_once(folder: Path, fill: Callable[[Path], None], seconds: int) -> None:
    """Creates `folder` unless it exists, atomically: `fill` gets a temporary folder.

    Other processes wait.
    """
    # Checked before locking, since the cache may be readable only.
    if folder.exists():
        return
    folder.parent.mkdir(exist_ok=True)
    # The lock is beside the folder, which does not exist yet.
    lock = folder.with_name(f".{folder.name}.lock")
    advice = f"check whether it still runs, or raise config.data.wait_seconds={seconds}"
    with locks.exclusive(lock, "another process that prepares data", advice, seconds):
        if not folder.exists():
            with files.new_folder(folder) as unfinished:
                fill(unfinished)


def enable_compilation_cache(cache_dir: str = "") -> None:
    """Enables JAX's compilation cache in the cache folder.

    A resumed run or a second evaluation then does not compile again. JAX executes what it finds
    there, so the folder must come from the user's own settings and never from a workdir that is
    only read. $JAX_COMPILATION_CACHE_DIR takes precedence. If the folder cannot be created, nothing
    is cached.
    """
    # Imported here, since commands that compute nothing only need the functions above.
    import jax

    # JAX adds the attributes of its flags to `jax.config` when it defines them.
    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    # The GPUs of several processes tune a program together. A process that finds the program in its
    # own cache would block the other processes.
    if jax.distributed.is_initialized() and jax.default_backend() == "gpu":
        return
    # Code compiled for another processor may use instructions that this one lacks.
    processor = (platform.machine(), platform.processor(), processor_features())
    try:
        compiled = cache_folder(cache_dir) / "compiled" / digest_of(processor)
    except UserError:
        return
    # By default JAX only caches programs that take longer to compile.
    jax.config.update("jax_compilation_cache_dir", str(compiled))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
