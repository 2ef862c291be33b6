"""Kills a training run repeatedly, and compares its results with an uninterrupted run.

    python -m scripts.verify_resume --config=configs/quickstart.py --workdir=DIR --kills=20

Trains the config once without interruption, and again with SIGKILL at random moments. The kills aim
at validation, the writing of checkpoints, preparation and training in turn. A kill comes 1 ms to
10 s after the start of its phase, with log-uniform delays, or at the end of the phase if that is
earlier. The script compares digests of the last checkpoint's parameters, optimizer state and
progress, and of the record without timings. The exit code is 2 if any digest differs.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer.config import cli, loading
from transformer.support.errors import UserError
from transformer.workdir import Workdir

POLL_SECONDS = 0.002
# Seconds from the start of a phase to a kill.
MIN_DELAY = 0.001
MAX_DELAY = 10.0
# A line of the log after preparation and restoring.
STARTED = "Batches: "


def main(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.workdir)
    file = arguments.config
    overrides = arguments.overrides
    uninterrupted = KillableRun(folder / "uninterrupted", file, overrides)
    settings = uninterrupted.config.training
    if settings.eval_every % settings.log_every:
        raise UserError(
            f"config.training.eval_every={settings.eval_every}: must be a multiple of "
            f"config.training.log_every={settings.log_every}, "
            "whose lines show that a validation has begun"
        )

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--workdir={folder}: must be a new or empty folder")

    uninterrupted.finish()
    expected = uninterrupted.digests()
    print_digests("without a kill", expected)

    # A run that completes before its last kill is followed by another one.
    kills = Counter()
    results = []
    while kills.total() < arguments.kills:
        killed = KillableRun(folder / f"killed-{len(results)}", file, overrides)
        kill_repeatedly(killed, arguments.kills, kills)
        results.append(killed.digests())
        print_digests(f"after {kills.total()} kills", results[-1])

    counts = ", ".join(f"{name}: {count}" for name, count in kills.items())
    print("killed while", counts, flush=True)
    if any(digests != expected for digests in results):
        raise UserError(
            "the killed run differs from the uninterrupted one; compare the digests above"
        )
    print(f"{arguments.kills} kills left no trace", flush=True)


class KillableRun:
    """A run of a config, in a separate folder.

    The folder has the cache of the data too, so that a kill can also hit the preparation.
    """

    def __init__(self, folder: Path, file: str, overrides: loading.Overrides) -> None:
        self.folder = folder
        self.config = loading.load_file(file, overrides)
        self.flags = [f"--config={file}", *(f"--config.{key}={value}" for key, value in overrides)]
        self.workdir = Workdir(folder / "run")
        self.output = folder / "output.txt"  # output of the last start
        self.began = 0.0  # time of the last start

    def start(self) -> subprocess.Popen:
        command = [
            sys.executable,
            "-m",
            "transformer.train",
            *self.flags,
            f"--workdir={self.workdir.path}",
            f"--config.data.cache_dir={self.folder / 'cache'}",
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        # Incomplete checkpoints that are older belong to earlier starts.
        self.began = time.time()
        with self.output.open("w") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    def finish(self) -> None:
        """Trains to the end. Raises UserError if training fails."""
        process = self.start()
        try:
            process.wait()
        finally:
            process.kill()
        self._check_complete(process)

    def kill(self, is_in_phase: Callable[["KillableRun"], bool], delay: float) -> bool:
        """Starts the run and kills it `delay` seconds after a phase begins, or at its end.

        Returns False if the run completes before the kill. Raises UserError if training fails.
        """
        process = self.start()
        try:
            while process.poll() is None and not is_in_phase(self):
                time.sleep(POLL_SECONDS)
            # The phase may end before the delay.
            until = time.perf_counter() + delay
            while process.poll() is None and is_in_phase(self) and time.perf_counter() < until:
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
        # The run may complete just before the kill.
        if process.wait() == -signal.SIGKILL:
            return True
        self._check_complete(process)
        return False

    def _check_complete(self, process: subprocess.Popen) -> None:
        if process.returncode != 0 or not self.workdir.is_complete():
            lines = self.output.read_text().splitlines() or ["nothing was printed"]
            raise UserError(
                f"{self.workdir.path}: training exited with {process.returncode}: {lines[-1]}"
            )

    def digests(self) -> dict[str, str]:
        """Returns digests of the last checkpoint and of the record, without timings."""
        import numpy as np

        from transformer.checkpoints.restore import (
            named_leaves,
            read_arrays,
            read_progress,
            steps_in,
        )

        newest = steps_in(self.workdir.checkpoints)[-1]
        checkpoint = self.workdir.checkpoints / str(newest)
        digests = {}
        for path in sorted(checkpoint.iterdir()):
            if not (path / "_METADATA").exists():  # not an item with arrays
                continue
            digests[path.name] = hashlib.sha256()
            for name, leaf in named_leaves(read_arrays(checkpoint, path.name)).items():
                array = np.asarray(leaf)
                digests[path.name].update(f"{name} {array.dtype} {array.shape}".encode())
                digests[path.name].update(array.tobytes())
        progress = without_timings(dataclasses.asdict(read_progress(checkpoint)))
        digests["progress"] = hashlib.sha256(json.dumps(progress).encode())
        record = read_untimed(self.workdir.metrics)
        digests["record"] = hashlib.sha256(json.dumps(record).encode())
        return {name: digest.hexdigest()[:16] for name, digest in digests.items()}


def read_untimed(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a `metrics.jsonl` without timings. All repetitions of a run agree."""
    from transformer.run.record import read_record

    return list(map(without_timings, read_record(path)))


