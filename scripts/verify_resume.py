"""Kills a training run repeatedly, and verifies that its results are those of an uninterrupted run.

    python -m scripts.verify_resume --config=configs/quickstart.py --kills=20

Trains the config once without interruption, and again with SIGKILL at random moments. The kills aim in turn at
validation, the writing of checkpoints, preparation and training: each follows the start of such a phase by a random
part of the phase's longest duration in the first run. The script compares digests of the last checkpoint's parameters
and optimizer state, of its progress, and of the record without timings. The exit code is 2 if anything differs.
Without --workdir the runs are in a temporary folder, which is deleted if nothing differs.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jax
import ml_collections
import numpy as np

from transformer import cli
from transformer.checkpoints.restore import read_arrays, read_progress, steps_in
from transformer.config import loading as configuration
from transformer.errors import UserError
from transformer.run.record import read_untimed
from transformer.training.progress import due
from transformer.workdir import Workdir

POLL_SECONDS = 0.002
STARTED = "Batches: "  # in the log once the run is prepared and restored


@dataclasses.dataclass(frozen=True)
class Training:
    """One run of the config. It has its own cache, so that its preparation can be killed too."""

    workdir: Workdir
    config: ml_collections.FrozenConfigDict
    flags: tuple[str, ...]

    @property
    def output(self) -> Path:
        """The output of the last start."""
        return self.workdir.path.parent / "output.txt"

    @property
    def began(self) -> Path:
        """A file whose time of change is that of the last start."""
        return self.workdir.path.parent / "began"

    def start(self) -> subprocess.Popen:
        argv = [sys.executable, "-m", "transformer.train", f"--workdir={self.workdir.path}", *self.flags]
        cache = f"--config.data.cache_dir={self.workdir.path.parent / 'cache'}"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.began.touch()
        with self.output.open("w") as output:
            return subprocess.Popen([*argv, cache], stdout=output, stderr=output)

    def finish(self) -> dict[str, float]:
        """Trains to the end and returns the longest duration of each phase. Raises UserError if training fails."""
        process, first_seen, last_seen = self.start(), {}, {}
        while process.poll() is None:
            for phase, under_way in PHASES.items():
                if (which := under_way(self)) is not None:
                    last_seen[phase, which] = time.perf_counter()
                    first_seen.setdefault((phase, which), last_seen[phase, which])
            time.sleep(POLL_SECONDS)
        self._check_complete(process)
        longest = dict.fromkeys(PHASES, 0.0)
        for (phase, which), first in first_seen.items():
            longest[phase] = max(longest[phase], last_seen[phase, which] - first)
        return longest

    def kill(self, phase: str, occurrence: int, delay: float) -> str | None:
        """Starts the run and kills it `delay` seconds after the given occurrence of a phase, or at the phase's end.

        Returns the phase at the time of the kill, or None if the run was complete before.
        """
        process, seen = self.start(), set()
        while process.poll() is None:
            seen.add(PHASES[phase](self))
            if len(seen - {None}) == occurrence:
                until = time.perf_counter() + delay
                while time.perf_counter() < until and PHASES[phase](self) is not None:
                    time.sleep(POLL_SECONDS)
                break
            time.sleep(POLL_SECONDS)
        process.kill()
        if process.wait() != -signal.SIGKILL:
            self._check_complete(process)
            return None
        return next((name for name in (phase, *PHASES) if PHASES[name](self)), "compiling")

    def _check_complete(self, process: subprocess.Popen) -> None:
        if process.returncode != 0 or not self.workdir.is_complete():
            lines = self.output.read_text().splitlines() or ["nothing was printed"]
            raise UserError(f"{self.workdir.path}: training exited with {process.returncode}: {lines[-1]}")

    def digests(self) -> dict[str, str]:
        """Returns digests of the last checkpoint and of the record, without timings."""
        checkpoint = self.workdir.checkpoints / str(steps_in(self.workdir.checkpoints)[-1])
        items = [path.name for path in sorted(checkpoint.iterdir()) if (path / "_METADATA").exists()]
        progress = dataclasses.asdict(read_progress(checkpoint)) | {"seconds": None}
        texts = {"progress": json.dumps(progress), "record": json.dumps(read_untimed(self.workdir.metrics))}
        return {item: _digest(_bytes(read_arrays(checkpoint, item))) for item in items} | {
            name: _digest([text.encode()]) for name, text in texts.items()
        }


def preparing(training: Training) -> str | None:
    """Returns a constant while a start prepares, else None."""
    return None if STARTED in training.output.read_text() else "all"


def writing(training: Training) -> str | None:
    """Returns the name of the checkpoint that is being written, or None."""
    if preparing(training):
        return None
    began = training.began.stat().st_mtime  # incomplete checkpoints of earlier starts are older
    for path in training.workdir.checkpoints.glob("*-tmp*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime >= began:
                return path.name
    return None


def validating(training: Training) -> int | None:
    """Returns the step of a running validation, or None. Then the last line of the record is a training line."""
    if preparing(training):
        return None
    lines = training.workdir.metrics.read_text().split("\n")[:-1] if training.workdir.metrics.exists() else []
    last = json.loads(lines[-1]) if lines else {"split": None}
    settings = training.config.training
    return last["step"] if last["split"] == "train" and due(last["step"], settings.eval_every, settings.steps) else None


def making_steps(training: Training) -> str | None:
    """Returns the last training line of the log, or None."""
    lines = [line for line in training.output.read_text().splitlines() if " tok/s " in line]
    return lines[-1] if lines else None


PHASES = {"validating": validating, "writing": writing, "preparing": preparing, "training": making_steps}


def train_with_kills(training: Training, kills: int, hit: Counter[str], aim: Callable[[str], tuple]) -> int:
    """Trains to the end with at most `kills` kills, each in the phase hit least so far. Returns their number."""
    for done in range(kills):
        phase = min(PHASES, key=hit.__getitem__)
        found = training.kill(phase, *aim(phase))
        if found is None:
            return done
        hit[found] += 1
        steps = steps_in(training.workdir.checkpoints)
        kept = f"the newest checkpoint is of step {steps[-1]}" if steps else "no checkpoint yet"
        print(f"killed while {found}: {kept}", flush=True)
    training.finish()
    return kills


def main(arguments: argparse.Namespace) -> None:
    if arguments.kills < 1:
        raise UserError(f"--kills={arguments.kills}: must be at least 1")
    overrides = [f"--config.{key}={value}" for key, value in arguments.overrides]
    flags = (f"--config={arguments.config}", *overrides)
    config = configuration.load_file(arguments.config, arguments.overrides)
    if config.training.eval_every % config.training.log_every:
        raise UserError(
            f"config.training.eval_every={config.training.eval_every}: must be a multiple of "
            f"config.training.log_every={config.training.log_every}, whose lines show that a validation has begun"
        )
    folder = Path(arguments.workdir or tempfile.mkdtemp(prefix="verify_resume-"))
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--workdir={folder}: must be a new or empty folder")
    print(f"the runs are in {folder}", flush=True)
    whole = Training(Workdir(folder / "whole" / "run"), config, flags)
    longest = whole.finish()
    expected = whole.digests()
    print(_line("without a kill", expected), flush=True)
    generator = random.Random(arguments.seed)

    def aim(phase: str) -> tuple[int, float]:
        if phase == "preparing":
            return 1, longest[phase] * generator.random() ** 2  # shorter, since the corpus may be cached
        return generator.randint(1, 3), longest[phase] * generator.random()

    left, number, same, hit = arguments.kills, 0, True, Counter()
    while left:
        killed = Training(Workdir(folder / f"killed-{number}" / "run"), config, flags)
        done = train_with_kills(killed, left, hit, aim)
        found = killed.digests()
        print(_line(f"after {done} kills", found), flush=True)
        same, left, number = same and found == expected, left - done, number + 1
    print("killed while", ", ".join(f"{name}: {count}" for name, count in hit.items()), flush=True)
    if not same:
        raise UserError("the killed run differs from the uninterrupted one; compare the digests above")
    print(f"{arguments.kills} kills left no trace", flush=True)
    if arguments.workdir is None:
        shutil.rmtree(folder)


def _bytes(tree) -> Iterator[bytes]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        yield f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode()
        yield array.tobytes()


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _line(name: str, digests: dict[str, str]) -> str:
    return "  ".join([f"{name:15}", *(f"{item} {digest}" for item, digest in digests.items())])


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.verify_resume", __doc__, overrides="config")
    parser.add_argument(
        "--config", required=True, metavar="FILE.py[:ARG]", help="the configuration; it should save checkpoints often"
    )
    parser.add_argument("--workdir", metavar="DIR", help="a new folder for the runs; default: a temporary one")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="number of kills")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the moments")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
