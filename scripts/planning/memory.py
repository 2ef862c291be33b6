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


def explain(config: Config, target: Target, shape: str, reason: str) -> str:
    """Returns the message for a step that does not fit, with keys that reduce its batch or its state."""
    return (
        f"--device={target.text}: a step of {shape} does not fit ({reason}); lower config.batch.tokens="
        f"{config.batch.tokens} and raise config.training.accumulation in return, lower config.data.max_length, set "
        "config.model.remat=layers, raise config.mesh.fsdp (with more devices), or use config.optimizer.name=adafactor "
        "or a smaller model"
    )
