"""Settings of all tests, and fixtures that several files share."""

import functools
import gc
import os
import signal
import tempfile
from pathlib import Path

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

REPOSITORY = Path(__file__).resolve().parent.parent

# Checks shapes and types in signatures at every call, in the packages whose arrays have shapes. It
# must precede all imports of `transformer`.
WITH_SHAPES = ("model", "training", "decoding", "distributed", "data.batches", "data.corpus")
install_import_hook([f"transformer.{package}" for package in WITH_SHAPES], "beartype.beartype")

# Implicit rank promotion is a mistake in this code. Strict dtype promotion is not possible: the
# LayerNorm of Flax and the Adam of Optax rely on promotion.
jax.config.update("jax_numpy_rank_promotion", "raise")

# A shell ignores SIGINT in background jobs, and the commands that tests start and interrupt would
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests, and the commands that they start, share compiled programs, even the smallest: loading one
# takes half as long.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="compiled-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

# No deadlines, since an example may compile. `quick` and `full`, the profiles of the fast and the
# slow suite, are deterministic; `thorough` draws new examples.
UNTIMED = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("quick", max_examples=25, derandomize=True, **UNTIMED)
hypothesis.settings.register_profile("full", max_examples=100, derandomize=True, **UNTIMED)
hypothesis.settings.register_profile("thorough", max_examples=2000, print_blob=True, **UNTIMED)


# One module for each program saves a tenth of the compile time of a training step.
QUICK_XLA_FLAGS = "--xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    # Halves that compile time. Newer versions of XLA end the process, since they lack the flag.
    QUICK_XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"
# xdist workers inherit the variable; XLA reads " " as the name of a file.
XLA_FLAGS = os.environ.get("XLA_FLAGS", "").replace(QUICK_XLA_FLAGS, "").strip()
os.environ["XLA_FLAGS"] = XLA_FLAGS


def compile_quickly() -> None:
    """Compiles without optimising, in this process and in the commands that tests start."""
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ["XLA_FLAGS"] += f" {QUICK_XLA_FLAGS}"
    jax.config.update("jax_disable_most_optimizations", True)


def is_fast(config: pytest.Config) -> bool:
    return config.option.markexpr == "not slow"


def pytest_configure(config: pytest.Config) -> None:
    if is_fast(config):  # compiling dominates
        compile_quickly()  # before importing a test file computes anything
    if config.getoption("hypothesis_profile") is None:
        hypothesis.settings.load_profile("quick" if is_fast(config) else "full")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out slow tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Makes all but the first case of tests marked `first_case` slow, and starts files marked
    `long` first.

    So no process is left with a long file at the end.
    """
    functions = set()
    for item in items:
        if item.get_closest_marker("first_case") and item.function in functions:
            item.add_marker("slow")
        functions.add(getattr(item, "function", None))
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Exempts the objects of imported modules from garbage collections, which would visit them
    hundreds of times.
    """
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


@functools.lru_cache(maxsize=1)
def free_programs(folder: Path) -> None:
    """Frees the compiled programs of another folder. Those of all folders would take many GiB."""
    jax.clear_caches()


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """Lets the files of a folder share their compiled programs."""
    free_programs(request.path.parent)


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """Returns the folder with train, valid and test2016 .en and .de: $MULTI30K, a sibling folder or
    a fixture.
    """
    if "MULTI30K" in os.environ:
        return Path(os.environ["MULTI30K"])
    beside = REPOSITORY.parent / "shared" / "multi30k"
    return beside if beside.is_dir() else REPOSITORY / "tests" / "fixtures" / "multi30k"
