"""The report of `transformer.train --plan --device`, as data and as lines of text."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from transformer.config_types import Config
from transformer.planning.devices import GPU_FRACTION, Target
from transformer.planning.estimate import CompiledShape, Estimate
from transformer.planning.memory import GIB, Arrays

TOP = 10  # kernels and arrays
REALISTIC = 0.7  # of the roofline's speed, which well-tuned programs come near
PREALLOCATED = 0.75  # of a GPU's memory, which JAX takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise
MIB = 2**20


def to_json(config: Config, target: Target, found: Estimate, lengths: str) -> dict[str, Any]:
    """Returns the report as JSON data: bytes, FLOPs and seconds are those of one device."""
    memory, cost = found.largest.memory, found.typical.cost
    return {
        "device": target.text,
        "devices": target.count,
        "lengths": lengths,
        "parameters": found.parameters,
        "memory": {
            "shape": dataclasses.asdict(found.largest.bucket),
            "used": memory.used,
            "available": memory.available,
            "fits": memory.fits,
            "state": memory.state,
            "temporaries": memory.temporaries,
            "largest_arrays": [dataclasses.asdict(each) for each in memory.largest[:TOP]],
        },
        "step": {
            "shape": dataclasses.asdict(found.typical.bucket),
            "flops": cost.flops,
            "float32_flops": cost.float32_flops,
            "bytes": cost.bytes,
            "kernels": cost.launches,
            "kernels_without_flops": cost.uncounted,
            "seconds": cost.seconds,
            "kernel_seconds": cost.kernel_seconds,
            "memory_seconds": cost.memory_seconds,
            "wire_seconds": cost.wire_seconds,
            "utilization": utilization(found.typical, target),
            "costliest_kernels": [dataclasses.asdict(each) for each in cost.kernels[:TOP]],
            "collectives": [dataclasses.asdict(each) for each in cost.collectives],
        },
        "shapes": [
            dataclasses.asdict(each.bucket)
            | {"batches_in_sample": each.batches, "seconds": seconds, "compiled": is_compiled(found, each.bucket)}
            for each, seconds in zip(found.stats, found.seconds, strict=True)
        ],
        "run": run_times(config, target, found),
        "compiled": [
            {"shape": dataclasses.asdict(each.bucket), "seconds": each.compile_seconds, "note": each.note}
            for each in compiled_shapes(found)
        ],
    }


def run_times(config: Config, target: Target, found: Estimate) -> dict[str, Any]:
    """Returns the time of the configured steps, at the bound and at 70 % of its speed."""
    seconds = found.mean_seconds
    hours = config.training.steps * seconds / 3600
    tokens = sum(each.tokens for each in found.stats) / sum(each.batches for each in found.stats)
    return {
        "steps": config.training.steps,
        "mean_step_seconds": seconds,
        "hours": hours,
        "device_hours": hours * target.count,
        "hours_at_70_percent": hours / REALISTIC,
        "device_hours_at_70_percent": hours * target.count / REALISTIC,
        "source_and_target_tokens_per_second": tokens * config.training.accumulation / seconds,
    }


def to_lines(config: Config, target: Target, found: Estimate, lengths: str) -> Iterator[str]:
    """Yields the report for a reader."""
    kind, memory, cost = target.kind, found.largest.memory, found.typical.cost
    yield (
        f"device      {target.count} x {target.name}: {kind.bfloat16 / 1e12:.0f} TFLOP/s in bfloat16, "
        f"{kind.float32 / 1e12:.0f} in float32; {kind.bandwidth / 1e9:,.0f} GB/s; {kind.memory / GIB:.1f} GiB"
        + (f"; sends {target.interconnect / 1e9:.0f} GB/s" if target.count > 1 else "")
    )
    yield f"lengths     {lengths}"
    yield f"parameters  {found.parameters:,}"
    verdict = "fits" if memory.fits else "does not fit"
    if kind.platform == "gpu" and memory.fits and memory.used > PREALLOCATED * kind.memory:
        verdict = f"fits with XLA_PYTHON_CLIENT_MEM_FRACTION={GPU_FRACTION}"
    yield (
        f"memory      {verdict}: {memory.used / GIB:.2f} of {memory.available / GIB:.2f} GiB per device, "
        f"for batches of {found.largest.bucket}"
    )
    state = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in memory.state.items())
    yield f"memory      {state}; activations, gradients and other temporaries {memory.temporaries / GIB:.2f} GiB"
    yield from (f"array       {line}" for line in map(array_line, memory.largest[:TOP]))
    yield f"step        of {found.typical.bucket}, on each device:"
    uncounted = f" ({cost.uncounted} of them with FLOPs that the program does not state)" if cost.uncounted else ""
    yield (
        f"step        {cost.flops / 1e12:.2f} TFLOP of products, {cost.float32_flops / 1e12:.2f} of float32; "
        f"{cost.bytes / 1e9:.1f} GB moved; {cost.launches:,} kernels{uncounted}"
    )
    for each in cost.collectives:
        yield (
            f"collective  {each.kind} over {each.devices} devices: {each.launches} a step, {each.bytes / MIB:,.1f} MiB "
            f"of operands, {each.wire_bytes / MIB:,.1f} MiB sent"
        )
    yield (
        f"roofline    {1e3 * cost.seconds:.1f} ms at least: kernels {1e3 * cost.kernel_seconds:.1f}, memory "
        f"{1e3 * cost.memory_seconds:.1f}, wire {1e3 * cost.wire_seconds:.1f}; utilization at that "
        f"{100 * utilization(found.typical, target):.0f} %"
    )
    for each in cost.kernels[:TOP]:
        yield (
            f"kernel      {1e3 * each.seconds:.2f} ms, {each.bytes / 1e9:.2f} GB, {each.flops / 1e9:,.0f} GFLOP, "
            f"{each.launches} x {each.result}: {each.name}"
        )
    yield from run_lines(config, target, found)


def run_lines(config: Config, target: Target, found: Estimate) -> Iterator[str]:
    times, compiled = run_times(config, target, found), compiled_shapes(found)
    others = len(found.stats) - len(compiled)
    is_one = len(compiled) == 1
    source = "1 compiled shape" if is_one else f"{len(compiled)} compiled shapes"
    if others:
        source += f", {others} {'with its time per position' if is_one else 'interpolated between them'}"
    yield (
        f"run         {times['steps']:,} steps of {1e3 * times['mean_step_seconds']:.1f} ms on average ({source}); "
        f"{times['source_and_target_tokens_per_second']:,.0f} source and target tokens/s"
    )
    for share, suffix in (("the bound", ""), ("70 % of it", "_at_70_percent")):
        hours, device_hours = times[f"hours{suffix}"], times[f"device_hours{suffix}"]
        yield f"run         at {share}: {hours:,.2f} hours, {device_hours:,.2f} device-hours; validation is extra"
    for each in compiled:
        note = f"; {each.note}" if each.note else ""
        yield f"compiled    in {each.compile_seconds:.0f} s: {each.bucket}{note}"


def array_line(arrays: Arrays) -> str:
    count = f"{arrays.count} x " if arrays.count > 1 else ""
    size = f"{arrays.bytes / GIB:.2f} GiB" if arrays.bytes >= GIB / 10 else f"{arrays.bytes / MIB:.1f} MiB"
    return f"{size}, {count}{arrays.shape}: {arrays.name}"


def utilization(shape: CompiledShape, target: Target) -> float:
    """Returns the fraction of the peak in bfloat16 that the products reach if a step takes the least time."""
    return shape.cost.flops / shape.cost.seconds / target.kind.bfloat16


def compiled_shapes(found: Estimate) -> list[CompiledShape]:
    return [found.largest] if found.typical is found.largest else [found.largest, found.typical]


def is_compiled(found: Estimate, bucket) -> bool:
    return bucket in [each.bucket for each in compiled_shapes(found)]
