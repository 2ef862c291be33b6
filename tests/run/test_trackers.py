"""Trackers: their names and packages, runs of W&B and MLflow that later starts continue, and
failures.
"""

import importlib.util
import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.scripts.sweeping.fakes import wait_until
from tests.training import tiny
from transformer.run import trackers
from transformer.run.record import Recorder
from transformer.support.errors import UserError
from transformer.training.progress import Progress
from transformer.workdir import Workdir

# SQLAlchemy's, of MLflow's tables.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)

ABOUT = {"training__note": "why", "training__tags": ("ablation", "de-en")}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Lets no tracker reach for a network, whatever the environment says."""
    for name in (
        "WANDB_NAME",
        "WANDB_PROJECT",
        "WANDB_RUN_ID",
        "MLFLOW_TRACKING_URI",
        "MLFLOW_EXPERIMENT_NAME",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def track(
    folder: Path, names: str, done: int, steps: tuple[int, ...], rollback: int | None = None
) -> None:
    """Records training lines of these steps in a start from the checkpoint of step `done`."""
    config = tiny.tiny_config(training__trackers=names, **ABOUT)
    with Recorder(Workdir(folder), config) as recorder:
        recorder.on_start(Progress(step=done, validated_step=done))
        for step in steps:
            recorder.on_log(Progress(step=step), {"loss": 1 / step, "train_tokens/>>de<<": 2.0})
            recorder.after_step(Progress(step=step), {"module_norms": {}})
            if step == rollback:
                recorder.on_start(Progress(step=done))


def wandb_records(path: Path) -> Iterator[object]:
    """Yields the records of an offline run: a header of 7 bytes, then checksum, length, type and
    content of each.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content = path.read_bytes()[7:]
    while content:
        _, length, kind = struct.unpack("<IHB", content[:7])
        assert kind == 1  # a record that is not divided
        record = Record()
        record.ParseFromString(content[7 : 7 + length])
        yield record
        content = content[7 + length :]


def points_of(start: list) -> list[dict]:
    """Returns the points among the records of an offline run, each with its values by name."""
    lines = [
        record.history.item for record in start if record.WhichOneof("record_type") == "history"
    ]
    return [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in line}
        for line in lines
    ]


@pytest.mark.slow
def test_a_later_start_continues_the_run_of_wandb(tmp_path, capfd, monkeypatch):
    import wandb

    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    track(tmp_path / "run", "wandb", 0, (1, 2, 3), rollback=2)
    track(tmp_path / "run", "wandb", 2, (3, 4))
    wandb.teardown()  # waits for its process, which writes the files
    assert capfd.readouterr().out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    recorded = json.loads((tmp_path / "run" / "trackers.json").read_text())
    starts = [
        list(wandb_records(path))
        for path in sorted((tmp_path / "run" / "wandb").glob("offline-*/*.wandb"))
    ]
    for start, steps in zip(starts, ([1, 2, 3], [3, 4]), strict=True):
        run = next(record.run for record in start if record.WhichOneof("record_type") == "run")
        assert (run.run_id, run.display_name, run.notes) == (recorded["wandb"], "run", "why")
        assert list(run.tags) == ["ablation", "de-en"]
        settings = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert (settings["model.d_model"], settings["training.note"]) == (8, "why")
        values = points_of(start)
        assert [line["step"] for line in values] == steps
        assert [line["train/loss"] for line in values] == [1 / step for step in steps]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.run.test_trackers import track
