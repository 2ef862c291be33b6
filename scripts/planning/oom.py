"""Messages about steps that do not fit: what takes the memory, and which keys reduce it."""

import re

from scripts.planning.devices import Target
from scripts.planning.memory import GIB, Memory
from transformer.config_types import Config

SIZE = r"([\d.]+)([KMGT])"  # in the compiler's messages


def explain(config: Config, target: Target, shape: str, memory: Memory) -> str:
    """Returns the message for a step that needs more than a device has."""
    parts = [f"{name} {size / GIB:.1f} GiB" for name, size in memory.state.items()]
    parts.append(f"activations, gradients and other temporaries {memory.temporaries / GIB:.1f} GiB")
    most = memory.largest_arrays[0]
    largest = f"the largest array is {most.shape} of {most.name}" + (f", {most.count} times" if most.count > 1 else "")
    needs = f"needs {memory.used / GIB:.1f} of {memory.available / GIB:.1f} GiB per device"
    is_state = sum(memory.state.values()) > memory.temporaries
    return (
        f"--device={target.text}: a step of {shape} {needs}: {', '.join(parts)} ({largest}); {advice(config, is_state)}"
    )


def explain_compiler(config: Config, target: Target, shape: str, message: str) -> str:
    """Returns the message for a step that the compiler of TPUs rejects, from its own message."""
    needs = "does not fit the memory"
    if sizes := re.search(rf"temporaries \({SIZE}\) exceeds available HBM \({SIZE}\)", message):
        needs = "needs {} {}iB of {} {}iB per device for activations, gradients and other temporaries"
    elif sizes := re.search(rf"Used {SIZE} of {SIZE} hbm", message):
        needs = "needs {} {}iB of {} {}iB per device"
    needs = needs.format(*sizes.groups()) if sizes else needs
    array = re.search(rf"\bSize: {SIZE}\b.*?Shape: (\w+\[[\d,]*\])", message, re.DOTALL)
    largest = f" (the largest array is {array[3]}, {array[1]} {array[2]}iB)" if array else ""
    return f"--device={target.text}: a step of {shape} {needs}{largest}; {advice(config, False)}"


def advice(config: Config, is_state: bool) -> str:
    """Returns which keys reduce the memory of the state of training, or of a batch."""
    split = "raise config.mesh.fsdp (with more devices), which splits parameters and optimizer state"
    if is_state:
        return f"{split}, or use config.optimizer.name=adafactor or a smaller model"
    batch = f"lower config.batch.tokens={config.batch.tokens} and raise config.training.accumulation in return"
    return f"{batch}, lower config.data.max_length, or {split} as well as the batch"
