"""A training run that is killed and started again, the phases that a kill can aim at, and digests of its results."""

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
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from transformer.checkpoints.restore import read_arrays, read_progress, steps_in
from transformer.config_types import Config
from transformer.errors import UserError
from transformer.run.record import read_untimed
from transformer.training.progress import due
from transformer.workdir import Workdir

POLL_SECONDS = 0.002
MIN_DELAY, MAX_DELAY = 0.001, 10.0  # seconds from the start of a phase to a kill
STARTED = "Batches: "  # in the log once the run is prepared and restored


class Training:
    """One run of the config, in its own folder. It has its own cache, so that its preparation can be killed too."""

    def __init__(self, folder: Path, config: Config, flags: Sequence[str]) -> None:
        self.folder, self.config, self.flags = folder, config, flags
        self.workdir = Workdir(folder / "run")
        self.output = folder / "output.txt"  # of the last start
        self.began = 0.0  # time of the last start

    def start(self) -> subprocess.Popen:
        folders = (f"--workdir={self.workdir.path}", f"--config.data.cache_dir={self.folder / 'cache'}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.began = time.time()
        with self.output.open("w") as output:
            argv = [sys.executable, "-m", "transformer.train", *self.flags, *folders]
            return subprocess.Popen(argv, stdout=output, stderr=output)

    def finish(self) -> None:
        """Trains to the end. Raises UserError if training fails."""
        process = self.start()
        process.wait()
        self._check_complete(process)

    def kill(self, phase: str, delay: float) -> str | None:
        """Starts the run and kills it `delay` seconds after a phase begins, or at the phase's end if that is earlier.

        Returns the phase at the time of the kill, or None if the run was complete before.
        """
        process = self.start()
        while process.poll() is None and not PHASES[phase](self):
            time.sleep(POLL_SECONDS)
        until = time.perf_counter() + delay
        while process.poll() is None and PHASES[phase](self) and time.perf_counter() < until:
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
        parts = {}
        for item in items:
            leaves = jax.tree_util.tree_leaves_with_path(read_arrays(checkpoint, item))
            arrays = [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in leaves]
            parts[item] = [f"{key} {array.dtype} {array.shape}".encode() + array.tobytes() for key, array in arrays]
        progress = dataclasses.asdict(read_progress(checkpoint)) | {"seconds": None}
        for name, value in (("progress", progress), ("record", read_untimed(self.workdir.metrics))):
            parts[name] = [json.dumps(value).encode()]
        return {name: hashlib.sha256(b"".join(chunks)).hexdigest()[:16] for name, chunks in parts.items()}


def is_preparing(training: Training) -> bool:
    return STARTED not in training.output.read_text()


def is_writing(training: Training) -> bool:
    """Returns whether this start is writing a checkpoint; incomplete checkpoints of earlier starts are older."""
    for path in training.workdir.checkpoints.glob("*-tmp*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime >= training.began:
                return True
    return False


def is_validating(training: Training) -> bool:
    """Returns whether a validation is running: the last line of the record is then the training line of its step."""
    lines, settings = read_untimed(training.workdir.metrics), training.config.training
    if is_preparing(training) or not lines or lines[-1]["split"] != "train":
        return False
    return due(lines[-1]["step"], settings.eval_every, settings.steps)


def is_training(training: Training) -> bool:
    return " tok/s " in training.output.read_text()


PHASES = {"validating": is_validating, "writing": is_writing, "preparing": is_preparing, "training": is_training}


def kill_repeatedly(training: Training, limit: int, kills: Counter[str]) -> None:
    """Trains to the end, with kills until there are `limit`. Each aims at the phase with the fewest kills so far."""
    while kills.total() < limit:
        phase = min(PHASES, key=kills.__getitem__)
        killed = training.kill(phase, math.exp(random.uniform(math.log(MIN_DELAY), math.log(MAX_DELAY))))
        if killed is None:
            return
        kills[killed] += 1
        steps = steps_in(training.workdir.checkpoints)
        newest = f"the newest checkpoint is of step {steps[-1]}" if steps else "no checkpoint yet"
        print(f"killed while {killed}: {newest}", flush=True)
    training.finish()
