"""`scripts.sweep` with trials of two seconds that train nothing: python -m
tests.scripts.sweeping.fake_sweep FLAGS

The nll of a trial falls by its learning rate at each of four steps.
"""

import argparse
import dataclasses

from scripts import sweep
from scripts.sweeping import tasks, worker
from scripts.sweeping.description import Values
from scripts.sweeping.folder import SweepFolder
from tests.scripts.sweeping.fakes import Fake
from transformer.config import cli, loading


@dataclasses.dataclass(frozen=True)
class FakeWithRate(Fake):
    def command(self, trial: int, values: Values) -> list[str]:
        return super().command(trial, {"slope": values["optimizer.learning_rate"]})


def make_task(arguments: argparse.Namespace, folder: SweepFolder) -> FakeWithRate:
    return FakeWithRate(
        loading.load_file(arguments.config, arguments.overrides), folder, seconds=0.5
    )


if __name__ == "__main__":
    tasks.make_task = make_task
    worker.HEARTBEAT, worker.POLL = 0.5, 0.1
    cli.run(sweep.make_parser(), sweep.main)
