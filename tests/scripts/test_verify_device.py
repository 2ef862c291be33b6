"""The command that verifies a device: output, exit code, and checks that end with an error."""

import json

import pytest

from scripts import verify_device
from transformer.config import cli

CHECKS = "tests.scripts.verification.checks"


def run(*argv: str) -> int:
    return cli.execute(verify_device.make_parser(), verify_device.main, argv)


def replace(monkeypatch, *groups: str, speed: str = "measures") -> None:
    monkeypatch.setattr(verify_device, "GROUPS", {name: f"{CHECKS}:{name}" for name in groups})
    monkeypatch.setattr(verify_device, "SPEED", f"{CHECKS}:{speed}")


def test_the_output_has_all_checks_and_a_verdict(monkeypatch, tmp_path, capsys):
    replace(monkeypatch, "passes")
    assert run(f"--output={tmp_path / 'new' / 'folder'}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["passes", "  passed   0.0e+00 of 0.0e+00  precision highest, JAX False"]
    assert lines[-1].endswith("computes what it should; all 1 checks passed")
    report = json.loads((tmp_path / "new" / "folder" / "verification.json").read_text())
    assert report["outcomes"]["passes"] == [
        {"name": "precision highest, JAX False", "error": 0, "bar": 0, "passed": True}
    ]
    assert report["speeds"][0]["seconds"] == 0.1


def test_checks_that_end_with_an_error_or_a_crash_fail_and_the_others_go_on(monkeypatch, capfd):
    replace(monkeypatch, "raises", "crashes", "passes", speed="runs_out_of_memory")
    assert run() == 2
    output, errors = capfd.readouterr()
    assert "precision highest" in output and "| step of base | 100.0 |" in output
    verdict = errors.splitlines()[-1]
    assert (
        "3 of 6 checks failed: raises, ended early (RuntimeError: CUDA_ERROR_UNKNOWN): inf"
        in verdict
    )
    assert (
        "its process ended with exit code -11" in verdict
        and "RESOURCE_EXHAUSTED: Out of memory" in verdict
    )


def test_flags_that_cannot_work_are_refused_before_the_checks(tmp_path, capsys):
    (tmp_path / "devices.md").write_text("no marks")
    for flags, says in (
        (("--readme=devices.md", "--quick"), "has no rows of --quick"),
        ((f"--readme={tmp_path}/devices.md",), "needs the lines"),
    ):
        assert run(*flags) == 2
        assert says in capsys.readouterr().err


@pytest.mark.slow  # minutes of measurements
def test_this_machine_passes(tmp_path):
    assert run("--quick", f"--output={tmp_path}") == 0
