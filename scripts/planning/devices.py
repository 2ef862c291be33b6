"""Accelerators that programs can be compiled for: speed, memory, and XLA's compilers for them.

The figures are from the vendors' data sheets, without sparsity, per device (TPUs: per chip). Speeds
are in FLOP/s and bytes/s, memory is in bytes.
"""

import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.experimental import topologies

from transformer.config.keys import nearest
from transformer.support.errors import UserError

REQUIREMENTS = "requirements/accelerators.txt"
MODULES = {"gpu": "jax_cuda13_plugin", "tpu": "libtpu"}
# Without these variables libtpu looks for a TPU of this machine: it asks a metadata server, takes a
# lock, and warns about everything that is missing.
LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
# The part of a GPU's memory that JAX can take: CUDA and its libraries need the rest.
GPU_FRACTION = 0.95


class Accelerator(NamedTuple):
    """A kind of device.

    Attributes:
      platform: "gpu" or "tpu".
      bfloat16, float32: peak FLOP/s of matmuls with such operands, at JAX's default precision.
      bandwidth: bytes/s of the main memory.
      memory: bytes of the main memory. For a TPU, the bytes that the compiler lets a program use.
      interconnect: bytes/s that a device can send inside its host or slice, over all links.
      axes: number of dimensions of a TPU's topology; 1 for GPUs, which are only counted.
      network: bytes/s that a GPU can send to other hosts.
      name, description: a GPU's fields in XLA's GpuTargetConfigProto.
    """

    platform: str
    bfloat16: float
    float32: float
    bandwidth: float
    memory: int
    interconnect: float
    axes: int = 1
    network: float = 0.0
    name: str = ""
    description: str = ""

    @property
    def usable(self) -> int:
        """Bytes of the main memory that a program can use."""
        if self.platform == "gpu":
            return int(GPU_FRACTION * self.memory)
        return self.memory


# GPUs: the data sheets of A100 80GB SXM, H100 SXM and H200 SXM. Matmuls of float32 operands run
# as TF32. NVLink sends half of its stated bandwidth in each direction. The networks are the ones of
# DGX systems. The descriptions are from openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb.
_AMPERE = """
    cuda_compute_capability { major: 8 }  core_count: 108  fpus_per_core: 64  clock_rate_ghz: 1.41
    shared_memory_per_core: 167936  shared_memory_per_block_optin: 166912  l2_cache_size: 41943040
"""
_HOPPER = """
    cuda_compute_capability { major: 9 }  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
    shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448  l2_cache_size: 52428800
"""
_A100 = {"network": 25e9, "name": "NVIDIA A100-SXM4-80GB", "description": _AMPERE}
_H100 = {"network": 50e9, "name": "NVIDIA H100 80GB HBM3", "description": _HOPPER}
_H200 = _H100 | {"name": "NVIDIA H200 141GB HBM3e"}
# TPUs: cloud.google.com/tpu/docs, pages v5e, v5p, v6e. Matmuls round float32 operands to bfloat16.
# Half of the stated bidirectional interconnect goes in each direction. The compiler lets programs
# use 15.75 GiB of the 16 GB of a v5e and 31.25 GiB of the 32 GB of a v6e.
ACCELERATORS = {
    "a100": Accelerator("gpu", 312e12, 156e12, 2.039e12, 85_100_068_864, 300e9, **_A100),
    "h100": Accelerator("gpu", 989.4e12, 494.7e12, 3.352e12, 84_942_979_072, 450e9, **_H100),
    "h200": Accelerator("gpu", 989.4e12, 494.7e12, 4.8e12, 151_397_597_184, 450e9, **_H200),
    "v5e": Accelerator("tpu", 197e12, 197e12, 819e9, int(15.75 * 2**30), 200e9, axes=2),
    "v5p": Accelerator("tpu", 459e12, 459e12, 2765e9, 95 * 2**30, 600e9, axes=3),
    "v6e": Accelerator("tpu", 918e12, 918e12, 1638e9, int(31.25 * 2**30), 400e9, axes=2),
}
GPUS_PER_HOST = 8  # connected by NVLink
# Examples of a size, by its number of axes.
EXAMPLES = {1: "8", 2: "2x2", 3: "2x2x1"}


