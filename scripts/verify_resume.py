"""Kills a training run again and again, and shows that what comes out is what would have come out without.

    python -m scripts.verify_resume --config=configs/quickstart.py --kills=20

Trains the config once without interruption, then again with SIGKILL at random moments, aimed in turn at the writing of
checkpoints, validation, preparation and training: from the beginning of one of these a kill waits for a random part of
the longest that it took in the first run. Compares digests of the last checkpoint's parameters and optimizer state, of
how far the run had got, and of every line of its record but what a clock measured. Exits with 2 if anything differs.
Without --workdir the runs are in a temporary folder, which is deleted if all is well.
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
STARTED = "Batches: "  # in the log, once all is prepared and the checkpoint is restored


@dataclasses.dataclass(frozen=True)
class Training:
    """One run of the config, with a cache of its own, so that its preparation is killed too."""

    workdir: Workdir
    config: ml_collections.FrozenConfigDict
    flags: tuple[str, ...]

    @property
    def output(self) -> Path:
        """What the last start has said."""
        return self.workdir.path.parent / "output.txt"

    @property
    def began(self) -> Path:
        """As old as the last start."""
        return self.workdir.path.parent / "began"

    def start(self) -> subprocess.Popen:
        argv = [sys.executable, "-m", "transformer.train", f"--workdir={self.workdir.path}", *self.flags]
        cache = f"--config.data.cache_dir={self.workdir.path.parent / 'cache'}"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.began.touch()
        with self.output.open("w") as output:
            return subprocess.Popen([*argv, cache], stdout=output, stderr=output)

    def finish(self) -> dict[str, float]:
        """Trains to the end; returns the most seconds that each phase has taken. Raises UserError if training fails."""
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
        """Starts it, and kills it so many seconds after a phase has begun for that many times, or at its end.

        Returns the phase that it was in by then, or None if it had come to its end.
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
        """Of all that the run has come to, but for times."""
        checkpoint = self.workdir.checkpoints / str(steps_in(self.workdir.checkpoints)[-1])
        items = [path.name for path in sorted(checkpoint.iterdir()) if (path / "_METADATA").exists()]
        progress = dataclasses.asdict(read_progress(checkpoint)) | {"seconds": None}
        texts = {"progress": json.dumps(progress), "record": json.dumps(read_untimed(self.workdir.metrics))}
        return {item: _digest(_bytes(read_arrays(checkpoint, item))) for item in items} | {
            name: _digest([text.encode()]) for name, text in texts.items()
        }


def preparing(training: Training) -> str | None:
    """Something while a start of the run is not yet ready to train. The other signs are None until then."""
    return None if STARTED in training.output.read_text() else "all"


def writing(training: Training) -> str | None:
    """The checkpoint that is being written."""
    if preparing(training):
        return None
    began = training.began.stat().st_mtime  # what an earlier start has left half written is older
    for path in training.workdir.checkpoints.glob("*-tmp*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime >= began:
                return path.name
    return None


def validating(training: Training) -> int | None:
    """The step whose validation is under way: the last line of the record is its training's."""
    if preparing(training):
        return None
    lines = training.workdir.metrics.read_text().split("\n")[:-1] if training.workdir.metrics.exists() else []
    last = json.loads(lines[-1]) if lines else {"split": None}
    settings = training.config.training
    return last["step"] if last["split"] == "train" and due(last["step"], settings.eval_every, settings.steps) else None


def making_steps(training: Training) -> str | None:
    """The newest line of the log about training."""
    lines = [line for line in training.output.read_text().splitlines() if " tok/s " in line]
    return lines[-1] if lines else None


PHASES = {"validating": validating, "writing": writing, "preparing": preparing, "training": making_steps}


def kill_again_and_again(training: Training, kills: int, hit: Counter[str], aim: Callable[[str], tuple]) -> int:
    """Trains to the end with at most so many kills, the next always in the phase hit least; returns how many it was."""
    for done in range(kills):
        phase = min(PHASES, key=hit.__getitem__)
        found = training.kill(phase, *aim(phase))
        if found is None:
            return done
        hit[found] += 1
        steps = steps_in(training.workdir.checkpoints)
        kept = f"the newest checkpoint that of step {steps[-1]}" if steps else "no checkpoint yet"
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
        raise UserError(f"--workdir={folder}: must be a new folder, or an empty one")
    print(f"the runs are in {folder}", flush=True)
    whole = Training(Workdir(folder / "whole" / "run"), config, flags)
    longest = whole.finish()
    expected = whole.digests()
    print(_line("without a kill", expected), flush=True)
    generator = random.Random(arguments.seed)

    def aim(phase: str) -> tuple[int, float]:
        if phase == "preparing":
            return 1, longest[phase] * generator.random() ** 2  # with a corpus that is there it takes less
        return generator.randint(1, 3), longest[phase] * generator.random()

    left, number, same, hit = arguments.kills, 0, True, Counter()
    while left:
        killed = Training(Workdir(folder / f"killed-{number}" / "run"), config, flags)
        done = kill_again_and_again(killed, left, hit, aim)
        found = killed.digests()
        print(_line(f"after {done} kills", found), flush=True)
        same, left, number = same and found == expected, left - done, number + 1
    print("killed while", ", ".join(f"{name}: {count}" for name, count in hit.items()), flush=True)
    if not same:
        raise UserError("the killed run is not the run without a kill: see the digests that differ")
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
    parser.add_argument("--config", required=True, metavar="FILE.py[:ARG]", help="what to train; checkpoint it often")
    parser.add_argument("--workdir", metavar="DIR", help="a new folder, for the runs; without it a temporary one")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="how often to kill the second run")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
