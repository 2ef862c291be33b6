"""XLA's compilers for absent accelerators."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence

import jax
from jax.experimental import topologies

from scripts.planning.devices import CUDNN, GPUS_PER_HOST, Accelerator, Target
from transformer.errors import UserError

REQUIREMENTS = "requirements-accelerators.txt"
MODULES = {"gpu": "jax_cuda13_plugin", "tpu": "libtpu"}
COMPILERS = {"gpu": "NVIDIA GPUs", "tpu": "TPUs"}
TRITON_FAILURE = "Couldn't find output tile sizes"
# libtpu looks for the machine's own TPU: it asks a metadata server, takes a lock, and warns about what it misses.
LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def is_installed(platform: str) -> bool:
    return importlib.util.find_spec(MODULES[platform]) is not None


def find_devices(target: Target) -> Sequence[jax.Device]:
    """Returns the target's devices, which programs can be compiled for and not run on.

    JAX itself runs on this machine's CPU afterwards. Raises UserError if the compiler is not installed, or does not
    know the topology.
    """
    platform = target.kind.platform
    if not is_installed(platform):
        raise UserError(
            f"--device={target.text}: XLA's compiler for {COMPILERS[platform]} is not installed; in a separate "
            f"environment: pip install -r requirements.txt, then pip install --no-deps -r {REQUIREMENTS}"
        )
    jax.config.update("jax_platforms", "cpu")
    # The cache cannot load programs for absent devices.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        if platform == "tpu":
            for name, value in LIBTPU.items():
                os.environ.setdefault(name, value)
            with _silence():
                return topologies.get_topology_desc(platform="tpu", topology_name=target.text).devices
        hosts, gpus = max(target.count // GPUS_PER_HOST, 1), min(target.count, GPUS_PER_HOST)
        topology = {"topology": f"1x{hosts}x{gpus}", "target_config": target_config(target.kind)}
        return topologies.get_topology_desc(platform="cuda", topology_name=target.name, **topology).devices
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--device={target.text}: XLA's compiler for {COMPILERS[platform]} rejects it ({reason})"
        ) from None


class Compiler:
    """Compiles programs for absent devices.

    Without a GPU to time both on, XLA compiles products by Triton instead of cuBLAS, and fails where Triton's tiles do
    not divide an array's dimensions, such as a length of 24. From then on this compiler uses cuBLAS.

    Attributes:
      note: how the last program differs from what the default options compile; "" if it does not.
    """

    def __init__(self) -> None:
        self.note = ""

    def __call__(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        if not self.note:
            try:
                return lowered.compile()
            except jax.errors.JaxRuntimeError as error:
                if TRITON_FAILURE not in str(error):
                    raise
        self.note = "all products by cuBLAS"
        return lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})


def target_config(kind: Accelerator) -> str:
    """Returns the description of a GPU that XLA's compiler reads: a GpuTargetConfigProto as text."""
    major, minor, patch = CUDNN
    return f"""
        gpu_device_info {{
          threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
          shared_memory_per_block: 49152  shared_memory_per_core: {kind.shared_memory}
          shared_memory_per_block_optin: {kind.shared_memory - 1024}
          core_count: {kind.cores}  fpus_per_core: {kind.fpus_per_core}  clock_rate_ghz: {kind.clock_ghz}
          block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
          thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
          memory_bandwidth: {int(kind.bandwidth)}  device_memory_size: {kind.memory}  l2_cache_size: {kind.l2_cache}
          registers_per_core_limit: 65536  registers_per_block_limit: 65536
          cuda_compute_capability {{ major: {kind.compute_capability} }}
          device_vendor: "NVIDIA Corporation"  device_address_bits: 64  name: "{kind.name}"
        }}
        platform_name: "CUDA"  device_description_str: "{kind.name}"
        dnn_version_info {{ major: {major} minor: {minor} patch: {patch} }}
    """


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discards what libraries in C++ write to standard error during the block."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
