"""The accelerators that programs can be compiled for: their speed and memory, and their description for XLA.

Figures are from the vendors' data sheets, dense, per device (TPUs: per chip), in FLOP/s, bytes/s and bytes.
"""

import dataclasses
import math
import re

from transformer.config.keys import nearest
from transformer.errors import UserError

GPU_FRACTION = 0.95  # of a GPU's memory, which JAX can take: CUDA and its libraries need the rest


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A kind of device.

    Attributes:
      platform: "gpu" or "tpu".
      bfloat16, float32: peak FLOP/s of products of these operands, at JAX's default precision.
      bandwidth: bytes/s of the main memory.
      memory: bytes of the main memory; of a TPU's, those that the compiler lets a program use.
      interconnect: bytes/s that a device can send to others of its host or slice, over all links.
      axes: dimensions of a TPU's topology.
      network: bytes/s that a GPU can send to other hosts.
      compute_capability, cores, ...: of a GPU, as in XLA's own descriptions of it.
    """

    platform: str
    bfloat16: float
    float32: float
    bandwidth: float
    memory: int
    interconnect: float
    axes: int = 0
    network: float = 0.0
    name: str = ""
    compute_capability: int = 0
    cores: int = 0
    fpus_per_core: int = 0
    clock_ghz: float = 0.0
    shared_memory: int = 0  # per core
    l2_cache: int = 0

    @property
    def usable(self) -> int:
        """Bytes of the main memory that a program can use."""
        return int(GPU_FRACTION * self.memory) if self.platform == "gpu" else self.memory

    @property
    def launch_seconds(self) -> float:
        """The least time that the launch of a kernel takes."""
        return 2.5e-6 if self.platform == "gpu" else 0.0


# GPUs: NVIDIA's data sheets of A100 80GB SXM, H100 SXM and H200 SXM. Products of float32 operands run as TF32. NVLink
# sends half of its stated bandwidth in each direction. Networks are those of DGX systems. What the compiler reads is
# from openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb.
_AMPERE = {"network": 25e9, "compute_capability": 8, "cores": 108, "fpus_per_core": 64, "clock_ghz": 1.41}
_AMPERE |= {"name": "NVIDIA A100-SXM4-80GB", "shared_memory": 167936, "l2_cache": 41943040}
_HOPPER = {"network": 50e9, "compute_capability": 9, "cores": 132, "fpus_per_core": 128, "clock_ghz": 1.98}
_HOPPER |= {"shared_memory": 233472, "l2_cache": 52428800}
_H100, _H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200 141GB HBM3e"
# TPUs: cloud.google.com/tpu/docs, pages v5e, v5p and v6e. Products of float32 operands round them to bfloat16. Half of
# the stated bidirectional interconnect goes in each direction. The compiler lets programs use 15.75 GiB of the 16 GB of
# a v5e and 31.25 GiB of the 32 GB of a v6e.
ACCELERATORS = {
    "a100": Accelerator("gpu", 312e12, 156e12, 2.039e12, 85_100_068_864, 300e9, **_AMPERE),
    "h100": Accelerator("gpu", 989.4e12, 494.7e12, 3.352e12, 84_942_979_072, 450e9, name=_H100, **_HOPPER),
    "h200": Accelerator("gpu", 989.4e12, 494.7e12, 4.8e12, 151_397_597_184, 450e9, name=_H200, **_HOPPER),
    "v5e": Accelerator("tpu", 197e12, 197e12, 819e9, int(15.75 * 2**30), 200e9, axes=2),
    "v5p": Accelerator("tpu", 459e12, 459e12, 2765e9, 95 * 2**30, 600e9, axes=3),
    "v6e": Accelerator("tpu", 918e12, 918e12, 1638e9, int(31.25 * 2**30), 400e9, axes=2),
}
GPUS_PER_HOST = 8  # that NVLink connects
CUDNN = (9, 10, 0)  # the version that the compiler assumes where the device's own is not known


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for. `text` is what the user typed: h100:8, v5e:4x4."""

    text: str
    kind: Accelerator
    name: str
    count: int

    @property
    def interconnect(self) -> float:
        """Bytes/s that a device can send. GPUs of several hosts send through the network."""
        is_network = self.kind.platform == "gpu" and self.count > GPUS_PER_HOST
        return self.kind.network if is_network else self.kind.interconnect


def parse_target(text: str) -> Target:
    """Returns the target that `--device=TEXT` names: NAME[:COUNT] for GPUs, NAME:TOPOLOGY for TPUs.

    Raises UserError for an unknown name, listing the known ones, or if the rest is not such a count or topology.
    """
    name, _, rest = text.partition(":")
    kind = ACCELERATORS.get(name)
    if kind is None:
        known = ", ".join(ACCELERATORS)
        raise UserError(
            f"--device={text}: no such device; the known ones are {known}{nearest(name, list(ACCELERATORS))}"
        )
    if kind.platform == "gpu":
        if not re.fullmatch(r"[1-9]\d{0,3}", rest or "1"):
            raise UserError(f"--device={text}: must be {name} or {name}:COUNT, such as {name}:8")
        count = int(rest or "1")
        if count > GPUS_PER_HOST and count % GPUS_PER_HOST:
            raise UserError(f"--device={text}: more than {GPUS_PER_HOST} GPUs must be whole hosts of {GPUS_PER_HOST}")
        return Target(text, kind, name, count)
    if not re.fullmatch(r"[1-9]\d?(x[1-9]\d?)" + f"{{{kind.axes - 1}}}", rest):
        example = "x".join(["2", "2", "1"][: kind.axes])
        raise UserError(f"--device={text}: must be {name}:TOPOLOGY, such as {name}:{example}")
    return Target(text, kind, name, math.prod(int(size) for size in rest.split("x")))
