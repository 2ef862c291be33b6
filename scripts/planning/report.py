"""Estimates as JSON data and as lines of text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import jax

from scripts.planning import accelerator_estimate, search_estimate
from scripts.planning.accelerator_estimate import (
    AcceleratorEstimate,
    CompiledShape,
    MemoryEstimate,
)
from scripts.planning.devices import Target
from scripts.planning.lengths import Data
from scripts.planning.roofline import Cost
from scripts.planning.search_estimate import SearchEstimate
from transformer.config.types import Config

# The part of the roofline's speed that well-tuned programs reach.
REALISTIC = 0.7
# The part of a GPU's memory that JAX takes, unless XLA_PYTHON_CLIENT_MEM_FRACTION is set.
PREALLOCATED = 0.75
MIB = 2**20
GIB = 2**30

Json = dict[str, Any]


class Report(NamedTuple):
    """An estimate as JSON data and in words. `failure` says why the program does not fit."""

    values: Json
    lines: Iterable[str]
    failure: str | None


def estimate_training(
    config: Config, target: Target, devices: Sequence[jax.Device], data: Data
) -> Report:
    """Returns the report of a training run. Raises UserError as `estimate_run`."""
    estimate = accelerator_estimate.estimate_run(config, target, devices, data)
    memory = estimate.largest.memory
    failure = None
    if not memory.fits:
        reason = f"{memory.sizes} per device: {memory}"
        shape = str(estimate.largest.bucket)
        failure = accelerator_estimate.explain(config, target, shape, reason)
    values = training_to_json(config, target, data.description, estimate)
    return Report(values, training_to_lines(target, estimate, values), failure)


def estimate_search(
    config: Config, target: Target, devices: Sequence[jax.Device], data: Data
) -> Report:
    """Returns the report of a search. Raises UserError as `search_estimate.estimate_search`."""
    estimate = search_estimate.estimate_search(config, target, devices, data)
    failure = None
    if not estimate.memory.fits:
        failure = (
            f"--device={target.text}: the search does not fit ({estimate.memory.sizes}); lower "
            f"config.decoding.batch_tokens={config.decoding.batch_tokens}"
        )
    values = search_to_json(config, target, data.description, estimate)
    return Report(values, search_to_lines(target, estimate, values), failure)


def training_to_json(
    config: Config, target: Target, lengths: str, estimate: AcceleratorEstimate
) -> Json:
    """Returns the estimate as JSON data. Bytes, FLOPs and seconds are the values of one device."""
    # All times are lower bounds; the times "at 70 percent" are realistic.
    hours = config.training.steps * estimate.step_seconds / 3600
    return {
        "device": target.text,
        "devices": target.count,
        "lengths": lengths,
        "parameters": estimate.parameters,
        "memory": {
            "shape": asdict(estimate.largest.bucket),
            **_memory_to_json(estimate.largest.memory),
        },
        "step": {
            "shape": asdict(estimate.typical.bucket),
            "batches": estimate.typical.batches,
            **_cost_to_json(target, estimate.typical.cost),
        },
        "run": {
            "steps": config.training.steps,
            "mean_step_seconds": estimate.step_seconds,
            "source_and_target_tokens_per_second": estimate.step_tokens / estimate.step_seconds,
            "hours": hours,
            "device_hours": hours * target.count,
            "hours_at_70_percent": hours / REALISTIC,
            "device_hours_at_70_percent": hours * target.count / REALISTIC,
        },
    }


def training_to_lines(target: Target, estimate: AcceleratorEstimate, report: Json) -> Iterator[str]:
    """Yields the lines of the estimate in words."""
    memory = estimate.largest.memory
    yield from _head_lines(target, report)
    yield _memory_line(target, memory, str(estimate.largest.bucket))
    yield f"memory      {memory}"

    # The update with which most steps are made.
    yield from _step_lines(target, estimate.typical)

    # Time and tokens of the whole run.
    run = report["run"]
    yield (
        f"run         {run['steps']:,} steps of {1e3 * run['mean_step_seconds']:.1f} ms "
        "on average; "
        f"{run['source_and_target_tokens_per_second']:,.0f} source and target tokens/s"
    )
    for speed, suffix in (("the bound", ""), ("70 % of it", "_at_70_percent")):
        hours = f"{run[f'hours{suffix}']:,.2f} hours"
        device_hours = f"{run[f'device_hours{suffix}']:,.2f} device-hours"
        yield f"run         at {speed}: {hours}, {device_hours}; validation is extra"


def search_to_json(config: Config, target: Target, lengths: str, estimate: SearchEstimate) -> Json:
    """Returns the estimate as JSON data. Bytes, FLOPs and seconds are the values of one device."""
    speed = target.count * estimate.tokens / estimate.seconds
    return {
        "device": target.text,
        "devices": target.count,
        "lengths": lengths,
        "parameters": estimate.parameters,
        "memory": _memory_to_json(estimate.memory),
        "batch": {
            "sentences": estimate.batch.rows,
            "source_length": estimate.batch.length,
            "output_limit": estimate.output_limit,
            "hypotheses": estimate.hypotheses,
            "steps": estimate.steps,
            "output_tokens": estimate.tokens,
            "seconds": estimate.seconds,
        },
        "start": _cost_to_json(target, estimate.start),
        "step": _cost_to_json(target, estimate.step),
        "output_tokens_per_second": speed,
        "output_tokens_per_second_at_70_percent": speed * REALISTIC,
    }


def search_to_lines(target: Target, estimate: SearchEstimate, report: Json) -> Iterator[str]:
    """Yields the lines of the estimate in words."""
    batch = report["batch"]
    memory = estimate.memory
    shape = f"{batch['sentences']} sentences x {batch['source_length']}"
    yield from _head_lines(target, report)
    yield _memory_line(target, memory, shape)
    yield (
        f"memory      weights {memory.state['weights'] / GIB:.2f} GiB; "
        f"caches and other temporaries {memory.temporaries / GIB:.2f} GiB"
    )
    yield (
        f"search      of {shape}, {batch['hypotheses']} hypotheses each, outputs of at most "
        f"{batch['output_limit']} tokens"
    )
    yield f"start       {_work(estimate.start)}; {1e3 * estimate.start.seconds:.2f} ms at least"
    yield f"step        {_work(estimate.step)}"
    yield _roofline_line(target, estimate.step)
    yield from _kernel_lines(estimate.step)
    yield (
        f"batch       {batch['output_tokens']:,.0f} tokens in {batch['steps']:.1f} steps, "
        f"{1e3 * batch['seconds']:.1f} ms at least"
    )
    yield (
        f"speed       {report['output_tokens_per_second']:,.0f} output tokens/s at the bound, "
        f"{report['output_tokens_per_second_at_70_percent']:,.0f} at 70 % of it"
    )


def _head_lines(target: Target, report: Json) -> Iterator[str]:
    kind = target.kind
    wire = f"; sends {target.interconnect / 1e9:.0f} GB/s" if target.count > 1 else ""
    yield (
        f"device      {target.count} x {target.name}: "
        f"{kind.bfloat16 / 1e12:.0f} TFLOP/s in bfloat16, {kind.float32 / 1e12:.0f} in float32; "
        f"{kind.bandwidth / 1e9:,.0f} GB/s; {kind.memory / GIB:.1f} GiB{wire}"
    )
    yield f"lengths     {report['lengths']}"
    yield f"parameters  {report['parameters']:,}"


def _memory_line(target: Target, memory: MemoryEstimate, shape: str) -> str:
    kind = target.kind
    # By default JAX takes only a part of a GPU, even if the program would fit in all of it.
    verdict = "fits" if memory.fits else "does not fit"
    if kind.platform == "gpu" and memory.fits and memory.used > PREALLOCATED * kind.memory:
        verdict = f"fits with XLA_PYTHON_CLIENT_MEM_FRACTION={kind.usable / kind.memory:.2f}"
    return f"memory      {verdict}: {memory.sizes} per device, for batches of {shape}"


def _step_lines(target: Target, typical: CompiledShape) -> Iterator[str]:
    """Yields the lines of one update: its work, its bounds and its costliest parts."""
    cost = typical.cost
    several = f"{typical.batches} batches of " if typical.batches > 1 else ""
    yield f"step        of {several}{typical.bucket}, on each device:"
    yield f"step        {_work(cost)}"
    for collective in cost.collectives:
        yield (
            f"collective  {collective.kind} over {collective.devices} devices: "
            f"{collective.launches} a step, {collective.wire_bytes / MIB:,.1f} MiB sent"
        )
    yield _roofline_line(target, cost)
    yield from _kernel_lines(cost)


def _work(cost: Cost) -> str:
    return (
        f"{cost.flops / 1e12:.2f} TFLOP of products, {cost.float32_flops / 1e12:.2f} of float32; "
        f"{cost.bytes / 1e9:.1f} GB moved; {cost.kernels:,} kernels"
    )


def _roofline_line(target: Target, cost: Cost) -> str:
    return (
        f"roofline    {1e3 * cost.seconds:.1f} ms at least: "
        f"kernels {1e3 * cost.kernel_seconds:.1f}, "
        f"memory {1e3 * cost.memory_seconds:.1f}, wire {1e3 * cost.wire_seconds:.1f}; "
        f"utilization at that {100 * _utilization(target, cost):.0f} %"
    )


def _kernel_lines(cost: Cost) -> Iterator[str]:
    for kernel in cost.costliest_kernels:
        yield (
            f"kernel      {1e3 * kernel.seconds:.2f} ms, {kernel.bytes / 1e9:.2f} GB, "
            f"{kernel.flops / 1e9:,.0f} GFLOP, {kernel.launches} x {kernel.result}: {kernel.name}"
        )


def _utilization(target: Target, cost: Cost) -> float:
    return cost.flops / cost.seconds / target.kind.bfloat16


def _cost_to_json(target: Target, cost: Cost) -> Json:
    return asdict(cost) | {"seconds": cost.seconds, "utilization": _utilization(target, cost)}


def _memory_to_json(memory: MemoryEstimate) -> Json:
    return memory._asdict() | {"fits": memory.fits}
