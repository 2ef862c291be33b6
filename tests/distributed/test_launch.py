"""Two processes that are one run, started by the command line as on two hosts, and what they say when they disagree."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import ml_collections
import pytest

from tests.training.tiny import flags, record, run, tiny_config
from transformer import train
from transformer.checkpoints.restore import choose_step
from transformer.config import loading as configuration
from transformer.distributed import coordination as distributed
from transformer.distributed import launch
from transformer.environment import describe_environment
from transformer.errors import UserError
from transformer.run import preparation as runs

REPOSITORY = Path(__file__).parents[2]
# A gentle rate: at a high one rounding grows a hundredfold in ten steps.
SETTINGS = {"training__log_every": 1, "checkpoint__every": 10, "optimizer__learning_rate": 0.1}
SETTINGS |= {"training__steps": 20, "training__eval_every": 10}
SETTINGS |= {"training__eval_bleu": True, "training__eval_sentences": 16, "decoding__max_extra_length": 4}


class Two:
    """Two processes of `transformer.train`; `own` has what the second's command line has otherwise."""

    def __init__(self, workdir: Path, own: dict, devices: int = 1, **changes) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        self.processes = []
        xla_flags = f"--xla_force_host_platform_device_count={devices} {os.environ['XLA_FLAGS']}"
        environment = os.environ | {"XLA_FLAGS": xla_flags}
        for number, settings in enumerate((changes, changes | own)):
            together = [f"--coordinator=localhost:{port}", "--num_processes=2", f"--process_id={number}"]
            argv = [sys.executable, "-m", "transformer.train", *flags(workdir, **settings), *together]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            self.processes.append(subprocess.Popen(argv, cwd=REPOSITORY, env=environment, **pipes))

    def __enter__(self) -> "Two":
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()

    def wait_for(self, text: str) -> None:
        """Until process 0 has said so."""
        for line in self.processes[0].stderr:
            if text in line:
                return
        raise AssertionError(f"process 0 ended without saying: {text}")

    def end(self) -> list[tuple[int, str]]:
        """The exit code of each, and what it has said on standard error."""
        errors = [process.communicate(timeout=600)[1] for process in self.processes]
        return [(process.returncode, error) for process, error in zip(self.processes, errors, strict=True)]


def last(errors: str) -> str:
    return [line for line in errors.splitlines() if line.startswith("error: ")][-1]


def interrupted(workdir: Path, step: int, **settings) -> list[str]:
    """What each of two processes says if the second gets a Ctrl-C at this step, and both stop at the same one after."""
    with Two(workdir, {}, **settings) as two:
        two.wait_for(f"step {step}/")
        two.processes[1].send_signal(signal.SIGINT)
        ends = two.end()
    # Each ends by the signal that it got itself: none, or Ctrl-C.
    assert [code for code, _ in ends] == [0, 130]
    saved = choose_step(workdir, "last")
    assert step <= saved < settings["training__steps"] and record(workdir)[-1]["step"] == saved
    for _, errors in ends:
        assert f"nterrupted; step {saved} is saved" in errors.splitlines()[-1]
    return [errors for _, errors in ends]


def check_same_run(ours: list[dict], theirs: list[dict]) -> None:
    """But for rounding: no more of it than one update makes in the first step."""
    assert [(line["step"], line["split"]) for line in ours] == [(line["step"], line["split"]) for line in theirs]
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-5)
    for here, there in zip(ours, theirs, strict=True):
        assert here["loss"] == pytest.approx(there["loss"], rel=1e-3)
        assert (here["examples"], here["tokens"]) == (there["examples"], there["tokens"])
        if "chrf" in there:
            assert here["chrf"] == pytest.approx(there["chrf"], abs=0.5)


