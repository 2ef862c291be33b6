"""The table of what configs need on accelerators: one row a plan, which is made once."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from scripts import accelerators
from transformer import cli

PLAN = {
    "devices": 8,
    "memory": {"used": 3 * 2**29, "fits": True},
    "step": {
        "flops": 2.5e12,
        "bytes": 12.34e9,
        "kernels": 1234,
        "seconds": 0.0123,
        "utilization": 0.456,
        "collectives": [{"wire_bytes": 2**20}, {"wire_bytes": 2**21}],
    },
    "run": {
        "source_and_target_tokens_per_second": 1e6,
        "hours_at_70_percent": 1.25,
        "device_hours_at_70_percent": 10.0,
    },
}


@pytest.fixture
def planned(monkeypatch):
    """The commands that the script runs, which all give the same plan."""
    commands = []

    def run(command, **_):
        commands.append(command)
        return SimpleNamespace(stdout=json.dumps(PLAN), returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(accelerators, "ROWS", (accelerators.Row("big", "h100:8", "fsdp=8"),))
    return commands


def test_a_row_is_planned_once(planned, tmp_path, capsys):
    for _ in range(2):
        assert cli.execute(accelerators.make_parser(), accelerators.main, [f"--folder={tmp_path}"]) == 0
    first, second = capsys.readouterr().out.split("| config |")[1:]
    assert first == second
    row = next(line for line in first.splitlines() if line.startswith("| big"))
    cells = "big | h100:8 | fsdp=8 | 1.5 | 2.50 | 12.3 | 1,234 | 3 | 12.3 | 46 % | 700,000 | 1.2 | 10.0"
    assert row == f"| {cells} |"
    ((_, *command),) = planned
    assert command == [
        *("-m", "scripts.plan", "--format=json"),
        *("--config=configs/big.py", "--device=h100:8", "--config.mesh.fsdp=8"),
    ]


def test_a_failed_plan_is_named(planned, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="", returncode=2))
    assert cli.execute(accelerators.make_parser(), accelerators.main, [f"--folder={tmp_path}"]) == 2
    assert "--device=h100:8 --config.mesh.fsdp=8: failed with exit code 2" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
