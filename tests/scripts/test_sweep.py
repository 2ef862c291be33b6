"""The command `scripts.sweep` with real trials, and its checks before the first trial."""

import csv
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from scripts import sweep
from scripts.sweeping import description
from scripts.sweeping.folder import Folder
from scripts.sweeping.tasks import Training
from tests.checkpoints.workdirs import make_workdir, run
from tests.run.full_disk import ALONE, may_mount
from tests.training.tiny import flags
from transformer import train
from transformer.checkpoints.restore import steps_in
from transformer.config import loading as configuration
from transformer.data.tokenizers import tokenizer
from transformer.training import metrics

SWEEPS = sorted(path for path in Path("configs/sweeps").glob("*.py") if path.name != "__init__.py")
HEADER = "import optuna\n\ndef get_sweep(sweep):\n    return "
LISTED = 'sweep.listed(sweep.product({{"optimizer.learning_rate": {values}}}), objective="loss", pruner=None)'


def sweep_file(folder: Path, text: str) -> str:
    path = folder / "sweep_file.py"
    path.write_text(HEADER + text + "\n")
    return f"--sweep={path}"


def read_csv(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))


def tiny_flags(tmp_path: Path) -> list[str]:
    """Returns the flags of training, without the workdir."""
    return [flag for flag in flags(tmp_path / "run", training__steps=8) if not flag.startswith("--workdir")]


def error(capsys) -> str:
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert captured.out == "" and "Traceback" not in captured.err
    return line


def test_a_sweep_trains_every_trial_and_prints_the_table(tmp_path, capsys):
    folder = tmp_path / "sweep"
    what = sweep_file(tmp_path, LISTED.format(values=[0.01, 0.5]))
    assert run(sweep, *tiny_flags(tmp_path), what, f"--workdir={folder}") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "| loss | optimizer.learning_rate | trials |"
    assert table[2].endswith("| 0.5 | 1 |")  # a fiftieth of the rate learns nothing in eight steps
    rows = read_csv(folder)
    for row, rate in zip(rows, (0.01, 0.5), strict=True):
        config = configuration.load(Path(row["workdir"]))
        assert config.optimizer.learning_rate == float(row["optimizer.learning_rate"]) == rate
        lines = metrics.read_lines(Path(row["workdir"]) / "metrics.jsonl")
        assert float(row["loss"]) == min(line["loss"] for line in lines if line["split"] == "valid")
        assert (row["state"], lines[-1]["step"]) == ("complete", 8)
    # Corpus and tokenizer were prepared once, for both trials: all files are older than the end of the first.
    made = [path for path in (tmp_path / "cache").glob("*/*") if path.is_dir() and "compiled" not in str(path)]
    assert sorted(path.parent.name for path in made) == ["corpora", "corpora", "tokenizers"]
    ended = (Path(rows[0]["workdir"]) / "complete.json").stat().st_mtime
    assert all(file.stat().st_mtime < ended for path in made for file in (path, *path.glob("*")))
    tokenizers = {(Path(row["workdir"]) / tokenizer.MODEL).read_bytes() for row in rows}
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
    argv = [*tiny_flags(tmp_path), f"--config.training.steps={steps}", what, f"--workdir={folder}"]
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
    assert other.returncode == 0 and "taken over after" in log
    workdir = folder / "trials" / "0000"
    assert "Going on from the checkpoint of step" in (workdir / "log.txt").read_text()
    whole = flags(tmp_path / "whole", training__steps=steps, optimizer__learning_rate=0.5)
    assert run(train, *whole) == 0
    assert metrics.read_untimed(workdir / "metrics.jsonl") == metrics.read_untimed(tmp_path / "whole" / "metrics.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("size", ["64k", "600k"])  # too little for the study; too little for the trials
def test_a_full_disk_ends_the_sweep_in_one_line_and_it_is_resumed_with_room(tmp_path, size):
    if reason := may_mount():
        pytest.skip(f"needs a file system of its own: {reason}")
    disk = tmp_path / "disk"
    disk.mkdir()
    what = sweep_file(tmp_path, LISTED.format(values=[0.01, 0.5]))
    argv = [*tiny_flags(tmp_path), what, f"--workdir={disk / 'sweep'}"]
    sweeping = shlex.join([sys.executable, "-m", "scripts.sweep", *argv])
    script = f"mount -t tmpfs -o size={size} tmpfs {disk}; {sweeping}; echo $?; mount -o remount,size=16m {disk}; "
    script += f"{sweeping}; echo $?; cp {disk / 'sweep' / 'trials.csv'} {tmp_path}"
    done = subprocess.run([*ALONE, "sh", "-c", script], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("2", "0"), done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "disk is full" in error and "Traceback" not in done.stderr
    assert [row["state"] for row in read_csv(tmp_path)] == ["complete", "complete"]


def process_of(folder: Path) -> str:
    """Returns the process that runs trial 0."""
    name = Folder(folder).read()["study"]
    return optuna.load_study(study_name=name, storage=Folder(folder).storage).trials[0].user_attrs["process"]


def test_a_decoding_sweep_evaluates_a_run(tmp_path, capsys):
    workdir = make_workdir(tmp_path / "run")
    folder = tmp_path / "sweep"
    text = 'sweep.listed(sweep.product({"decoding.beam_size": [1, 3]}), objective="chrf", pruner=None)'
    assert run(sweep, f"--from={workdir}", sweep_file(tmp_path, text), f"--workdir={folder}", "--jobs=2") == 0
    rows = read_csv(folder)
    for row, beam in zip(rows, (1, 3), strict=True):
        saved = json.loads((workdir / "evaluations" / f"valid-step20-beam_size{beam}.json").read_text())
        assert float(row["chrf"]) == saved["chrf"]
        assert (row["decoding.beam_size"], row["workdir"]) == (str(beam), str(workdir))


def test_a_failed_trial_is_reported_and_run_again_on_request(tmp_path, capsys):
    folder = tmp_path / "sweep"
    nowhere = ["--config.data.source=text", f"--config.data.path={tmp_path / 'nowhere'}"]
    what = sweep_file(tmp_path, LISTED.format(values=[0.5]))
    argv = [*tiny_flags(tmp_path), *nowhere, what, f"--workdir={folder}"]
    assert run(sweep, *argv) == 2
    captured = capsys.readouterr().err
    assert "Trial 0 failed: exit code 2" in captured
    assert "no trial is complete; 1 failed, the first with: error: " in captured and captured.count("nowhere") >= 2
    assert run(sweep, *argv) == 2
    captured = capsys.readouterr().err
    assert "--retry_failed runs them again" in captured and "Trial 0 failed" not in captured
    assert run(sweep, *argv, "--retry_failed") == 2
    assert "Trial 0 failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LISTED.format(values=[]), "the sweep has no trials"),
        (
            'sweep.listed(sweep.product({"optimizer.leaning_rate": [1.0]}), objective="loss", pruner=None)',
            "optimizer.learning_rate",
        ),
        (
            'sweep.listed(sweep.zipped({"seed": [1], "model.d_ff": [1, 2]}), objective="loss", pruner=None)',
            "model.d_ff has 2 values",
        ),
        (LISTED.format(values=[0.5, -1.0]), "trial 1: config.optimizer.learning_rate=-1.0"),
        (LISTED.format(values=["fast"]), "trial 0: config.optimizer.learning_rate=fast: must be a number"),
        (
            'sweep.search({"model.num_heads": sweep.integers(2, 3, step=1)}, trials=2, objective="loss",'
            " sampler=lambda seed: optuna.samplers.RandomSampler(seed=seed), pruner=None)",
            "model.num_heads=3: config.model.d_model=8",
        ),
        ('sweep.listed(sweep.seeds(2), objective="chrf", pruner=None)', "objective=chrf: must be one of bleu, loss"),
        ('sweep.listed(sweep.seeds(2), objective="bleu", pruner=None)', "training.eval_bleu=true"),
        ("sweep.seeds(2)", "get_sweep() returned list"),
        ("1 / 0", "line 4: ZeroDivisionError"),
    ],
)
def test_an_invalid_sweep_is_refused_before_anything_is_created(tmp_path, capsys, text, message):
    folder = tmp_path / "sweep"
    assert run(sweep, *tiny_flags(tmp_path), sweep_file(tmp_path, text), f"--workdir={folder}") == 2
    assert message in error(capsys)
    assert not folder.exists()


