"""Sweeps of trials that take a second and train nothing."""

import contextlib
import dataclasses
import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from optuna.storages._rdb.models import TrialHeartbeatModel
from sqlalchemy.orm import Session

from scripts.sweeping import study as study_module
from scripts.sweeping.description import Sweep, Values, listed, product
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.study import GRACE_PERIOD, SweepStudy
from scripts.sweeping.tasks import TrainingTask


@dataclasses.dataclass(frozen=True)
class Fake(TrainingTask):
    """Training with another command. `seconds` is the duration of a step."""

    seconds: float = 0.05
    steps: int = 4

    def command(self, trial: int, values: Values) -> list[str]:
        flags = [
            str(self.folder.workdir(trial)),
            str(self.steps),
            str(self.seconds),
            str(values["slope"]),
        ]
        return ["tests.scripts.sweeping.fake_trial", *flags]


def fake(path: Path, **settings) -> Fake:
    return Fake(config=None, folder=SweepFolder(path), **settings)


def slopes(values: list, pruner=None) -> Sweep:
    return listed(product({"slope": values}), objective="nll", pruner=pruner)


def make_study(
    path: Path, sweep: Sweep, url: str | None = None, name: str = "study", grace=GRACE_PERIOD
) -> SweepStudy:
    """Opens the study, as each process of a sweep does."""
    folder = SweepFolder(path)
    with folder.lock():
        with mock.patch.object(study_module, "GRACE_PERIOD", grace):
            study = SweepStudy(url or folder.storage, name, sweep, folder.lock)
        study.create()
    return study


def states(study: SweepStudy) -> list[str]:
    return [trial.state.name.lower() for trial in study.trials()]


def pass_time(study: SweepStudy, seconds: float) -> None:
    """Makes the last heartbeats of all running trials older, instead of waiting."""
    with Session(study.storage.engine) as session:
        for row in session.query(TrialHeartbeatModel):
            row.heartbeat -= datetime.timedelta(seconds=seconds)
        session.commit()


def starts(path: Path, trial: int) -> int:
    """Returns how often the trial's process was started."""
    return len((SweepFolder(path).workdir(trial) / "starts").read_text().splitlines())


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    return False


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)
