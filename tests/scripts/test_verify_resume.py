"""Killed runs give the results of uninterrupted ones, and the script that compares them detects
differences.
"""

import dataclasses
import json
import re
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest

from scripts import verify_resume
from scripts.verify_resume import PHASES, KillableRun
from tests.training.tiny import flags
from transformer.checkpoints.manager import Checkpoints
from transformer.config import cli
from transformer.training.progress import Progress
from transformer.training.state import TrainState

# Dropout is on, and two epochs end within the run.
SETTINGS = {
    "training__steps": 30,
    "training__ema_decay": 0.9,
    "training__log_every": 4,
    "training__eval_every": 8,
}


@pytest.mark.slow  # a minute of runs
def test_a_killed_run_gives_the_results_of_an_uninterrupted_one(tmp_path, capsys):
    config, _, *overrides = flags(tmp_path / "run", **SETTINGS)
    without_cache = [flag for flag in overrides if not flag.startswith("--config.data.cache_dir")]
    argv = [config, f"--workdir={tmp_path / 'runs'}", "--kills=4", *without_cache]
    assert cli.execute(verify_resume.make_parser(), verify_resume.main, argv) == 0
    lines = capsys.readouterr().out.splitlines()
    digests = [line.split("  ", 1)[1].strip() for line in lines if "parameters" in line]
    assert len(digests) >= 2 and len(set(digests)) == 1
    assert all(
        name in digests[0]
        for name in ("parameters", "optimizer", "ema_parameters", "progress", "record")
    )
    # A kill aimed at the end of a phase may come when the next has begun.
    hit = {phase: int(count) for phase, count in re.findall(r"(\w+): (\d+)", lines[-2])}
    assert lines[-2].startswith("killed while ") and sum(hit.values()) == 4
    assert set(hit) <= {*PHASES, "compiling"}
    assert lines[-1] == "4 kills left no trace"


def digests(folder: Path, progress: Progress, line: dict, **values: float) -> dict[str, str]:
    """Returns the digests of a run with one checkpoint, whose arrays are filled with these values,
    and one line.
    """
    arrays = {
        name: {"kernel": np.full((2, 3), value, np.float32)} for name, value in values.items()
    }
    state = jax.device_put(TrainState(step=np.int32(progress.step), skipped=np.int32(0), **arrays))
    training = KillableRun(folder, "configs/base.py", [])
    training.workdir.path.mkdir(parents=True)
    with Checkpoints(training.workdir, training.config) as checkpoints:
        checkpoints.save(state, progress)
    training.workdir.metrics.write_text(json.dumps(line) + "\n")
    return training.digests()


def test_a_difference_anywhere_changes_its_digest(tmp_path):
    progress = Progress(step=20, batch=3, seconds=3.0)
    line = {"step": 20, "split": "train", "loss": 1.5, "seconds": 3.0}
    values = {"parameters": 1.0, "optimizer_state": 2.0, "ema_parameters": 3.0}
    before = digests(tmp_path / "before", progress, line, **values)

    def changed(progress=progress, line=line, **changes) -> set[str]:
        after = digests(Path(tempfile.mkdtemp(dir=tmp_path)), progress, line, **values | changes)
        return {name for name in before | after if after[name] != before[name]}

    assert (
        changed()
        == changed(dataclasses.replace(progress, seconds=4.0), line | {"seconds": 4.0})
        == set()
    )
    assert changed(parameters=1.1) == {"parameters"}
    assert changed(optimizer_state=2.1) == {"optimizer"}
    assert changed(ema_parameters=3.1) == {"ema_parameters"}
    assert changed(dataclasses.replace(progress, batch=4)) == {"progress"}
    assert changed(line=line | {"loss": 1.6}) == {"record"}
