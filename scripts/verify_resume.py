"""Kills a training run repeatedly, and verifies that its results are those of an uninterrupted run.

    python -m scripts.verify_resume --config=configs/quickstart.py --workdir=DIR --kills=20

Trains the config once without interruption, and again with SIGKILL at random moments. The kills aim
at validation, the writing of checkpoints, preparation and training in turn. Each comes 1 ms to 10 s
after the start of such a phase, with log-uniform delays, or at the end of the phase if that is
earlier. The script compares digests of the last checkpoint's parameters, optimizer state and
progress, and of the record without timings. The exit code is 2 if anything differs.
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
MIN_DELAY = 0.001  # seconds from the start of a phase to a kill
MAX_DELAY = 10.0
STARTED = "Batches: "  # in the log once the run is prepared and restored


def main(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.workdir)
    uninterrupted = Training(folder / "uninterrupted", arguments.config, arguments.overrides)
    settings = uninterrupted.config.training
    if settings.eval_every % settings.log_every:
        raise UserError(
            f"config.training.eval_every={settings.eval_every}: must be a multiple of "
            f"config.training.log_every={settings.log_every}, whose lines show that a validation has begun"
        )
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--workdir={folder}: must be a new or empty folder")
    uninterrupted.finish()
    expected = uninterrupted.digests()
    print_digests("without a kill", expected)
    kills = Counter()
    results = []
    while kills.total() < arguments.kills:
        killed = Training(folder / f"killed-{len(results)}", arguments.config, arguments.overrides)
        kill_repeatedly(killed, arguments.kills, kills)
        results.append(killed.digests())
        print_digests(f"after {kills.total()} kills", results[-1])
    print(
        "killed while", ", ".join(f"{name}: {count}" for name, count in kills.items()), flush=True
    )
    if any(digests != expected for digests in results):
        raise UserError(
            "the killed run differs from the uninterrupted one; compare the digests above"
        )
    print(f"{arguments.kills} kills left no trace", flush=True)


class Training:
    """One run of a config, in its own folder.

    It has its own cache, so that its preparation can be killed too.
    """

    def __init__(self, folder: Path, file: str, overrides: loading.Overrides) -> None:
        self.folder = folder
        self.config = loading.load_file(file, overrides)
        self.flags = [f"--config={file}", *(f"--config.{key}={value}" for key, value in overrides)]
        self.workdir = Workdir(folder / "run")
        self.output = folder / "output.txt"  # of the last start
        self.began = 0.0  # time of the last start

    def start(self) -> subprocess.Popen:
        folders = (
            f"--workdir={self.workdir.path}",
            f"--config.data.cache_dir={self.folder / 'cache'}",
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.began = time.time()
        with self.output.open("w") as output:
            argv = [sys.executable, "-m", "transformer.train", *self.flags, *folders]
            return subprocess.Popen(argv, stdout=output, stderr=output)

    def finish(self) -> None:
        """Trains to the end. Raises UserError if training fails."""
        process = self.start()
        try:
            process.wait()
        finally:
            process.kill()
        self._check_complete(process)

    def kill(self, is_in_phase: Callable[["Training"], bool], delay: float) -> bool:
        """Kills the run `delay` seconds after a phase begins, or at its end.

        Returns False if it completed first.
        """
        process = self.start()
        try:
            while process.poll() is None and not is_in_phase(self):
                time.sleep(POLL_SECONDS)
            until = time.perf_counter() + delay
            while process.poll() is None and is_in_phase(self) and time.perf_counter() < until:
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
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

        checkpoint = self.workdir.checkpoints / str(steps_in(self.workdir.checkpoints)[-1])
        items = [
            path.name for path in sorted(checkpoint.iterdir()) if (path / "_METADATA").exists()
        ]
        parts = {}
        for item in items:
            leaves = named_leaves(read_arrays(checkpoint, item)).items()
            arrays = [(name, np.asarray(leaf)) for name, leaf in leaves]
            parts[item] = [
                f"{name} {array.dtype} {array.shape}".encode() + array.tobytes()
                for name, array in arrays
            ]
        progress = dataclasses.asdict(read_progress(checkpoint)) | {"seconds": None}
        for name, value in (("progress", progress), ("record", read_untimed(self.workdir.metrics))):
            parts[name] = [json.dumps(value).encode()]
        return {
            name: hashlib.sha256(b"".join(chunks)).hexdigest()[:16]
            for name, chunks in parts.items()
        }


def read_untimed(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a `metrics.jsonl` without their timings: what every repetition of the
    run reproduces.
    """
    from transformer.run.record import TIMINGS, read_record

    return [
        {key: value for key, value in line.items() if key not in TIMINGS}
        for line in read_record(path)
    ]


def is_preparing(training: Training) -> bool:
    return STARTED not in training.output.read_text()


def is_writing(training: Training) -> bool:
    """Returns whether this start is writing a checkpoint; incomplete checkpoints of earlier starts
    are older.
    """
    for path in training.workdir.checkpoints.glob("*-tmp*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime >= training.began:
                return True
    return False


def is_validating(training: Training) -> bool:
    """Returns whether a validation is running: the last line of the record is then the training
    line of its step.
    """
    from transformer.training.progress import due

    lines = read_untimed(training.workdir.metrics)
    settings = training.config.training
    if is_preparing(training) or not lines or lines[-1]["split"] != "train":
        return False
    return due(lines[-1]["step"], settings.eval_every, settings.steps)


def is_training(training: Training) -> bool:
    return " tok/s " in training.output.read_text()


PHASES = {
    "validating": is_validating,
    "writing": is_writing,
    "preparing": is_preparing,
    "training": is_training,
}


def kill_repeatedly(training: Training, limit: int, kills: Counter[str]) -> None:
    """Trains to the end, with kills until there are `limit`.

    Each aims at the phase with the fewest kills so far.
    """
    while kills.total() < limit:
        phase = min(PHASES, key=kills.__getitem__)
        delay = math.exp(random.uniform(math.log(MIN_DELAY), math.log(MAX_DELAY)))
        if not training.kill(PHASES[phase], delay):
            return
        killed = next((name for name in (phase, *PHASES) if PHASES[name](training)), "compiling")
        kills[killed] += 1
        print(f"killed while {killed}", flush=True)
    training.finish()


def print_digests(name: str, digests: dict[str, str]) -> None:
    print(
        "  ".join([f"{name:15}", *(f"{item} {digest}" for item, digest in digests.items())]),
        flush=True,
    )


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
