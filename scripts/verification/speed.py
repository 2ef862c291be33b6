"""The speed of training steps and of a search on the devices, with bounds from the roofline."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np

from configs import base, big, multi30k
from scripts.benchmarking import ours, tasks
from scripts.benchmarking.tasks import Size
from scripts.planning import devices, hlo, roofline
from scripts.verification.outcomes import Speed
from transformer.support.special_tokens import PAD
from transformer.training.memory import bytes_used

GROUPS = 5  # timed groups of repetitions
SECONDS = 1.0  # the least time of a group
# The names of devices in JAX, and in the table of accelerators.
KINDS = {
    "NVIDIA H200": "h200",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA A100-SXM4-80GB": "a100",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
# 24,576 source and 24,576 target positions, as in section 5.1. The sentences have the mean length
# of WMT English-German.
BASE = Size(6, 512, 2048, 8, 37_000, pairs=768, length=32)
BIG = Size(6, 1024, 4096, 16, 37_000, pairs=768, length=32)
MULTI30K = Size(4, 128, 256, 4, 6_000, pairs=24, length=64)


def measure_all(is_quick: bool) -> Iterator[Speed]:
    """Measures small and base on CPUs; Multi30k's model, base and big on accelerators.

    If `is_quick`, measures only small.
    """
    present = jax.devices()
    if is_quick or present[0].platform == "cpu":
        for name in ["small"] if is_quick else ["small", "base"]:
            yield measure_step(name, base, tasks.SIZES[name], present)
            yield measure_search(name, tasks.SIZES[name], 16)
    else:
        yield measure_step("Multi30k", multi30k, MULTI30K, present)
        yield measure_step("base", base, BASE, present)
        yield measure_step("big", big, BIG, present)
        yield measure_search("base", BASE, 64)


def measure_step(name: str, file: ModuleType, size: Size, present: Sequence[jax.Device]) -> Speed:
    """Measures a training step of this size, with the settings of a config file.

    The rows of the batch are spread over all devices. Rows are added until the number of devices
    divides them.
    """
    # Pure data parallelism: each device has an equal part of the rows.
    num_devices = len(present)
    size = size._replace(pairs=-(-size.pairs // num_devices) * num_devices)
    config = file.get_config()
    config.batch.row_multiple = num_devices
    config.model.update({key: getattr(size, key) for key in ours.SIZE_KEYS})
    config.mesh.data = num_devices
    step, initializer = ours.make_step(config, present, (size.vocab_size, size.vocab_size))
    state = initializer.create()
    batch = step.place(ours.make_batch(tasks.training_task(size)))

    def repeat() -> Any:
        nonlocal state
        state, metrics = step(state, [batch])
        return state, metrics

    seconds, compilation = measure_time(repeat)
    sides = (np.asarray(batch[side]) for side in ("source", "target_output"))
    tokens = sum(int((side != PAD).sum()) for side in sides)

    # Of the compiled programs, the step needs most memory.
    program = max(step.programs.compiled.values(), key=_memory)
    speed = Speed(f"step of {name}", seconds, tokens / seconds, compilation, _memory(program))
    target = find_target(present)
    if target is None:
        return speed

    cost = roofline.cost([(hlo.parse(program.as_text()), 1)], target)
    utilization = cost.flops / seconds / target.kind.bfloat16
    return speed._replace(utilization=utilization, of_bound=cost.seconds / seconds)


def _memory(program: jax.stages.Compiled) -> int:
    return bytes_used(program.memory_analysis())


def measure_search(name: str, size: Size, rows: int) -> Speed:
    """Measures a beam search for `rows` sentences with outputs of 32 tokens, on all devices."""
    began = time.perf_counter()
    prepared = ours.prepare_decoding(tasks.decoding_task(size, rows) | {"dtype": "auto"})
    compilation = time.perf_counter() - began
    seconds, _ = measure_time(prepared.repeat)
    task = f"search of {name}, {rows} sentences"
    return Speed(task, seconds, prepared.tokens / seconds, compilation)


def measure_time(repeat: Callable[[], Any]) -> tuple[float, float]:
    """Returns the seconds of a repetition, by the median of groups, and of the first repetition."""

    def mean_seconds(repetitions: int) -> float:
        began = time.perf_counter()
        for _ in range(repetitions):
            results = repeat()
        jax.block_until_ready(results)
        return (time.perf_counter() - began) / repetitions

    # The first call compiles.
    first = mean_seconds(1)
    mean_seconds(1)  # a warm-up, after which memory is already allocated

    # A group lasts at least SECONDS, so that the clock and the launch of a call do not matter.
    repetitions = max(math.ceil(SECONDS / mean_seconds(3)), 1)
    return statistics.median(mean_seconds(repetitions) for _ in range(GROUPS)), first


def find_target(present: Sequence[jax.Device]) -> devices.Target | None:
    """Returns the devices as a target of the roofline; None if the table lacks their kind."""
    device_kind = present[0].device_kind
    name = KINDS.get(device_kind)
    if name is None:
        return None
    return devices.Target(device_kind, devices.ACCELERATORS[name], name, len(present))
