"""Writes a table of what configs need on accelerators, none of which has to be present.

    python -m scripts.accelerators --folder=runs/accelerators [--readme=docs/devices.md]

Each row is a plan of `scripts.plan`, so the script needs XLA's compilers for accelerators, and minutes a row. It keeps
plans in the folder as JSON, and a second start makes only those that are missing. --readme replaces the text between
two marks in a file with the table. Without it the table is printed.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from scripts import markdown
from transformer import cli, files
from transformer.errors import UserError


class Row(NamedTuple):
    """A config, devices for it, and the mesh of these devices."""

    config: str
    device: str
    mesh: str = "data=-1"

    @property
    def name(self) -> str:
        return f"{self.config}-{self.device.replace(':', '-')}-{self.mesh.replace('=', '')}"


ROWS = (
    Row("base", "h100"),
    Row("base", "h100:8"),
    Row("base", "v5e:2x4"),
    Row("base", "v5p:2x2x1"),
    Row("big", "h100"),
    Row("big", "h100:8"),
    Row("big", "h100:8", "fsdp=8"),
    Row("big", "v5e:2x4"),
    Row("big", "v5p:2x2x1"),
)
NOTE = """
Memory is that of a device for the largest shape. TFLOP, GB, kernels, MiB and milliseconds are those of a step on a
device, for the shape with most positions in an epoch; milliseconds and utilization are the roofline's. Source
and target tokens per second, hours and device-hours are at 70 % of it, for all steps of the config.
"""


def main(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    plans = [read_or_make(folder / f"{row.name}.json", row) for row in ROWS]
    rows = [cells(row, plan) for row, plan in zip(ROWS, plans, strict=True)]
    table = markdown.table([list(rows[0]), *(list(row.values()) for row in rows)])
    markdown.publish(table + NOTE, "accelerators", arguments.readme)


def read_or_make(path: Path, row: Row) -> dict[str, Any]:
    """Returns the plan of a row, from its file if there is one. Raises UserError if there is no plan."""
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    logging.info("Planning %s.", row.name)
    flags = [f"--config=configs/{row.config}.py", f"--device={row.device}", f"--config.mesh.{row.mesh}"]
    command = [sys.executable, "-m", "scripts.plan", "--format=json", *flags]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if not result.stdout:  # a plan that does not fit has a report, and exit code 2
        raise UserError(f"{' '.join(command[1:])}: failed with exit code {result.returncode}; its message is above")
    plan = json.loads(result.stdout)
    files.write_json(path, plan)
    return plan


def cells(row: Row, plan: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of a row by the header of their column."""
    memory, step, run = plan["memory"], plan["step"], plan["run"]
    sent = sum(collectives["wire_bytes"] for collectives in step["collectives"])
    return {
        "config": row.config,
        "devices": row.device,
        "mesh": row.mesh.replace("-1", str(plan["devices"])),
        "memory GiB": f"{memory['used'] / 2**30:.1f}" + ("" if memory["fits"] else " (does not fit)"),
        "TFLOP": f"{step['flops'] / 1e12:.2f}",
        "GB moved": f"{step['bytes'] / 1e9:.1f}",
        "kernels": f"{step['kernels']:,}",
        "MiB sent": f"{sent / 2**20:,.0f}",
        "ms": f"{1e3 * step['seconds']:.1f}",
        "utilization": f"{100 * step['utilization']:.0f} %",
        "source + target tokens/s": f"{0.7 * run['source_and_target_tokens_per_second']:,.0f}",
        "hours": f"{run['hours_at_70_percent']:.1f}",
        "device-hours": f"{run['device_hours_at_70_percent']:.1f}",
    }


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.accelerators", __doc__)
    parser.add_argument("--folder", required=True, metavar="DIR", help="where plans are kept; created if missing")
    parser.add_argument("--readme", metavar="FILE", help="file to put the table into, between the marks `accelerators`")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
