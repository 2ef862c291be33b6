"""The speed of training steps and of a search on the devices, beside the bound of the compiled
program.
"""

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
# What devices call themselves, and their names in the table of accelerators.
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
# 24,576 positions a side, as in section 5.1, with sentences of the mean length of WMT
# English-German.
BASE = Size(6, 512, 2048, 8, 37_000, pairs=768, length=32)
BIG = Size(6, 1024, 4096, 16, 37_000, pairs=768, length=32)
MULTI30K = Size(4, 128, 256, 4, 6_000, pairs=24, length=64)


def measure_all(is_quick: bool) -> Iterator[Speed]:
    """Measures a small model if quick; else, on accelerators, Multi30k's, base and big, and on CPUs
    small and base.
    """
    present = jax.devices()
    if present[0].platform == "cpu" or is_quick:
        for name in ["small"] if is_quick else ["small", "base"]:
            yield measure_step(name, base, tasks.SIZES[name], present)
            yield measure_search(name, tasks.SIZES[name], 16)
    else:
        yield measure_step("Multi30k", multi30k, MULTI30K, present)
        yield measure_step("base", base, BASE, present)
        yield measure_step("big", big, BIG, present)
        yield measure_search("base", BASE, 64)


def measure_step(name: str, file: ModuleType, size: Size, present: Sequence[jax.Device]) -> Speed:
    """Measures a step of the config file's model in this size, whose rows are spread over all
    devices.

    Rows are added until the number of devices divides them.
    """
    size = size._replace(pairs=-(-size.pairs // len(present)) * len(present))
    config = file.get_config()
    config.batch.row_multiple = len(present)
    config.model.update({key: getattr(size, key) for key in ours.SIZE_KEYS})
    config.mesh.data = len(present)
    step, initializer = ours.step_of(config, present, (size.vocab_size, size.vocab_size))
    state = initializer.create()
    batch = step.place(ours.make_batch(tasks.training_task(size)))

    def repeat() -> Any:
        nonlocal state
        state, metrics = step(state, [batch])
        return state, metrics

    seconds, compilation = timed(repeat)
    tokens = sum(
        int((np.asarray(batch[side]) != PAD).sum()) for side in ("source", "target_output")
    )
    program = max(
        step.programs.compiled.values(), key=lambda program: bytes_used(program.memory_analysis())
    )
    speed = Speed(
        f"step of {name}",
        seconds,
        tokens / seconds,
        compilation,
        bytes_used(program.memory_analysis()),
    )
    if target := find_target(present):
        cost = roofline.cost([(hlo.parse(program.as_text()), 1)], target)
        utilization = cost.flops / seconds / target.kind.bfloat16
        speed = speed._replace(utilization=utilization, of_bound=cost.seconds / seconds)
    return speed


def measure_search(name: str, size: Size, rows: int) -> Speed:
    """Measures a beam search of outputs of 32 tokens for so many sentences, on all devices."""
    began = time.perf_counter()
    prepared = ours.prepare_decoding(tasks.decoding_task(size, rows) | {"dtype": "auto"})
    compilation = time.perf_counter() - began
    seconds, _ = timed(prepared.repeat)
    return Speed(
        f"search of {name}, {rows} sentences", seconds, prepared.tokens / seconds, compilation
    )


def timed(repeat: Callable[[], Any]) -> tuple[float, float]:
    """Returns the seconds of a repetition, and those of the first one."""

    def run(times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            results = repeat()
        jax.block_until_ready(results)
        return (time.perf_counter() - began) / times

    first = run(1)
    run(1)  # finds memory already allocated
    times = max(math.ceil(SECONDS / run(3)), 1)
    return statistics.median(run(times) for _ in range(GROUPS)), first


def find_target(present: Sequence[jax.Device]) -> devices.Target | None:
    """Returns the figures of these devices, or None if their kind is not in the table."""
    name = KINDS.get(present[0].device_kind)
    return name and devices.Target(
        present[0].device_kind, devices.ACCELERATORS[name], name, len(present)
    )
