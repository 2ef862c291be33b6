"""Trackers, which show the record of a run in other programs (`training.trackers`)."""

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
from transformer.support.extras import EXTRAS, install_command
from transformer.training.progress import Record
from transformer.training.samples import ValidationSample
from transformer.workdir import Workdir

# Values of a line that identify it or only count.
NOT_DRAWN = ("step", "split", "examples", "tokens", "seconds", "validation_seconds")
UPLOAD_SECONDS = 60  # W&B uploads every 15 seconds, so it has all lines of this age
# Pictures of attention.
CELL = 6  # pixels of a weight
GAP = 6  # pixels between two maps
FRAME = 160  # grey value of the gap


class Tracker:
    """The interface of trackers. Methods, and the constructor, may raise any error."""

    def __init__(self, workdir: Workdir, config: Config) -> None:
        self.workdir = workdir
        self.config = config

    def start(self, first_step: int, lines: Sequence[Record]) -> None:
        """Begins before the first step, and again after a rollback.

        The record consists of `lines`. Points from `first_step` on may be outdated.
        """

    def draw(self, line: Record) -> None:
        """Draws a line of the record."""

    def show(self, step: int, samples: Sequence[ValidationSample]) -> None:
        """Shows the samples of a validation."""

    def close(self, status: str) -> None:
        """Ends the tracking of this start of the run.

        `status` is FINISHED, FAILED, or KILLED if it ends before the last step.
        """


