"""Kills a training run again and again, and shows that what comes out is what would have come out without.

    python -m scripts.verify_resume --config=configs/quickstart.py --kills=20 --workdir=runs/verify_resume

Trains the config once without interruption, then again with SIGKILL at random moments: while preparing, training,
validating, writing checkpoints. Compares digests of the last checkpoint's parameters and optimizer state, of how far
the run had got, and of every line of its record but what a clock measured. Exits with 2 if anything differs.
"""

import argparse
import dataclasses
import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax
import numpy as np

from transformer import command
from transformer.errors import UserError
from transformer.training.metrics import read_untimed
from transformer.training.saved import read_arrays, read_progress, steps_in
from transformer.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Training:
    """One run of the config, with a cache of its own, so that its preparation is killed too."""

    workdir: Workdir
    flags: tuple[str, ...]

    def start(self) -> subprocess.Popen:
        argv = [sys.executable, "-m", "transformer.train", f"--workdir={self.workdir.path}", *self.flags]
        cache = f"--config.data.cache_dir={self.workdir.path.parent / 'cache'}"
        return subprocess.Popen([*argv, cache], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self) -> None:
        """Trains to the end. Raises UserError, with its last line, if training fails."""
        process = self.start()
        _, errors = process.communicate()
        if process.returncode != 0 or not self.workdir.is_complete():
            lines = errors.splitlines() or ["nothing was printed"]
            raise UserError(f"{self.workdir.path}: training exited with {process.returncode}: {lines[-1]}")

    def kill_after(self, seconds: float) -> bool:
        """Whether the run was still going on after so long, and has been killed."""
        process = self.start()
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return True
        return False

    def digests(self) -> dict[str, str]:
        """Of all that the run has come to, but for times."""
        checkpoint = self.workdir.checkpoints / str(steps_in(self.workdir.checkpoints)[-1])
        items = [path.name for path in sorted(checkpoint.iterdir()) if (path / "_METADATA").exists()]
        progress = dataclasses.asdict(read_progress(checkpoint)) | {"seconds": None}
        texts = {"progress": json.dumps(progress), "record": json.dumps(read_untimed(self.workdir.metrics))}
        return {item: _digest(_bytes(read_arrays(checkpoint, item))) for item in items} | {
            name: _digest([text.encode()]) for name, text in texts.items()
        }


def kill_again_and_again(training: Training, kills: int, longest: float, generator: random.Random) -> int:
    """Trains to the end with at most so many kills, each within `longest` seconds; returns how many there were."""
    for done in range(kills):
        if not training.kill_after(generator.uniform(0, longest)):
            return done
        print(f"killed: {_where(training.workdir)}", flush=True)
    training.finish()
    return kills


def main(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.workdir)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--workdir={folder}: must be a new folder, or an empty one")
    if arguments.kills < 1:
        raise UserError(f"--kills={arguments.kills}: must be at least 1")
    overrides = [f"--config.{key}={value}" for key, value in arguments.overrides]
    flags = (f"--config={arguments.config}", *overrides)
    whole = Training(Workdir(folder / "whole" / "run"), flags)
    began = time.perf_counter()
    whole.finish()
    seconds = time.perf_counter() - began
    expected = whole.digests()
    print(_line("without a kill", expected), flush=True)
    generator = random.Random(arguments.seed)
    left, number, same = arguments.kills, 0, True
    while left:
        killed = Training(Workdir(folder / f"killed-{number}" / "run"), flags)
        # Every start takes a while before its first step: on average each is to get on by its share of the steps.
        done = kill_again_and_again(killed, left, _longest(whole, seconds, arguments.kills), generator)
        found = killed.digests()
        print(_line(f"after {done} kills", found), flush=True)
        same, left, number = same and found == expected, left - done, number + 1
    if not same:
        raise UserError("the killed run is not the run without a kill: see the digests that differ")
    print(f"{arguments.kills} kills left no trace", flush=True)


def _longest(whole: Training, seconds: float, kills: int) -> float:
    lines = whole.workdir.metrics.read_text(encoding="utf-8").splitlines()
    training = json.loads(lines[-1])["seconds"]
    return seconds - training + 2 * training / kills


def _where(workdir: Workdir) -> str:
    """What the run was doing, as far as its workdir tells."""
    if any(workdir.checkpoints.glob("*-tmp*")):
        return "while writing a checkpoint"
    steps = steps_in(workdir.checkpoints)
    return f"after the checkpoint of step {steps[-1]}" if steps else "before the first checkpoint"


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


def make_parser() -> command.Parser:
    parser = command.Parser("scripts.verify_resume", __doc__, overrides="config")
    parser.add_argument("--config", required=True, metavar="FILE.py[:ARG]", help="what to train; checkpoint it often")
    parser.add_argument("--workdir", required=True, metavar="DIR", help="a new folder, for the runs")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="how often to kill the second run")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments")
    return parser


if __name__ == "__main__":
    command.run(make_parser(), main)
