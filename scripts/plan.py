"""Estimates memory and time of a training run on accelerators, which need not be present.

    python -m scripts.plan --config=configs/X.py[:ARG] --device=NAME[:SIZE] [--workdir=DIR]
        [--lengths=PAIRS:SOURCE:TARGET] [--format=json] [--config.GROUP.KEY=VALUE ...]

Compiles the step of the config for the devices, such as h100:8 or v5e:4x4. Prints its memory and a
lower bound on its time, with the costliest kernels and collectives. The batches are the ones of the
run in --workdir, or of data with the lengths of --lengths, by default WMT14 English-German's. XLA's
compilers for accelerators are needed: see docs/devices.md.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer.config import cli
from transformer.config.loading import load_file
from transformer.config.types import Config
from transformer.support import files
from transformer.support.errors import UserError

if TYPE_CHECKING:
    from scripts.planning.accelerator_estimate import AcceleratorEstimate, CompiledShape
    from scripts.planning.devices import Target

# The part of the roofline's speed that well-tuned programs reach.
REALISTIC = 0.7
# The part of a GPU's memory that JAX takes, unless XLA_PYTHON_CLIENT_MEM_FRACTION is set.
PREALLOCATED = 0.75
MIB = 2**20
GIB = 2**30


def main(arguments: argparse.Namespace) -> None:
    config = load_file(arguments.config, arguments.overrides)
    from scripts.planning import accelerator_estimate, devices, lengths

    target = devices.parse_target(arguments.device)
    target_devices = devices.find_devices(target)
    if arguments.workdir is None:
        data = lengths.assume(config, arguments.lengths)
    else:
        data = lengths.read(config, Path(arguments.workdir))

    estimate = accelerator_estimate.estimate_run(config, target, target_devices, data)
    report = to_json(config, target, data.description, estimate)
    if arguments.format == "json":
        print(json.dumps(files.six_digits(report)))
    else:
        print(*to_lines(target, estimate, report), sep="\n")

    # The report is printed anyway: it shows the parts of the memory.
    memory = estimate.largest.memory
    if not memory.fits:
        reason = f"{memory.used / GIB:.1f} of {memory.available / GIB:.1f} GiB per device: {memory}"
        shape = str(estimate.largest.bucket)
        raise UserError(accelerator_estimate.explain(config, target, shape, reason))


def to_json(
    config: Config, target: "Target", lengths: str, estimate: "AcceleratorEstimate"
) -> dict[str, Any]:
    """Returns the estimate as JSON data. Bytes, FLOPs and seconds are the values of one device."""
    memory = estimate.largest.memory
    cost = estimate.typical.cost
    # All times are lower bounds; the times "at 70 percent" are realistic.
    hours = config.training.steps * estimate.step_seconds / 3600
    return {
        "device": target.text,
        "devices": target.count,
        "lengths": lengths,
        "parameters": estimate.parameters,
        "memory": {
            "shape": asdict(estimate.largest.bucket),
            **memory._asdict(),
            "fits": memory.fits,
        },
        "step": {
            "shape": asdict(estimate.typical.bucket),
            "batches": estimate.typical.batches,
            **asdict(cost),
            "seconds": cost.seconds,
            "utilization": cost.flops / cost.seconds / target.kind.bfloat16,
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


def to_lines(
    target: "Target", estimate: "AcceleratorEstimate", report: dict[str, Any]
) -> Iterator[str]:
    """Yields the lines of the estimate in words."""
    kind = target.kind
    memory = estimate.largest.memory

    wire = f"; sends {target.interconnect / 1e9:.0f} GB/s" if target.count > 1 else ""
    yield (
        f"device      {target.count} x {target.name}: "
        f"{kind.bfloat16 / 1e12:.0f} TFLOP/s in bfloat16, {kind.float32 / 1e12:.0f} in float32; "
        f"{kind.bandwidth / 1e9:,.0f} GB/s; {kind.memory / GIB:.1f} GiB{wire}"
    )
    yield f"lengths     {report['lengths']}"
    yield f"parameters  {estimate.parameters:,}"

    # By default JAX takes only a part of a GPU, even if the program would fit in all of it.
    verdict = "fits" if memory.fits else "does not fit"
    if kind.platform == "gpu" and memory.fits and memory.used > PREALLOCATED * kind.memory:
        verdict = f"fits with XLA_PYTHON_CLIENT_MEM_FRACTION={kind.usable / kind.memory:.2f}"
    yield (
        f"memory      {verdict}: {memory.used / GIB:.2f} of {memory.available / GIB:.2f} GiB "
        f"per device, for batches of {estimate.largest.bucket}"
    )
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


def _step_lines(target: "Target", typical: "CompiledShape") -> Iterator[str]:
    """Yields the lines of one update: its work, its bounds and its costliest parts."""
    cost = typical.cost
    several = f"{typical.batches} batches of " if typical.batches > 1 else ""
    yield f"step        of {several}{typical.bucket}, on each device:"
    yield (
        f"step        {cost.flops / 1e12:.2f} TFLOP of products, "
        f"{cost.float32_flops / 1e12:.2f} of float32; {cost.bytes / 1e9:.1f} GB moved; "
        f"{cost.kernels:,} kernels"
    )
    for collective in cost.collectives:
        yield (
            f"collective  {collective.kind} over {collective.devices} devices: "
            f"{collective.launches} a step, {collective.wire_bytes / MIB:,.1f} MiB sent"
        )
    yield (
        f"roofline    {1e3 * cost.seconds:.1f} ms at least: "
        f"kernels {1e3 * cost.kernel_seconds:.1f}, "
        f"memory {1e3 * cost.memory_seconds:.1f}, wire {1e3 * cost.wire_seconds:.1f}; "
        f"utilization at that {100 * cost.flops / cost.seconds / target.kind.bfloat16:.0f} %"
    )
    for kernel in cost.costliest_kernels:
        yield (
            f"kernel      {1e3 * kernel.seconds:.2f} ms, {kernel.bytes / 1e9:.2f} GB, "
            f"{kernel.flops / 1e9:,.0f} GFLOP, {kernel.launches} x {kernel.result}: {kernel.name}"
        )


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.plan", __doc__, overrides="config")
    parser.add_argument(
        "--config", required=True, metavar="FILE[:ARG]", help="a file of configs/, or a config.json"
    )
    parser.add_argument(
        "--device", required=True, metavar="NAME[:SIZE]", help="the devices: h100:8, v5e:4x4"
    )
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--workdir", help="a run, for its data and vocabulary")
    data.add_argument(
        "--lengths",
        metavar="PAIRS:SOURCE:TARGET",
        help="training pairs, mean tokens of both sides (WMT14 en-de)",
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="output format (text)"
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