def without_timings(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values without measured times, which differ between repetitions of a run."""
    from transformer.run.record import TIMINGS

    return {key: value for key, value in values.items() if key not in TIMINGS}


def is_preparing(run: KillableRun) -> bool:
    return STARTED not in run.output.read_text()


def is_writing(run: KillableRun) -> bool:
    """True if this start is writing a checkpoint.

    The incomplete checkpoints of earlier starts are older.
    """
    for path in run.workdir.checkpoints.glob("*-tmp*"):
        # The run renames the folder when the checkpoint is complete.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime >= run.began:
                return True
    return False


def is_validating(run: KillableRun) -> bool:
    """True if a validation is running.

    The last line of the record is then the training line of the same step.
    """
    from transformer.training.progress import is_due

    lines = read_untimed(run.workdir.metrics)

    # Validations are due at the same steps as in the training loop.
    settings = run.config.training
    if is_preparing(run) or not lines or lines[-1]["split"] != "train":
        return False
    return is_due(lines[-1]["step"], settings.eval_every, settings.steps)


def is_training(run: KillableRun) -> bool:
    return " tok/s " in run.output.read_text()


PHASES = {
    "validating": is_validating,
    "writing": is_writing,
    "preparing": is_preparing,
    "training": is_training,
}


def kill_repeatedly(run: KillableRun, limit: int, kills: Counter[str]) -> None:
    """Trains to the end, with kills until `kills` has `limit` of them.

    Each kill aims at the phase with the fewest kills so far.
    """
    while kills.total() < limit:
        phase = min(PHASES, key=kills.__getitem__)
        # Log-uniform: short and long delays are equally likely.
        delay = math.exp(random.uniform(math.log(MIN_DELAY), math.log(MAX_DELAY)))
        if not run.kill(PHASES[phase], delay):
            return
        # The kill may have hit another phase.
        actual = next((name for name in (phase, *PHASES) if PHASES[name](run)), "compiling")
        kills[actual] += 1
        print(f"killed while {actual}", flush=True)
    run.finish()


def print_digests(name: str, digests: dict[str, str]) -> None:
    cells = [f"{name:15}", *(f"{item} {digest}" for item, digest in digests.items())]
    print("  ".join(cells), flush=True)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.verify_resume", __doc__, overrides="config")
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE.py[:ARG]",
        help="the configuration; it should save checkpoints often",
    )
    parser.add_argument("--workdir", required=True, help="a new folder for the runs")
    parser.add_number("--kills", 20, "number of kills")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
