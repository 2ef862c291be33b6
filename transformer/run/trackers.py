"""Trackers: programs that draw the record of a run, beside `metrics.jsonl` (`training.trackers`)."""

import contextlib
import importlib.util
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from transformer.config.keys import flatten, nearest
from transformer.config.types import Config, names_in
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.progress import Record
from transformer.training.validation import Sample
from transformer.workdir import Workdir

NOT_DRAWN = ("step", "split", "examples", "tokens", "seconds")
UPLOAD_SECONDS = 60  # the age of lines that W&B has surely uploaded, which it does every 15 seconds
# attention: pixels of a weight, pixels between two maps, and their grey
CELL, GAP, FRAME = 6, 6, 160


class Tracker:
    """The interface of trackers. Methods, and the constructor, may raise any error."""

    def __init__(self, workdir: Workdir, config: Config) -> None:
        self.workdir = workdir
        self.config = config

    def start(self, first_step: int, lines: Sequence[Record]) -> None:
        """Begins before the first step, and again after a rollback: of the record, only these
        `lines` stay.

        Points from `first_step` on may be outdated.
        """

    def draw(self, line: Record) -> None:
        """Draws a line of the record."""

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        """Shows the samples of a validation."""

    def close(self, status: str = "FINISHED") -> None:
        """Ends the tracking of this start of the run, which is FINISHED, KILLED before its last
        step, or FAILED.
        """


