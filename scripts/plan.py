"""Estimates memory and time of a training run on accelerators, none of which has to be present.

    python -m scripts.plan --config=configs/X.py[:ARG] --device=NAME[:SIZE] [--workdir=DIR]
        [--lengths=PAIRS:SOURCE:TARGET] [--format=json] [--config.GROUP.KEY=VALUE ...]

Compiles the step of the config for the devices, such as h100:8 or v5e:4x4, and prints its memory
and a lower bound on its time, with the kernels and collectives that cost most. The batches are
those of the run in --workdir, or of data with the lengths that --lengths states; by default they
are WMT14 English-German's. It needs XLA's compilers for
accelerators: see docs/devices.md.
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
    from scripts.planning.devices import Target
    from scripts.planning.estimate import Estimate

REALISTIC = 0.7  # of the roofline's speed, which well-tuned programs come near
# of a GPU's memory, which JAX takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise
PREALLOCATED = 0.75
MIB = 2**20
GIB = 2**30


def main(arguments: argparse.Namespace) -> None:
    config = load_file(arguments.config, arguments.overrides)
    from scripts.planning import devices, estimate, lengths

    target = devices.parse_target(arguments.device)
    available = devices.find_devices(target)
    if arguments.workdir is None:
        data = lengths.assume(config, arguments.lengths)
    else:
        data = lengths.read(config, Path(arguments.workdir))
    estimated = estimate.estimate(config, target, available, data)
    report = to_json(config, target, data.description, estimated)
    if arguments.format == "json":
        print(json.dumps(files.six_digits(report)))
    else:
        print(*to_lines(target, estimated, report), sep="\n")
    memory = estimated.largest.memory
    if not memory.fits:
        needs = f"{memory.used / GIB:.1f} of {memory.available / GIB:.1f} GiB per device: {memory}"
        raise UserError(estimate.explain(config, target, str(estimated.largest.bucket), needs))


def to_json(
    config: Config, target: "Target", lengths: str, estimated: "Estimate"
) -> dict[str, Any]:
    """Returns the estimate as JSON data: bytes, FLOPs and seconds are those of one device."""
    memory = estimated.largest.memory
    cost = estimated.typical.cost
    hours = config.training.steps * estimated.step_seconds / 3600
    return {
        "device": target.text,
        "devices": target.count,
        "lengths": lengths,
        "parameters": estimated.parameters,
        "memory": {
            "shape": asdict(estimated.largest.bucket),
            **memory._asdict(),
            "fits": memory.fits,
        },
        "step": {
            "shape": asdict(estimated.typical.bucket),
            "batches": estimated.typical.batches,
            **asdict(cost),
            "seconds": cost.seconds,
            "utilization": cost.flops / cost.seconds / target.kind.bfloat16,
        },
        "run": {
            "steps": config.training.steps,
            "mean_step_seconds": estimated.step_seconds,
            "source_and_target_tokens_per_second": estimated.step_tokens / estimated.step_seconds,
            "hours": hours,
            "device_hours": hours * target.count,
            "hours_at_70_percent": hours / REALISTIC,
            "device_hours_at_70_percent": hours * target.count / REALISTIC,
        },
    }


def to_lines(target: "Target", estimated: "Estimate", report: dict[str, Any]) -> Iterator[str]:
    """Yields the estimate for a reader."""
    kind = target.kind
    memory = estimated.largest.memory
    cost = estimated.typical.cost
    run = report["run"]
    yield (
        f"device      {target.count} x {target.name}: {kind.bfloat16 / 1e12:.0f} TFLOP/s in bfloat16, "
        f"{kind.float32 / 1e12:.0f} in float32; {kind.bandwidth / 1e9:,.0f} GB/s; {kind.memory / GIB:.1f} GiB"
        + (f"; sends {target.interconnect / 1e9:.0f} GB/s" if target.count > 1 else "")
    )
    yield f"lengths     {report['lengths']}"
    yield f"parameters  {estimated.parameters:,}"
    verdict = "fits" if memory.fits else "does not fit"
    if kind.platform == "gpu" and memory.fits and memory.used > PREALLOCATED * kind.memory:
        verdict = f"fits with XLA_PYTHON_CLIENT_MEM_FRACTION={kind.usable / kind.memory:.2f}"
    yield (
        f"memory      {verdict}: {memory.used / GIB:.2f} of {memory.available / GIB:.2f} GiB per device, "
        f"for batches of {estimated.largest.bucket}"
    )
    yield f"memory      {memory}"
    several = f"{estimated.typical.batches} batches of " if estimated.typical.batches > 1 else ""
    yield f"step        of {several}{estimated.typical.bucket}, on each device:"
    yield (
        f"step        {cost.flops / 1e12:.2f} TFLOP of products, {cost.float32_flops / 1e12:.2f} of float32; "
        f"{cost.bytes / 1e9:.1f} GB moved; {cost.kernels:,} kernels"
    )
    for collectives in cost.collectives:
        yield (
            f"collective  {collectives.kind} over {collectives.devices} devices: {collectives.launches} a step, "
            f"{collectives.wire_bytes / MIB:,.1f} MiB sent"
        )
    yield (
        f"roofline    {1e3 * cost.seconds:.1f} ms at least: kernels {1e3 * cost.kernel_seconds:.1f}, memory "
        f"{1e3 * cost.memory_seconds:.1f}, wire {1e3 * cost.wire_seconds:.1f}; utilization at that "
        f"{100 * cost.flops / cost.seconds / kind.bfloat16:.0f} %"
    )
    for kernels in cost.costliest_kernels:
        yield (
            f"kernel      {1e3 * kernels.seconds:.2f} ms, {kernels.bytes / 1e9:.2f} GB, "
            f"{kernels.flops / 1e9:,.0f} GFLOP, {kernels.launches} x {kernels.result}: {kernels.name}"
        )
    yield (
        f"run         {run['steps']:,} steps of {1e3 * run['mean_step_seconds']:.1f} ms on average; "
        f"{run['source_and_target_tokens_per_second']:,.0f} source and target tokens/s"
    )
    for speed, suffix in (("the bound", ""), ("70 % of it", "_at_70_percent")):
        hours = run[f"hours{suffix}"]
        device_hours = run[f"device_hours{suffix}"]
        yield f"run         at {speed}: {hours:,.2f} hours, {device_hours:,.2f} device-hours; validation is extra"


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.plan", __doc__, overrides="config")
    parser.add_argument(
        "--config", required=True, metavar="FILE[:ARG]", help="a file of configs/, or a config.json"
    )
    parser.add_argument(
        "--device", required=True, metavar="NAME[:SIZE]", help="the devices: h100:8, v5e:4x4"
    )
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--workdir", help="a run whose data and vocabulary count")
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
