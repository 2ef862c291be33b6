"""Runs of two processes, started by the command line as on two hosts."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.tiny import flags, record, run
from transformer import train
from transformer.checkpoints.restore import choose_step
from transformer.distributed import launch
from transformer.support.errors import UserError

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
# With a high learning rate rounding errors grow a hundredfold in ten steps.
SETTINGS = {"training__log_every": 1, "checkpoint__every": 10, "optimizer__learning_rate": 0.1}
SETTINGS |= {"training__steps": 20, "training__eval_every": 10}
SETTINGS |= {"training__eval_bleu": True, "training__eval_sentences": 16, "training__samples": 0}
SETTINGS |= {"decoding__max_extra_length": 4}


class Two:
    """Two processes of `transformer.train`; `own` overrides keys of the second."""

    def __init__(self, workdir: Path, own: dict, devices: int = 1, **changes) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        self.processes = []
        xla_flags = f"--xla_force_host_platform_device_count={devices} {os.environ['XLA_FLAGS']}"
        environment = os.environ | {"XLA_FLAGS": xla_flags}
        for number, settings in enumerate((changes, changes | own)):
            together = [
                f"--coordinator=localhost:{port}",
                "--num_processes=2",
                f"--process_id={number}",
            ]
            argv = [
                sys.executable,
                "-m",
                "transformer.train",
                *flags(workdir, **settings),
                *together,
            ]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            self.processes.append(subprocess.Popen(argv, cwd=REPOSITORY, env=environment, **pipes))

    def __enter__(self) -> "Two":
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()

    def wait_for(self, text: str) -> None:
        """Waits until process 0 logs the text."""
        for line in self.processes[0].stderr:
            if text in line:
                return
        raise AssertionError(f"process 0 ended without the log line: {text}")

    def end(self) -> list[tuple[int, str]]:
        """Returns the exit code and standard error of each process."""
        errors = [process.communicate(timeout=600)[1] for process in self.processes]
        return [
            (process.returncode, error)
            for process, error in zip(self.processes, errors, strict=True)
        ]


def last(errors: str) -> str:
    return [line for line in errors.splitlines() if line.startswith("error: ")][-1]


def interrupted(workdir: Path, step: int, **settings) -> list[str]:
    """Sends Ctrl-C to the second process at this step, checks that both stop alike, and returns
    their logs.
    """
    with Two(workdir, {}, **settings) as two:
        two.wait_for(f"step {step} ")
        two.processes[1].send_signal(signal.SIGINT)
        ends = two.end()
    assert [code for code, _ in ends] == [130, 130]
    saved = choose_step(workdir, "last")
    assert step <= saved < settings["training__steps"] and record(workdir)[-1]["step"] == saved
    for _, errors in ends:
        assert f"nterrupted; step {saved} is saved" in errors.splitlines()[-1]
    return [errors for _, errors in ends]


def check_same_run(ours: list[dict], theirs: list[dict]) -> None:
    """Checks that two records agree up to rounding; in the first step, up to the rounding of one
    update.
    """
    assert [(line["step"], line["split"]) for line in ours] == [
        (line["step"], line["split"]) for line in theirs
    ]
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-5)
    for here, there in zip(ours, theirs, strict=True):
        assert here["loss"] == pytest.approx(there["loss"], rel=1e-3)
        assert (here["examples"], here["tokens"]) == (there["examples"], there["tokens"])
        if "chrf" in there:
            assert here["chrf"] == pytest.approx(there["chrf"], abs=0.5)


@pytest.mark.slow
def test_two_processes_repeat_the_run_of_one_and_stop_at_the_same_step(tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    sampled = {
        "tokenizer__kind": "bpe",
        "tokenizer__vocab_size": 120,
        "tokenizer__subword_sampling": 0.1,
    }
    settings = SETTINGS | sampled  # each process counts the tokens of all rows
    assert run(alone, **settings) == 0
    errors = interrupted(shared, 10, mesh__fsdp=2, **settings)
    check_same_run(record(shared), record(alone)[: len(record(shared))])
    # One process finishes the run, on a mesh of one device.
    assert run(shared, **settings) == 0
    check_same_run(record(shared), record(alone))
    # Only process 0 logs and writes.
    assert "Model:" not in errors[1] and (shared / "log.txt").read_text().count("Model:") == 2
    assert len(list((shared / "tensorboard").iterdir())) == 2


# With tensor parallelism every matrix is sharded over both processes.
@pytest.mark.slow
@pytest.mark.parametrize(("devices", "mesh"), [(1, {"mesh__fsdp": 2}), (2, {"mesh__tensor": 4})])
def test_two_processes_resume_together_and_repeat_the_run_of_one(tmp_path, devices, mesh):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    settings = SETTINGS | {"training__steps": 50}
    assert run(alone, **settings) == 0
    interrupted(shared, 25, devices=devices, **settings, **mesh)
    with Two(shared, {}, devices, **settings, **mesh) as two:
        assert [code for code, _ in two.end()] == [0, 0]
    assert "Resuming from the checkpoint of step 2" in (shared / "log.txt").read_text()
    check_same_run(record(shared), record(alone))


@pytest.mark.slow
def test_a_killed_process_ends_the_other_within_seconds(tmp_path):
    # No checkpoint is saved meanwhile: processes that wait for one are ended by JAX, later.
    never = dict.fromkeys(
        ("training__steps", "training__eval_every", "checkpoint__every"), 1_000_000
    )
    with Two(tmp_path / "run", {}, **SETTINGS | never) as two:
        two.wait_for("step 11 ")
        two.processes[1].kill()
        began = time.monotonic()
        (code, errors), (killed, _) = two.end()
    assert time.monotonic() - began < launch.HEARTBEAT_SECONDS / 2
    assert (code, killed) == (2, -signal.SIGKILL) and "Traceback" not in errors
    assert last(errors) == errors.splitlines()[-1]
    assert (
        "another process of this run has died; start the same command in all processes to resume"
        in last(errors)
    )


@pytest.mark.slow
def test_processes_with_different_configs_all_name_the_difference(tmp_path):
    with Two(tmp_path / "run", {"model__d_ff": 32}, training__steps=8) as two:
        ends = two.end()
    assert [code for code, _ in ends] == [2, 2]
    for _, errors in ends:
        assert "process 1 differs from process 0 in config.model.d_ff (32, not 16);" in last(errors)
        assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_failure_of_one_process_stops_the_other(tmp_path):
    (tmp_path / "file").write_text("")
    with Two(
        tmp_path / "run", {"data__cache_dir": tmp_path / "file" / "cache"}, training__steps=8
    ) as two:
        ends = two.end()
    assert [code for code, _ in ends] == [2, 2]
    reason = f"data.cache_dir={tmp_path / 'file' / 'cache'}: cannot be made (Not a directory"
    assert last(ends[1][1]).startswith(f"error: {reason}")
    assert f"error: process 1 on {socket.gethostname()} has stopped: {reason}" in last(ends[0][1])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--coordinator=host:1"],
            "(Number of processes must be defined.); if JAX detects no cluster, give ",
        ),
        (
            ["--process_id=0", "--num_processes=2"],
            "(coordinator_address should be defined.); if JAX detects no clus",
        ),
        (
            ["--coordinator=host", "--num_processes=2", "--process_id=0"],
            "give --coordinator=HOST:PORT",
        ),
        (
            ["--coordinator=host:1", "--num_processes=2", "--process_id=2"],
            "Got process_id=2, num_processes=2.",
        ),
    ],
)
def test_flags_that_describe_no_processes_are_refused(argv, message, monkeypatch):
    monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: False)
    arguments = train.make_parser().parse(["--workdir=run", *argv])
    with pytest.raises(UserError, match=re.escape(message)), launch.distributed_run(arguments):
        pass