class TensorBoard(Tracker):
    """Event files in the workdir, with curves, and texts and cross-attention of the samples."""

    _events: EventsWriter | None = None

    def start(self, first_step: int, lines: Sequence[Record]) -> None:
        """Hides the points from `first_step` on, and draws again the lines of these steps."""
        self.close()  # after a rollback, which starts another file
        # tensorboardX's `SummaryWriter` writes in a thread. When a full disk ends that thread, the
        # training loop hangs. EventsWriter names files by the second; two may be created in the
        # same one.
        self._events = EventsWriter(str(self.workdir.tensorboard / "events"), f".{time.time_ns()}")
        # hides earlier points from this step on
        self._add(first_step, session_log=SessionLog(status=SessionLog.START))
        for line in lines:
            if line["step"] >= first_step:
                self.draw(line)

    def draw(self, line: Record) -> None:
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in points(line).items()
        ]
        self._add(line["step"], summary=Summary(value=values))

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        """Writes the texts of the samples, and pictures of their cross-attention if they have one."""
        for number, sample in enumerate(samples, start=1):
            lines = {
                "source": sample.source,
                "reference": sample.reference,
                "translation": sample.translation,
            }
            # TensorBoard shows Markdown, where lines that begin with four spaces stay unchanged.
            text = "".join(f"    {name:12}{line}\n" for name, line in lines.items())
            self._add(step, summary=summary.text(f"sample {number}", text))
            if sample.attention is not None:
                grey = attention_image(sample.attention.cross)
                image = summary.make_image(np.stack([grey] * 3, axis=-1))
                value = Summary.Value(tag=f"cross-attention {number}", image=image)
                self._add(step, summary=Summary(value=[value]))

    def close(self, status: str = "FINISHED") -> None:
        if self._events is not None:
            self._events.close()

    def _add(self, step: int, **content: Any) -> None:
        self._events.write_event(Event(wall_time=time.time(), step=step, **content))
        self._events.flush()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases, which each start of the run continues.

    Environment variables are those of W&B.
    """

    def __init__(self, workdir: Workdir, config: Config) -> None:
        import wandb

        self.run = wandb.init(
            id=recorded_id(workdir, "wandb", lambda: secrets.token_hex(4)),
            resume="allow",
            reinit="create_new",  # other runs of this process go on
            name=os.environ.get("WANDB_NAME", _run_name(workdir.path)),
            config=flatten(config),
            notes=config.training.note,
            tags=config.training.tags,
            dir=workdir.path,
            settings=wandb.Settings(console="off", silent=True),
        )
        # Without an axis of ours, W&B drops values of a lower step than its last, as after a
        # restart or a rollback.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def start(self, first_step: int, lines: Sequence[Record]) -> None:
        """Draws again the lines of the last minute, which W&B may have lost if the last start was
        killed.
        """
        for line in lines:
            if line["seconds"] >= lines[-1]["seconds"] - UPLOAD_SECONDS:
                self.draw(line)

    def draw(self, line: Record) -> None:
        self.run.log({"step": line["step"], **points(line)})

    def close(self, status: str) -> None:
        self.run.finish(exit_code=int(status != "FINISHED"))


class MLflow(Tracker):
    """A run of MLflow, which each start continues: on $MLFLOW_TRACKING_URI, or in a database in the
    workdir.
    """

    def __init__(self, workdir: Workdir, config: Config) -> None:
        from mlflow import MlflowClient, entities
        from mlflow.exceptions import MlflowException

        super().__init__(workdir, config)
        # MLflow refuses new stores of plain files
        database = f"sqlite:///{workdir.path.resolve() / 'mlflow.db'}"
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or database)
        self.entities = entities
        self.identity = recorded_id(workdir, "mlflow", self._create_run)
        try:
            self.client.update_run(self.identity, "RUNNING")
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            # the other has been deleted
            self.identity = recorded_id(workdir, "mlflow", self._create_run, is_new=True)
        self.client.set_tag(self.identity, "mlflow.note.content", config.training.note)
        self.client.set_tag(self.identity, "tags", " ".join(config.training.tags))

    def _create_run(self) -> str:
        from mlflow.exceptions import MlflowException

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        with contextlib.suppress(MlflowException):  # it exists
            self.client.create_experiment(name)
        experiment = self.client.get_experiment_by_name(name)
        run = self.client.create_run(
            experiment.experiment_id, run_name=_run_name(self.workdir.path)
        )
        params = [
            self.entities.Param(key, str(value)) for key, value in flatten(self.config).items()
        ]
        self.client.log_batch(run.info.run_id, params=params)
        return run.info.run_id

    def draw(self, line: Record) -> None:
        values = {re.sub(r"[^\w. :/-]", "_", name): value for name, value in points(line).items()}
        now = time.time()
        metrics = [
            self.entities.Metric(name, value, int(1e3 * now), line["step"])
            for name, value in values.items()
        ]
        self.client.log_batch(self.identity, metrics=metrics)

    def close(self, status: str) -> None:
        self.client.set_terminated(self.identity, status)


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
# not in requirements.txt, by the names of their modules
PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}


def check_trackers(config: Config) -> None:
    """Raises UserError if `training.trackers` names no tracker, or one whose package is not
    installed.
    """
    given = f"config.training.trackers={config.training.trackers}"
    for name in names_in(config.training.trackers):
        if name not in TRACKERS:
            raise UserError(
                f"{given}: must be empty, or names out of {', '.join(TRACKERS)}{nearest(name, TRACKERS)}"
            )
        if name in PACKAGES and importlib.util.find_spec(name) is None:
            raise UserError(
                f"{given}: {name} needs a package; pip install {PACKAGES[name]}, or leave out {name}"
            )


def recorded_id(workdir: Workdir, name: str, make: Callable[[], str], is_new: bool = False) -> str:
    """Returns the id of the run in a tracker, by `make` at the first start, which `trackers.json`
    keeps for others.

    `is_new` replaces an id that the tracker no longer has.
    """
    ids = json.loads(workdir.trackers.read_bytes()) if workdir.trackers.exists() else {}
    if name not in ids or is_new:
        ids[name] = make()
        files.write_json(workdir.trackers, ids)
    return ids[name]


def _run_name(workdir: Path) -> str:
    """Returns the name of a run: that of its folder, after that of the sweep for SWEEP/trials/0004."""
    path = workdir.resolve()
    return f"{path.parents[1].name}-{path.name}" if path.parent.name == "trials" else path.name


def points(line: Record) -> dict[str, float]:
    """Returns the values of a line that trackers draw, each under "SPLIT/NAME"."""
    return {
        f"{line['split']}/{name}": float(value)
        for name, value in line.items()
        if name not in NOT_DRAWN
    }


def attention_image(weights: Float[np.ndarray, "N H Q K"]) -> UInt8[np.ndarray, "height width"]:
    """Returns a map of grey values for each head, in a row for each layer: white for a weight of 0,
    black for 1.
    """
    layers, heads = weights.shape[:2]
    grey = np.rint(255 * (1 - weights)).astype(np.uint8).repeat(CELL, axis=2).repeat(CELL, axis=3)
    margin = GAP // 2, GAP // 2
    framed = np.pad(grey, ((0, 0), (0, 0), margin, margin), constant_values=FRAME)
    return framed.transpose(0, 2, 1, 3).reshape(layers * framed.shape[2], heads * framed.shape[3])