def test_two_processes_make_the_run_of_one_and_stop_at_the_same_step(tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert run(alone, **SETTINGS) == 0
    errors = interrupted(shared, 10, mesh__fsdp=2, **SETTINGS)
    check_same_run(record(shared), record(alone)[: len(record(shared))])
    # The rest by a process alone, on a mesh of one device.
    assert run(shared, **SETTINGS) == 0
    check_same_run(record(shared), record(alone))
    # Process 0 alone tells what goes well, and is the only one to write.
    assert "Model:" not in errors[1] and (shared / "log.txt").read_text().count("Model:") == 2
    assert len(list((shared / "tensorboard").iterdir())) == 2


# Tensor parallel, each matrix is in parts on the devices of both processes.
@pytest.mark.slow
@pytest.mark.parametrize(("devices", "mesh"), [(1, {"mesh__fsdp": 2}), (2, {"mesh__tensor": 4})])
def test_two_processes_make_all_steps_of_one_and_go_on_from_what_they_saved(tmp_path, devices, mesh):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    settings = SETTINGS | {"training__steps": 50}
    assert run(alone, **settings) == 0
    interrupted(shared, 25, devices=devices, **settings, **mesh)
    with Two(shared, {}, devices, **settings, **mesh) as two:
        assert [code for code, _ in two.end()] == [0, 0]
    assert "Resuming from the checkpoint of step 2" in (shared / "log.txt").read_text()
    check_same_run(record(shared), record(alone))


@pytest.mark.slow
def test_when_a_process_is_killed_the_other_ends_and_says_so(tmp_path):
    # Without a checkpoint under way: while all wait for one, it is JAX that ends them, later.
    never = dict.fromkeys(("training__steps", "training__eval_every", "checkpoint__every"), 1_000_000)
    with Two(tmp_path / "run", {}, **SETTINGS | never) as two:
        two.wait_for("step 11/")
        two.processes[1].kill()
        began = time.monotonic()
        (code, errors), (killed, _) = two.end()
    assert time.monotonic() - began < launch.HEARTBEAT_SECONDS / 2
    assert (code, killed) == (2, -signal.SIGKILL) and "Traceback" not in errors
    assert last(errors) == errors.splitlines()[-1]
    assert "another process of this run has died; start the same command in all processes to resume" in last(errors)


def test_processes_that_disagree_all_say_in_what(tmp_path):
    with Two(tmp_path / "run", {"model__d_ff": 32}, training__steps=8) as two:
        ends = two.end()
    assert [code for code, _ in ends] == [2, 2]
    for _, errors in ends:
        assert "process 1 differs from process 0 in config.model.d_ff (32, not 16);" in last(errors)
        assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()


def test_what_stops_one_process_stops_the_other(tmp_path):
    (tmp_path / "file").write_text("")
    with Two(tmp_path / "run", {"data__cache_dir": tmp_path / "file" / "cache"}, training__steps=8) as two:
        ends = two.end()
    assert [code for code, _ in ends] == [2, 2]
    reason = f"data.cache_dir={tmp_path / 'file' / 'cache'}: Not a directory"
    assert last(ends[1][1]).startswith(f"error: {reason}")
    assert f"error: process 1 on {socket.gethostname()} has stopped: {reason}" in last(ends[0][1])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--coordinator=host:1"], "give --coordinator, --num_processes and --process_id"),
        (["--process_id=0", "--num_processes=2"], "give --coordinator, --num_processes and --process_id"),
        (["--distributed", "--process_id=0"], "--process_id=0 --distributed: give"),
        (["--coordinator=host", "--num_processes=2", "--process_id=0"], "--coordinator=host: must be HOST:PORT"),
        (["--coordinator=host:1", "--num_processes=2", "--process_id=2"], "numbered from 0 to one less"),
    ],
)
def test_flags_that_do_not_go_together(argv, message):
    parser = argparse.ArgumentParser()
    launch.add_flags(parser)
    with pytest.raises(UserError, match=re.escape(message)), launch.distributed_run(parser.parse_args(argv)):
        pass


