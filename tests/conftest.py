"""Settings under which every test runs, and the fixtures that several files share."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

REPOSITORY = Path(__file__).resolve().parent.parent

# Shapes and types in signatures are checked at every call. It has to come before anything of `transformer` is imported.
install_import_hook("transformer", "beartype.beartype")

# A dimension that appears by itself is a mistake here, whatever NumPy makes of it. Types cannot be held as strictly:
# the LayerNorm of Flax and the Adam of Optax rely on promotion.
jax.config.update("jax_numpy_rank_promotion", "raise")

# In the background Ctrl-C is ignored, and so it would be in every command that a test starts and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What one test has compiled, the next and the commands that tests start need not compile again.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="compiled-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
    os.environ["JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

# Time says nothing, since the first example of a test may compile and the machine be busy. By default a failure must
# come again; --hypothesis-profile=thorough looks for new ones.
UNTIMED = {"deadline": None, "database": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", max_examples=100, derandomize=True, **UNTIMED)
hypothesis.settings.register_profile("thorough", max_examples=2000, print_blob=True, **UNTIMED)
hypothesis.settings.load_profile("quick")


OLDER_EMITTERS = "--xla_cpu_use_fusion_emitters=false"  # with them XLA takes half as long for a training step
XLA_FLAGS = os.environ.get("XLA_FLAGS", "").replace(OLDER_EMITTERS, "")  # a worker of xdist has what its parent set


def compile_quickly(quickly: bool) -> None:
    """Here, and in the commands that tests start. Only these can be told of other emitters more than once."""
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quickly))
    os.environ["XLA_FLAGS"] = f"{XLA_FLAGS} {OLDER_EMITTERS if quickly else ''}".strip()  # XLA takes " " for a file
    jax.config.update("jax_disable_most_optimizations", quickly)


def is_fast(config: pytest.Config) -> bool:
    return config.option.markexpr == "not slow"


def pytest_configure(config: pytest.Config) -> None:
    compile_quickly(is_fast(config))  # before a test file computes anything when it is imported


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """The fast tests compile for longer than they run, so it is done quickly, unless a file is marked `optimized`."""
    compile_quickly(is_fast(request.config) and request.node.get_closest_marker("optimized") is None)
    jax.clear_caches()
    yield
    compile_quickly(False)


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """The folder with train, valid and test2016 .en and .de: $MULTI30K, ../shared/multi30k, or a small stand-in."""
    if "MULTI30K" in os.environ:
        return Path(os.environ["MULTI30K"])
    beside = REPOSITORY.parent / "shared" / "multi30k"
    return beside if beside.is_dir() else REPOSITORY / "tests" / "fixtures" / "multi30k"