class TensorBoard(Tracker):
    """Event files in the workdir: curves, and the texts and cross-attention of the samples."""

    _events: Any = None  # the EventsWriter since `start`

    def start(self, first_step: int, lines: Sequence[Record]) -> None:
        """Hides the points from `first_step` on, and draws again the lines of these steps."""
        # After a rollback another file is open.
        self.close()
        # tensorboardX's `SummaryWriter` writes in a thread. When a full disk ends that thread, the
        # training loop hangs. The suffix is in nanoseconds, since EventsWriter's own names repeat
        # within a second.
        self._events = EventsWriter(str(self.workdir.tensorboard / "events"), f".{time.time_ns()}")
        # This event makes TensorBoard hide earlier points from `first_step` on.
        self._add(first_step, session_log=SessionLog(status=SessionLog.START))
        for line in lines:
            if line["step"] >= first_step:
                self.draw(line)

    def draw(self, line: Record) -> None:
        summaries = [
            Summary.Value(tag=name, simple_value=value) for name, value in points(line).items()
        ]
        self._add(line["step"], summary=Summary(value=summaries))

    def show(self, step: int, samples: Sequence[ValidationSample]) -> None:
        """Writes the texts of the samples, and pictures of their cross-attention, if any."""
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
                rgb = np.stack([grey] * 3, axis=-1)  # (height, width, 3)
                value = Summary.Value(
                    tag=f"cross-attention {number}", image=summary.make_image(rgb)
                )
                self._add(step, summary=Summary(value=[value]))

    def close(self, status: str = "FINISHED") -> None:
        if self._events is not None:
            self._events.close()

    def _add(self, step: int, **content: Any) -> None:
        self._events.write_event(Event(wall_time=time.time(), step=step, **content))
        self._events.flush()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases, which each start of the run continues.

    W&B reads its own environment variables.
    """

    def __init__(self, workdir: Workdir, config: Config) -> None:
        import wandb

        self.run = wandb.init(
            id=recorded_id(workdir, "wandb", lambda: secrets.token_hex(4)),
            resume="allow",
            reinit="create_new",  # leaves other runs of this process open
            name=os.environ.get("WANDB_NAME", _run_name(workdir.path)),
            config=flatten(config),
            notes=config.training.note,
            tags=config.training.tags,
            dir=workdir.path,
            settings=wandb.Settings(console="off", silent=True),
        )
        # Without an axis of our own, W&B drops the values of steps that it has already seen, such
        # as those after a rollback.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def start(self, first_step: int, lines: Sequence[Record]) -> None:
        """Draws the lines of the last minute again.

        W&B may have lost them if the last start was killed.
        """
        for line in lines:
            if line["seconds"] >= lines[-1]["seconds"] - UPLOAD_SECONDS:
                self.draw(line)

    def draw(self, line: Record) -> None:
        self.run.log({"step": line["step"], **points(line)})

    def close(self, status: str) -> None:
        self.run.finish(exit_code=int(status != "FINISHED"))


class MLflow(Tracker):
    """A run of MLflow, which each start of the run continues.

    It is on $MLFLOW_TRACKING_URI, or else in a database in the workdir.
    """

    def __init__(self, workdir: Workdir, config: Config) -> None:
        from mlflow import MlflowClient, entities
        from mlflow.exceptions import MlflowException

        super().__init__(workdir, config)
        # A database, because MLflow refuses new stores of plain files.
        database = f"sqlite:///{workdir.path.resolve() / 'mlflow.db'}"
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or database)
        self.entities = entities
        self.identity = recorded_id(workdir, "mlflow", self._create_run)
        try:
            self.client.update_run(self.identity, "RUNNING")
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            # The run with the recorded id has been deleted.
            self.identity = recorded_id(workdir, "mlflow", self._create_run, is_new=True)
        self.client.set_tag(self.identity, "mlflow.note.content", config.training.note)
        self.client.set_tag(self.identity, "tags", " ".join(config.training.tags))

    def _create_run(self) -> str:
        from mlflow.exceptions import MlflowException

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        with contextlib.suppress(MlflowException):  # the experiment exists
            self.client.create_experiment(name)
        experiment = self.client.get_experiment_by_name(name)
        assert experiment is not None
        name = _run_name(self.workdir.path)
        run_id = self.client.create_run(experiment.experiment_id, run_name=name).info.run_id
        params = [
            self.entities.Param(key, str(value)) for key, value in flatten(self.config).items()
        ]
        self.client.log_batch(run_id, params=params)
        return run_id

    def draw(self, line: Record) -> None:
        # MLflow refuses other characters in names.
        values = {re.sub(r"[^\w. :/-]", "_", name): value for name, value in points(line).items()}
        milliseconds = int(1e3 * time.time())
        metrics = [
            self.entities.Metric(name, value, milliseconds, line["step"])
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


def check_trackers(config: Config) -> None:
    """Raises UserError for an unknown name in `training.trackers`, or a missing package."""
    setting = f"config.training.trackers={config.training.trackers}"
    for name in names_in(config.training.trackers):
        if name not in TRACKERS:
            raise UserError(
                f"{setting}: must be empty, or names out of {', '.join(TRACKERS)}"
                f"{nearest(name, TRACKERS)}"
            )
        if name in EXTRAS["trackers"] and importlib.util.find_spec(name) is None:
            raise UserError(
                f"{setting}: {name} needs a package; "
                f"{install_command('trackers')}, or leave out {name}"
            )


def recorded_id(workdir: Workdir, name: str, make: Callable[[], str], is_new: bool = False) -> str:
    """Returns the id of the run in a tracker, from `trackers.json`.

    The first start of the run makes the id. `is_new` replaces an id that the tracker no longer has.
    """
    # A restart must find the same run in the tracker.
    ids = json.loads(workdir.trackers.read_bytes()) if workdir.trackers.exists() else {}
    if name not in ids or is_new:
        ids[name] = make()
        files.write_json(workdir.trackers, ids)
    return ids[name]


def _run_name(workdir: Path) -> str:
    """Returns the name of the run's folder, and "SWEEP-0004" for SWEEP/trials/0004."""
    path = workdir.resolve()
    return f"{path.parents[1].name}-{path.name}" if path.parent.name == "trials" else path.name


def points(line: Record) -> dict[str, float]:
    """Returns the values of a line that trackers draw, by "SPLIT/NAME"."""
    return {
        f"{line['split']}/{name}": float(value)
        for name, value in line.items()
        if name not in NOT_DRAWN
    }


def attention_image(weights: Float[np.ndarray, "N H Q K"]) -> UInt8[np.ndarray, "height width"]:
    """Returns a row of maps for each layer, with a map for each head.

    A weight of 0 is white, and a weight of 1 is black.
    """
    layers, heads = weights.shape[:2]
    grey = np.rint(255 * (1 - weights)).astype(np.uint8)
    grey = grey.repeat(CELL, axis=2).repeat(CELL, axis=3)
    margin = (GAP // 2, GAP // 2)
    grey = np.pad(grey, ((0, 0), (0, 0), margin, margin), constant_values=FRAME)
    _, _, height, width = grey.shape
    grey = grey.transpose(0, 2, 1, 3)  # (layers, height, heads, width)
    return grey.reshape(layers * height, heads * width)
