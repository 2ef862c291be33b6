"""The record of a run: `metrics.jsonl`, and its curves and samples in TensorBoard."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from transformer import files
from transformer.data.batches.epoch_plan import Bucket
from transformer.errors import MALFORMED
from transformer.hooks.hook import Hook
from transformer.run.tensorboard import TensorBoardWriter
from transformer.training.metrics import Record
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.training.validation import Sample
from transformer.workdir import Workdir

NOT_DRAWN = ("step", "split", "examples", "tokens", "seconds")
TIMINGS = ("seconds", "steps_per_second", "tokens_per_second", "waiting_fraction")


class Recorder(Hook):
    """The writer of the record. A resumed run first removes the lines after the checkpoint that it starts from.

    These may include the validation of the checkpoint's step, which is then repeated.
    """

    def __init__(self, workdir: Workdir):
        self.path, self.workdir = workdir.metrics, workdir
        self.tensorboard: TensorBoardWriter | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_start(self, state: TrainState, progress: Progress, buckets: Sequence[Bucket]) -> None:
        """Removes the lines after the checkpoint with this progress, here and in TensorBoard."""
        reached = {"train": progress.step, "valid": progress.validated_step}
        kept, removed = [], []
        for line in read_record(self.path):
            (kept if line["step"] <= reached[line["split"]] else removed).append(line)
        if self.path.exists():
            files.write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in kept))
        first_step = min([progress.step + 1, *(line["step"] for line in removed)])
        self.close()
        self.tensorboard = TensorBoardWriter(self.workdir.tensorboard, first_step)
        for line in kept:
            if line["step"] >= first_step:
                self._draw(line)

    def on_log(self, progress: Progress, values: Record) -> None:
        self.write("train", progress, values)

    def on_validation(self, progress: Progress, values: Record, samples: Sequence[Sample]) -> None:
        self.write("valid", progress, values)
        for number, sample in enumerate(samples, start=1):
            self.tensorboard.add_sample(progress.step, number, sample)

    def write(self, split: str, progress: Progress, values: Record) -> None:
        """Writes a line of the split "train" or "valid"."""
        self.workdir.check_in_place()
        line = {"step": progress.step, "split": split, **values}
        line |= {"examples": progress.examples, "tokens": progress.tokens, "seconds": progress.seconds}
        line |= files.six_digits({name: line[name] for name in TIMINGS if name in line})
        files.append_line(self.path, json.dumps(line))
        self._draw(line)

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()

    def _draw(self, line: Record) -> None:
        points = {f"{line['split']}/{name}": value for name, value in line.items() if name not in NOT_DRAWN}
        self.tensorboard.add(line["step"], points)


def read_record(path: Path) -> list[Record]:
    """Returns the lines of a `metrics.jsonl`, without damaged ones; none if there is no such file."""
    text, record = path.read_text(encoding="utf-8", errors="replace") if path.exists() else "", []
    for line in text.split("\n"):
        with contextlib.suppress(*MALFORMED):
            values = json.loads(line)
            if type(values["step"]) is int and values["split"] in ("train", "valid"):
                record.append(values)
    return record


def read_untimed(path: Path) -> list[Record]:
    """Returns the lines of a `metrics.jsonl` without their timings: what every repetition of the run reproduces."""
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in read_record(path)]
