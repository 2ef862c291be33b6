"""The time that a user waits for a command: `--help`, a second quickstart's first step, one translated line."""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import logging

from scripts.benchmarking.measurement import Measurement, describe_machine
from scripts.benchmarking.processes import ROOT, count_threads
from transformer.errors import UserError

LINE = "I think that my brother hid the red lamp in the garden.\n"
POLL_SECONDS = 0.01
REPETITIONS = 5
QUICKSTART = "--config=configs/quickstart.py"


def measure(arguments: argparse.Namespace) -> Measurement:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = folder / "first"
        logging.info("Training a first quickstart, which fills the caches and whose model translates.")
        finished(["transformer.train", f"--workdir={first}", QUICKSTART], folder)
        translate = ["transformer.translate", f"--workdir={first}", "--checkpoint=last"]
        waits: dict[str, Callable[[int], float]] = {
            "transformer.train --help": lambda _: finished(["transformer.train", "--help"], folder),
            "first step of a second quickstart": lambda number: first_step(folder / f"run-{number}", folder),
            "one line through transformer.translate": lambda _: finished(translate, folder, LINE),
        }
        seconds: dict[str, list[float]] = {name: [] for name in waits}
        for number in range(REPETITIONS + 1):  # the first fills the compilation cache and does not count
            logging.info("Repetition %d of %d.", number, REPETITIONS)
            for name, wait in waits.items():
                seconds[name].append(wait(number))
    rows = [("command", "seconds", "fastest", "slowest")]
    for name, (_, *counted) in seconds.items():
        rows.append((name, *(f"{value:.2f}" for value in (statistics.median(counted), min(counted), max(counted)))))
    return Measurement(rows, [f"Medians of {REPETITIONS} starts; {describe_machine(count_threads(None))}."])


def finished(command: Sequence[str], folder: Path, text: str = "") -> float:
    """Returns the seconds of a command, from its start to its end. Raises UserError if it fails."""
    began = time.perf_counter()
    process = start(command, folder)
    process.communicate(text)
    seconds = time.perf_counter() - began
    check(process, command, folder)
    return seconds


def first_step(workdir: Path, folder: Path) -> float:
    """Returns the seconds from the start of a quickstart to the record of its first step, and ends it there."""
    command = ["transformer.train", f"--workdir={workdir}", QUICKSTART, "--config.training.log_every=1"]
    began = time.perf_counter()
    process = start(command, folder)
    metrics = workdir / "metrics.jsonl"
    while not (metrics.exists() and b"\n" in metrics.read_bytes()) and process.poll() is None:
        time.sleep(POLL_SECONDS)
    seconds = time.perf_counter() - began
    process.send_signal(signal.SIGTERM)
    process.communicate()
    check(process, command, folder)
    return seconds


def start(command: Sequence[str], folder: Path) -> subprocess.Popen:
    """Starts a command whose caches and log are in `folder`."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # it would take precedence
    python, pipe = [sys.executable, "-m", *command], subprocess.PIPE
    with (folder / "log").open("w", encoding="utf-8") as log:  # the process keeps it open
        return subprocess.Popen(python, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=ROOT, env=environment)


def check(process: subprocess.Popen, command: Sequence[str], folder: Path) -> None:
    """Raises UserError with the last line of the log if the process has failed."""
    if process.returncode:
        lines = (folder / "log").read_text(encoding="utf-8").strip().splitlines() or ["no message"]
        raise UserError(f"python -m {' '.join(command)}: failed: {lines[-1]}")
