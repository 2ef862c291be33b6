"""Runs that are killed, and that the script which compares them would notice a difference."""

import json

import pytest

from scripts import verify_resume
from tests.decoding.workdirs import make_workdir
from tests.training.tiny import flags, tiny_config
from transformer import command
from transformer.workdir import Workdir

pytestmark = pytest.mark.optimized

# Dropout is on, and two epochs end within the run.
SETTINGS = {"training__steps": 30, "training__ema_decay": 0.9, "training__log_every": 4, "training__eval_every": 8}


CONFIG = tiny_config()


def verify(folder, kills: int) -> int:
    config, _, *overrides = flags(folder / "runs", **SETTINGS)
    without_cache = [flag for flag in overrides if not flag.startswith("--config.data.cache_dir")]
    argv = [config, f"--workdir={folder / 'runs'}", f"--kills={kills}", *without_cache]
    return command.execute(verify_resume.make_parser(), verify_resume.main, argv)


def test_a_run_that_is_killed_comes_out_as_if_it_had_not_been(tmp_path, capsys):
    assert verify(tmp_path, kills=2) == 0
    lines = capsys.readouterr().out.splitlines()
    digests = [line.split("  ", 1)[1].strip() for line in lines if "parameters" in line]
    assert len(digests) >= 2 and len(set(digests)) == 1
    assert all(name in digests[0] for name in ("parameters", "optimizer", "average", "progress", "record"))
    assert lines[-2:] == ["killed while validating: 1, writing: 1", "2 kills left no trace"]


def test_a_difference_anywhere_changes_its_digest(tmp_path):
    training = verify_resume.Training(Workdir(make_workdir(tmp_path / "run", steps=(10, 20))), CONFIG, ())
    line = {"step": 10, "split": "train", "loss": 1.5, "seconds": 3.0}
    training.workdir.metrics.write_text(json.dumps(line) + "\n")
    before = training.digests()
    training.workdir.metrics.write_text(json.dumps(line | {"seconds": 4.0}) + "\n")
    assert training.digests() == before
    training.workdir.metrics.write_text(json.dumps(line | {"loss": 1.6}) + "\n")
    changed = {name for name, digest in training.digests().items() if digest != before[name]}
    assert changed == {"record"}
    other = verify_resume.Training(Workdir(make_workdir(tmp_path / "other", steps=(10, 20), seed=1)), CONFIG, ())
    other.workdir.metrics.write_text(json.dumps(line) + "\n")
    changed = {name for name, digest in other.digests().items() if digest != before[name]}
    assert changed == {"parameters"}