from transformer.run.record import Recorder
Recorder.__exit__ = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
track(Path(sys.argv[1]), "wandb", 0, tuple(range(1, 31)))
"""


@pytest.mark.slow
def test_wandb_has_all_points_of_a_run_that_was_killed(tmp_path):
    import wandb

    argv = [sys.executable, "-c", KILLED, str(tmp_path)]
    assert subprocess.run(argv, cwd=REPOSITORY).returncode == -signal.SIGKILL
    (path,) = tmp_path.glob("wandb/offline-*/*.wandb")
    wait_until(lambda: path.stat().st_mtime < time.time() - 2, 30)  # the process of W&B ends
    track(tmp_path, "wandb", 30, (31,))
    wandb.teardown()
    starts = [
        points_of(list(wandb_records(path))) for path in tmp_path.glob("wandb/offline-*/*.wandb")
    ]
    assert {point["step"] for start in starts for point in start} == set(range(1, 32))


def test_a_start_draws_the_last_minute_again_in_wandb(monkeypatch):
    drawn = []
    monkeypatch.setattr(trackers.WeightsAndBiases, "__init__", lambda self: None)
    monkeypatch.setattr(
        trackers.WeightsAndBiases, "draw", lambda self, line: drawn.append(line["step"])
    )
    trackers.WeightsAndBiases().start(
        7, [{"step": step, "seconds": 25.0 * step} for step in range(1, 7)]
    )
    assert drawn == [4, 5, 6]
    trackers.WeightsAndBiases().start(1, [])


def test_a_trial_is_named_after_its_sweep(tmp_path):
    assert trackers._run_name(tmp_path / "rates" / "trials" / "0004") == "rates-0004"
    assert trackers._run_name(tmp_path / "0004") == "0004"


@pytest.mark.slow
def test_a_later_start_continues_the_run_of_mlflow(tmp_path, capfd, monkeypatch):
    from mlflow import MlflowClient

    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    track(tmp_path / "run", "mlflow", 0, (1, 2, 3))
    track(tmp_path / "run", "mlflow", 2, (3, 4))
    assert capfd.readouterr().out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    client = MlflowClient(f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    (run,) = client.search_runs(["0"])
    assert run.info.run_id == json.loads((tmp_path / "run" / "trackers.json").read_text())["mlflow"]
    assert (run.info.run_name, run.info.status) == ("run", "KILLED")
    assert (run.data.tags["mlflow.note.content"], run.data.tags["tags"]) == (
        "why",
        "ablation de-en",
    )
    assert (
        run.data.params["model.d_model"] == "8"
        and run.data.params["training.tags"] == "('ablation', 'de-en')"
    )
    losses = [
        (point.step, point.value)
        for point in client.get_metric_history(run.info.run_id, "train/loss")
    ]
    assert sorted(losses) == [(step, 1 / step) for step in (1, 2, 3, 3, 4)]
    assert "train/train_tokens/__de__" in run.data.metrics
    last = tiny.tiny_config().training.steps
    monkeypatch.setitem(ABOUT, "training__note", "why not")
    track(tmp_path / "run", "mlflow", last, ())
    run = client.get_run(run.info.run_id)
    assert (run.info.status, run.data.tags["mlflow.note.content"]) == ("FINISHED", "why not")
    client.delete_run(run.info.run_id)
    track(tmp_path / "run", "mlflow", last, ())
    (another,) = client.search_runs(["0"])
    assert (
        another.info.run_id
        == json.loads((tmp_path / "run" / "trackers.json").read_text())["mlflow"]
    )


class Failing(trackers.Tracker):
    """A tracker that fails from its second line on."""

    lines = 0

    def draw(self, line: dict) -> None:
        type(self).lines += 1
        if self.lines >= 2:
            raise ConnectionError("no route\nto host")

    def close(self, has_failed: bool) -> None:
        raise AssertionError("is closed, although it has failed")


class Absent(trackers.Tracker):
    """A tracker that cannot start."""

    def __init__(self, *_: object) -> None:
        raise OSError("disk")


def test_a_tracker_that_fails_is_left_out_with_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(trackers, "TRACKERS", trackers.TRACKERS)
    for name, kind in {"failing": Failing, "absent": Absent}.items():
        monkeypatch.setitem(trackers.TRACKERS, name, kind)
    track(tmp_path, "failing,tensorboard,absent", 0, (1, 2, 3, 4))
    assert [
        json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ] == [1, 2, 3, 4]
    assert Failing.lines == 2 and len(list((tmp_path / "tensorboard").iterdir())) == 1
    absent, failing = caplog.messages
    assert absent.startswith(
        "The tracker absent fails and is left out (OSError: disk); the next start"
    )
    assert failing.startswith(
        "The tracker failing fails and is left out (ConnectionError: no route to host); the next "
        "start"
    )


def test_without_trackers_the_record_is_written(tmp_path):
    track(tmp_path, "", 0, (1, 2))
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert not list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            "wandbb",
            "wandbb: must be empty, or names out of tensorboard, wandb, mlflow; "
            "did you mean wandb?",
        ),
        (
            "tensorboard,mlflow",
            "mlflow: mlflow needs a package; "
            "python -m pip install -r requirements/trackers.txt, or leave out mlflow",
        ),
        (
            "tensorboard, wandb",
            "wandb: wandb needs a package; "
            "python -m pip install -r requirements/trackers.txt, or leave out wandb",
        ),
    ],
)
def test_unknown_trackers_and_missing_packages_are_refused_before_anything_is_made(
    tmp_path, monkeypatch, capsys, names, message
):
    find = importlib.util.find_spec
    missing = ("wandb", "mlflow")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )
    with pytest.raises(UserError, match="config.training.trackers="):
        trackers.check_trackers(tiny.tiny_config(training__trackers=names))
    assert tiny.run(tmp_path / "run", training__trackers=names) == 2
    assert (
        f"error: config.training.trackers={names.rpartition(message.partition(':')[0])[0]}{message}"
        in (capsys.readouterr().err)
    )
    assert not (tmp_path / "run").exists()