def test_wrong_flags_are_one_line(tmp_path, capsys):
    what = sweep_file(tmp_path, LISTED.format(values=[0.5]))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    config, folder = tiny_flags(tmp_path), f"--workdir={tmp_path / 'sweep'}"
    wrong = {
        "--sweep=FILE is needed": [*config, folder],
        "give either --config=FILE": [what, folder],
        "--from uses the configuration": [*config[1:], "--from=runs/a", what, folder],
        "no such file": [*config, "--sweep=configs/sweeps/seed.py", folder],
        "did you mean configs/sweeps/seeds.py": [*config, "--sweep=configs/sweeps/seed.py", folder],
        "--jobs=0": [*config, what, folder, "--jobs=0"],
        "no such folder": ["--from=runs/nowhere", what, folder],
        "holds notes.txt and no sweep": [*config, what, f"--workdir={tmp_path / 'full'}"],
        "is not the folder of a sweep": ["--report", f"--workdir={tmp_path / 'full'}"],
        "must be a URL": [*config, what, folder, "--storage=here"],
    }
    for message, argv in wrong.items():
        assert run(sweep, *argv) == 2
        assert message in error(capsys)
    assert not (tmp_path / "sweep").exists()


def test_a_decoding_sweep_varies_only_decoding(tmp_path, capsys):
    workdir = make_workdir(tmp_path / "run")
    what = sweep_file(tmp_path, 'sweep.listed(sweep.seeds(2), objective="bleu", pruner=None)')
    assert run(sweep, f"--from={workdir}", what, f"--workdir={tmp_path / 'sweep'}") == 2
    assert "--from varies only decoding keys" in error(capsys)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_command_of_every_shipped_sweep_is_valid(path, tmp_path):
    loaded = sweep.load_sweep(path)
    command = re.search(r"Command:\s+python -m scripts\.sweep (.*?)(?:\nHardware|\n\n|$)", path.read_text(), re.DOTALL)[
        1
    ]
    arguments = sweep.make_parser().parse(shlex.split(command))
    assert Path(arguments.sweep) == path
    if arguments.source is None:
        sweep.check_values(loaded, sweep.make_task(arguments, Folder(tmp_path)))
    else:
        assert all(key.startswith("decoding.") for key in loaded.keys)


def test_the_configuration_of_a_trial_differs_only_in_its_values(tmp_path):
    config = configuration.load_file("configs/quickstart.py", [])
    task = Training(config, Folder(tmp_path))
    trial = description.product({"model.dropout": [0, 0.5]})[0]
    module, config_flag, workdir_flag = task.command(7, trial)
    assert (module, workdir_flag) == ("transformer.train", f"--workdir={tmp_path / 'trials' / '0007'}")
    written = configuration.load_file(config_flag.removeprefix("--config="), [])
    assert configuration.difference(config, written) == {"model.dropout": f"{config.model.dropout} -> 0.0"}
