"""Sweeps of trials that take a second and train nothing."""

import dataclasses
from pathlib import Path

from scripts.sweeping.description import Values
from scripts.sweeping.folder import Folder
from scripts.sweeping.tasks import Training


@dataclasses.dataclass(frozen=True)
class Fake(Training):
    """As training, but for what is run. `seconds` is the length of a step."""

    seconds: float = 0.05
    steps_wanted: int = 4

    def command(self, trial: int, values: Values) -> list[str]:
        flags = [str(self.folder.workdir(trial)), str(self.steps_wanted), str(self.seconds), str(values["slope"])]
        return ["tests.scripts.sweeping.fake_trial", *flags]

    def steps(self, trial: int, values: Values) -> tuple[int, int]:
        return len(self.measured(trial, "nll")), self.steps_wanted


def fake(path: Path, **settings) -> Fake:
    return Fake(config=None, folder=Folder(path), **settings)


def starts(path: Path, trial: int) -> int:
    """How often the trial's process has been started."""
    return len((Folder(path).workdir(trial) / "starts").read_text().splitlines())