class Target(NamedTuple):
    """Devices to compile for. `text` is the value of the flag, such as h100:8 or v5e:4x4."""

    text: str
    kind: Accelerator
    name: str
    count: int

    @property
    def interconnect(self) -> float:
        """Bytes/s that a device can send.

        Collectives over several hosts of GPUs run as eight rings, and each GPU's network carries
        one of them. So a device sends at the speed of all eight networks, if NVLink is not slower.
        """
        if self.kind.platform == "gpu" and self.count > GPUS_PER_HOST:
            return min(GPUS_PER_HOST * self.kind.network, self.kind.interconnect)
        return self.kind.interconnect


def parse_target(text: str) -> Target:
    """Returns the target of `--device=TEXT`: NAME[:COUNT] for GPUs, NAME:TOPOLOGY for TPUs.

    Raises UserError if the name is unknown, or the rest is not a count or a topology.
    """
    name, _, size = text.partition(":")
    kind = ACCELERATORS.get(name)
    if kind is None:
        names = ", ".join(ACCELERATORS)
        raise UserError(
            f"--device={text}: no such device; the known ones are {names}"
            f"{nearest(name, ACCELERATORS)}"
        )

    is_gpu = kind.platform == "gpu"
    if is_gpu and not size:
        size = "1"
    # GPUs have one size, their number. A TPU has a size for each axis of its topology.
    sizes = size.split("x")
    if len(sizes) != kind.axes or not all(re.fullmatch(r"[1-9]\d{0,3}", size) for size in sizes):
        raise UserError(
            f"--device={text}: must be {name}:SIZE, such as {name}:{EXAMPLES[kind.axes]}"
        )

    count = math.prod(map(int, sizes))
    if is_gpu and count > GPUS_PER_HOST and count % GPUS_PER_HOST:
        raise UserError(
            f"--device={text}: more than {GPUS_PER_HOST} GPUs must be whole hosts of "
            f"{GPUS_PER_HOST}"
        )
    return Target(text, kind, name, count)


def is_installed(platform: str) -> bool:
    return importlib.util.find_spec(MODULES[platform]) is not None


def find_devices(target: Target) -> Sequence[jax.Device]:
    """Returns the target's devices. Programs can be compiled for them, but not run on them.

    Makes the CPU the platform of JAX, and turns its compilation cache off. Raises UserError if the
    compiler is not installed, or rejects the topology.
    """
    platform = target.kind.platform
    compiler = f"XLA's compiler for {platform.upper()}s"
    if not is_installed(platform):
        raise UserError(
            f"--device={target.text}: {compiler} is not installed; in a separate environment: "
            f"pip install -r requirements.txt, then pip install --no-deps -r {REQUIREMENTS}"
        )

    jax.config.update("jax_platforms", "cpu")
    # The cache cannot load programs for absent devices.
    jax.config.update("jax_enable_compilation_cache", False)

    try:
        if platform == "tpu":
            for name, value in LIBTPU.items():
                os.environ.setdefault(name, value)
            topology = topologies.get_topology_desc(platform="tpu", topology_name=target.text)
        else:
            # The topology is slices x hosts x GPUs of a host.
            hosts = max(target.count // GPUS_PER_HOST, 1)
            gpus = min(target.count, GPUS_PER_HOST)
            topology = topologies.get_topology_desc(
                platform="cuda",
                topology_name=target.name,
                topology=f"1x{hosts}x{gpus}",
                target_config=target_config(target.kind),
            )
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device={target.text}: {compiler} rejects it ({reason})") from None
    return topology.devices


def target_config(kind: Accelerator) -> str:
    """Returns a GPU's GpuTargetConfigProto as text, which XLA's compiler reads."""
    # The limits of blocks and threads are equal for all of these GPUs.
    return f"""
        gpu_device_info {{
          threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
          block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
          thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
          shared_memory_per_block: 49152
          registers_per_core_limit: 65536  registers_per_block_limit: 65536
          memory_bandwidth: {int(kind.bandwidth)}  device_memory_size: {kind.memory}
          {kind.description}
          device_vendor: "NVIDIA Corporation"  device_address_bits: 64  name: "{kind.name}"
        }}
        platform_name: "CUDA"  device_description_str: "{kind.name}"
        dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
    """
