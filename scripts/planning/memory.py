"""The memory of a device while a program runs, and messages about steps that do not fit."""

import dataclasses
import math

import jax

from scripts.planning.devices import Target
from transformer.config_types import Config
from transformer.training.memory import bytes_used
from transformer.training.state import TrainState

GIB = 2**30
PARTS = {"parameters": "parameters", "optimizer_state": "optimizer state", "ema_parameters": "averaged parameters"}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on a device while a step runs, by kind."""

    used: int
    available: int
    state: dict[str, int]  # of the parts of the state of training
    temporaries: int

    @property
    def fits(self) -> bool:
        return self.used <= self.available

    def __str__(self) -> str:
        state = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in self.state.items())
        return f"{state}; activations, gradients and other temporaries {self.temporaries / GIB:.2f} GiB"


def measure(compiled: jax.stages.Compiled, state: TrainState, available: int) -> Memory:
    """Returns the memory of a compiled step from an abstract state."""
    analysis = compiled.memory_analysis()
    used = max(bytes_used(analysis), analysis.peak_memory_in_bytes)
    trees = {title: jax.tree.leaves(getattr(state, name)) for name, title in PARTS.items()}
    parts = {title: sum(map(_shard_bytes, leaves)) for title, leaves in trees.items() if leaves}
    return Memory(used, available, parts, used - sum(parts.values()))


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def explain(config: Config, target: Target, shape: str, memory: Memory) -> str:
    """Returns the message for a step that needs more than a device has."""
    needs = f"needs {memory.used / GIB:.1f} of {memory.available / GIB:.1f} GiB per device"
    is_state = sum(memory.state.values()) > memory.temporaries
    return f"--device={target.text}: a step of {shape} {needs}: {memory}; {advice(config, is_state)}"


def explain_compiler(config: Config, target: Target, shape: str, message: str) -> str:
    """Returns the message for a step that the compiler of TPUs rejects, from the first line of the error."""
    reason = message.splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ").removesuffix(".")
    return f"--device={target.text}: a step of {shape} does not fit ({reason}); {advice(config, False)}"


def advice(config: Config, is_state: bool) -> str:
    """Returns which keys reduce the memory of the state of training, or of a batch."""
    split = "raise config.mesh.fsdp (with more devices), which splits parameters and optimizer state"
    if is_state:
        return f"{split}, or use config.optimizer.name=adafactor or a smaller model"
    batch = f"lower config.batch.tokens={config.batch.tokens} and raise config.training.accumulation in return"
    return f"{batch}, lower config.data.max_length, or {split} as well as the batch"
