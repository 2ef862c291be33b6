"""The command `scripts.sweep` with real trials."""

import csv
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from scripts import sweep
from scripts.sweeping.folder import SweepFolder
from scripts.verify_resume import read_untimed
from tests.checkpoints.workdirs import make_workdir, run
from tests.run.full_disk import ALONE, may_mount
from tests.scripts.tiny_sweep import LISTED, error, sweep_file, tiny_flags
from tests.training.tiny import flags
from transformer import train
from transformer.checkpoints.restore import steps_in
from transformer.config import loading
from transformer.run.record import read_record


def read_csv(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))


def test_a_sweep_trains_every_trial_and_prints_the_table(tmp_path, capsys):
    folder = tmp_path / "sweep"
    what = sweep_file(tmp_path, LISTED.format(values=[0.01, 0.5]))
    assert run(sweep, *tiny_flags(tmp_path), what, f"--workdir={folder}") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "| loss | optimizer.learning_rate | trials |"
    assert table[2].endswith("| 0.5 | 1 |")  # a fiftieth of the rate learns nothing in eight steps
    rows = read_csv(folder)
    for row, rate in zip(rows, (0.01, 0.5), strict=True):
        config = loading.load(Path(row["workdir"]))
        assert config.optimizer.learning_rate == float(row["optimizer.learning_rate"]) == rate
        lines = read_record(Path(row["workdir"]) / "metrics.jsonl")
        assert float(row["loss"]) == min(line["loss"] for line in lines if line["split"] == "valid")
        assert (row["state"], lines[-1]["step"]) == ("complete", 8)
    # Corpus and tokenizer were prepared once, for both trials: all files are older than the end of
    # the first.
    made = [
        path
        for path in (tmp_path / "cache").glob("*/*")
        if path.is_dir() and "compiled" not in str(path)
    ]
    assert sorted(path.parent.name for path in made) == ["corpora", "corpora", "tokenizers"]
    ended = (Path(rows[0]["workdir"]) / "complete.json").stat().st_mtime
    assert all(file.stat().st_mtime < ended for path in made for file in (path, *path.glob("*")))
    tokenizers = {(Path(row["workdir"]) / "tokenizer.model").read_bytes() for row in rows}
    assert len(tokenizers) == 1

    # The same command again trains nothing.
    assert run(sweep, *tiny_flags(tmp_path), what, f"--workdir={folder}") == 0
    assert capsys.readouterr().out.splitlines() == table
    assert run(sweep, f"--workdir={folder}", "--report") == 0
    assert capsys.readouterr().out.splitlines() == table
    assert read_csv(folder) == rows

    assert run(sweep, *tiny_flags(tmp_path), "--config.seed=3", what, f"--workdir={folder}") == 2
    assert "holds another sweep (seed: 0 -> 3)" in error(capsys)
    assert read_csv(folder) == rows
    other = sweep_file(tmp_path, LISTED.format(values=[0.01, 0.25]))
    assert run(sweep, *tiny_flags(tmp_path), other, f"--workdir={folder}") == 2
    assert "holds another sweep (its trials: " in (line := error(capsys)) and "0.25" in line


@pytest.mark.slow
def test_a_trial_of_a_killed_sweep_is_resumed_to_the_same_metrics(tmp_path):
    folder, steps = tmp_path / "sweep", 200
    what = sweep_file(tmp_path, LISTED.format(values=[0.5, 0.25]))
    argv = [*tiny_flags(tmp_path, training__steps=steps), what, f"--workdir={folder}"]
    command = [sys.executable, "-m", "scripts.sweep", *argv]
    killed, other = (subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2))
    while not (checkpoints := steps_in(folder / "trials" / "0000" / "checkpoints")):
        time.sleep(0.01)
    if f"process {killed.pid} " not in process_of(folder):
        killed, other = other, killed
    killed.kill()
    killed.communicate()
    assert checkpoints[-1] < steps
    _, log = other.communicate()
    assert other.returncode == 0, log
    workdir = folder / "trials" / "0000"
    assert "Resuming from the checkpoint of step" in (workdir / "log.txt").read_text()
    whole = flags(tmp_path / "whole", training__steps=steps, optimizer__learning_rate=0.5)
    assert run(train, *whole) == 0
    assert read_untimed(workdir / "metrics.jsonl") == read_untimed(
        tmp_path / "whole" / "metrics.jsonl"
    )