def test_without_other_processes_nothing_is_waited_for():
    with distributed.process_zero_first("nothing", 0):
        pass
    distributed.require_same("nothing", lambda: {"a": 1}, 0)
    assert distributed.broadcast([1], 0) == [1]
    assert distributed.on_process_zero(max, 1, 2) == 2
    agreed = distributed.AnyProcess()
    assert [agreed(flag) for flag in (False, True, False)] == [False, True, False]


def test_what_differs_is_named():
    facts = {f"key {number}": number for number in range(8)}
    assert distributed.difference([facts, dict(facts)]) is None
    message = distributed.difference([facts, facts, {name: -1 for name in facts}])
    assert message.startswith("process 2 differs from process 0 in key 0 (-1, not 0), key 1 (-1, not 1)")
    assert "key 5" not in message and "and 3 more;" in message
    assert "b (2, not None)" in distributed.difference([{"a": 1}, {"a": 1, "b": 2}])


def test_processes_have_to_agree_on_all_that_makes_a_run(tmp_path, monkeypatch):
    facts = {}
    monkeypatch.setattr(distributed, "require_same", lambda what, found, seconds: facts.update(found()))
    arguments = train.make_parser().parse(flags(tmp_path / "run"))
    config = configuration.load_file(arguments.config, arguments.overrides)
    with runs.open_workdir(tmp_path / "run", config) as workdir:
        prepared = runs.prepare(config, workdir)
    assert facts["config.model.d_ff"] == 16 and facts["the version of jax"] == jax.__version__
    assert facts["the commit"] == describe_environment()["commit"]
    assert facts["the vocabulary"] == prepared.tokenizer.fingerprint
    assert facts["the training corpus"] == prepared.corpus.report["digest"]
    assert facts["the validation corpus"] == prepared.validation.corpus.report["digest"]
    # Where each has its data is its own affair.
    assert "config.data.cache_dir" not in facts


def test_a_changed_file_makes_it_other_code(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "__file__", str(tmp_path / "run" / "preparation.py"))
    file, codes = tmp_path / "model" / "attention.py", []
    file.parent.mkdir()
    for text in ("x = 1", "x = 2"):
        file.write_text(text)
        codes.append(runs.identity(ml_collections.FrozenConfigDict(tiny_config()))["the code"])
    assert codes[0] != codes[1]


@pytest.fixture
def silent(monkeypatch):
    """As if this were process 1, and process 0 never said anything."""

    class Client:
        error, looks = "DEADLINE_EXCEEDED: nobody has set it", 0

        def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
            self.looks += 1
            assert self.looks < 5, "goes on waiting"
            raise jax.errors.JaxRuntimeError(self.error)

    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("jax.process_index", lambda: 1)
    monkeypatch.setattr(distributed.jax_distributed.global_state, "client", Client())
    return Client


def test_waiting_for_another_process_has_an_end(silent):
    with pytest.raises(UserError, match="^waited 0 s for process 0 to prepare the corpus; .*data.wait_seconds=0$"):
        distributed.process_zero_first("the corpus", 0).__enter__()
    with pytest.raises(UserError, match="^waited 0 s for process 0;"):
        distributed.broadcast(None, 0)


def test_what_another_process_has_stopped_of_ends_the_waiting(silent, monkeypatch):
    monkeypatch.setattr(distributed, "failures", ["process 0 has stopped: no data"])
    with pytest.raises(UserError, match="^process 0 has stopped: no data$"):
        distributed.await_value("key", "process 0", 1000)


def test_a_service_that_is_gone_is_not_waited_for(silent, monkeypatch):
    monkeypatch.setattr(silent, "error", "UNAVAILABLE: no connection")
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"):
        distributed.await_value("key", "process 0", 1000)


def test_what_the_others_get_does_nothing(monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    with distributed.on_process_zero(json.loads, "no JSON") as nothing:
        assert nothing.write("anything", key=1) is None