@pytest.mark.slow
# too little for the study; too little for the trials
@pytest.mark.parametrize("size", ["64k", "600k"])
def test_a_full_disk_ends_the_sweep_in_one_line_and_it_is_resumed_with_room(tmp_path, size):
    if reason := may_mount():
        pytest.skip(f"needs a file system of its own: {reason}")
    disk = tmp_path / "disk"
    disk.mkdir()
    what = sweep_file(tmp_path, LISTED.format(values=[0.01, 0.5]))
    argv = [*tiny_flags(tmp_path), what, f"--workdir={disk / 'sweep'}"]
    sweeping = shlex.join([sys.executable, "-m", "scripts.sweep", *argv])
    script = (
        f"mount -t tmpfs -o size={size} tmpfs {disk}; {sweeping}; echo $?; mount -o "
        f"remount,size=16m {disk}; "
    )
    script += f"{sweeping}; echo $?; cp {disk / 'sweep' / 'trials.csv'} {tmp_path}"
    done = subprocess.run([*ALONE, "sh", "-c", script], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("2", "0"), done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "disk is full" in error and "Traceback" not in done.stderr
    assert [row["state"] for row in read_csv(tmp_path)] == ["complete", "complete"], done.stderr


def process_of(folder: Path) -> str:
    """Returns the process that runs trial 0."""
    name = SweepFolder(folder).read()["study"]
    return (
        optuna.load_study(study_name=name, storage=SweepFolder(folder).storage)
        .trials[0]
        .user_attrs["process"]
    )


@pytest.mark.slow
def test_a_decoding_sweep_evaluates_a_run(tmp_path, capsys):
    workdir = make_workdir(tmp_path / "run")
    folder = tmp_path / "sweep"
    text = (
        'sweep.listed(sweep.product({"decoding.beam_size": [1, 3]}), objective="chrf", pruner=None)'
    )
    assert (
        run(
            sweep,
            f"--from={workdir}",
            sweep_file(tmp_path, text),
            f"--workdir={folder}",
            "--jobs=2",
        )
        == 0
    )
    line = "chrf: valid, 5 sentences; beam (varied), alpha 0.6, step 20."
    assert line in capsys.readouterr().out.splitlines()
    rows = read_csv(folder)
    for row, beam in zip(rows, (1, 3), strict=True):
        saved = json.loads(
            (workdir / "evaluations" / f"valid-step20-beam_size{beam}.json").read_text()
        )
        assert float(row["chrf"]) == saved["chrf"]
        assert (row["decoding.beam_size"], row["workdir"]) == (str(beam), str(workdir))


@pytest.mark.slow
def test_a_failed_trial_is_reported_and_run_again_on_request(tmp_path, capsys):
    folder = tmp_path / "sweep"
    nowhere = {"data__source": "text", "data__path": tmp_path / "nowhere"}
    what = sweep_file(tmp_path, LISTED.format(values=[0.5]))
    argv = [*tiny_flags(tmp_path, **nowhere), what, f"--workdir={folder}"]
    assert run(sweep, *argv) == 2
    captured = capsys.readouterr().err
    assert "Trial 0 failed: exit code 2" in captured
    assert (
        "no trial is complete" in captured and "nowhere" in captured and "Traceback" not in captured
    )
    assert run(sweep, *argv) == 2
    captured = capsys.readouterr().err
    assert "--retry_failed runs them again" in captured and "Trial 0 failed" not in captured
    assert run(sweep, *argv, "--retry_failed") == 2
    assert "Trial 0 failed" in capsys.readouterr().err
