"""The checks of `scripts.sweep` before the first trial."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import sqlalchemy

from scripts import sweep
from scripts.sweeping import description, tasks
from scripts.sweeping.folder import SweepFolder
from tests.checkpoints.workdirs import make_workdir, run
from tests.scripts.tiny_sweep import LISTED, error, sweep_file, tiny_flags
from tests.tracked import tracked_files
from transformer.config import loading
from transformer.support import files
from transformer.support.errors import UserError
from transformer.workdir import create_workdir

# A list and not the content of the folder, since users keep their own sweeps there.
SWEEPS = [
    Path(f"configs/sweeps/{name}.py")
    for name in (
        "attention_scores",
        "beam_length_penalty",
        "dropout_label_smoothing",
        "kinds",
        "learning_rate_dropout",
        "learning_rate_warmup",
        "model_size",
        "mup",
        "optimizers",
        "pretrained",
        "seeds",
    )
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LISTED.format(values=[]), "the sweep has no trials"),
        (
            'sweep.listed(sweep.product({"optimizer.leaning_rate": [1.0]}), objective="loss", '
            "pruner=None)",
            "optimizer.learning_rate",
        ),
        (
            'sweep.listed(sweep.zipped({"seed": [1], "model.d_ff": [1, 2]}), objective="loss", '
            "pruner=None)",
            "line 4: ValueError: zip() argument 2 is longer than argument 1",
        ),
        (LISTED.format(values=[0.5, -1.0]), "trial 1: config.optimizer.learning_rate=-1.0"),
        (
            LISTED.format(values=["fast"]),
            "trial 0: config.optimizer.learning_rate=fast: must be a number",
        ),
        (
            'sweep.listed(sweep.product({"decoding.shortlist": [0, 8]}), objective="loss", '
            "pruner=None)",
            "trial 1: config.decoding.shortlist=8: must be 0 in training",
        ),
        (
            'sweep.search({"model.num_heads": optuna.distributions.IntDistribution(2, 3)}, '
            'trials=2, objective="loss",'
            " sampler=lambda seed: optuna.samplers.RandomSampler(seed=seed), pruner=None)",
            "model.num_heads=3: config.model.d_model=8",
        ),
        (
            'sweep.listed(sweep.seeds(2), objective="bleu_paper", pruner=None)',
            "objective=bleu_paper: must be one of loss, nll",
        ),
        (
            'sweep.listed(sweep.seeds(2), objective="blue", pruner=None)',
            "objective=blue: must be one of ",
        ),
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
    config, folder = tiny_flags(tmp_path), f"--workdir={tmp_path / 'sweep'}"
    wrong = {
        "--sweep=FILE is needed": [*config, folder],
        "give either --config=FILE": [what, folder],
        "--from uses the configuration": [*config[1:], "--from=runs/a", what, folder],
        "no such file": [*config, f"--sweep={'long' * 100}.py", folder],
        "did you mean configs/sweeps/seeds.py": [*config, "--sweep=configs/sweeps/seed.py", folder],
        "--jobs: 0: must be at least 1": [*config, what, folder, "--jobs=0"],
        "no such folder": ["--from=runs/nowhere", what, folder],
        "is not the folder of a sweep": ["--report", f"--workdir={tmp_path}"],
        "must be a URL": [*config, what, folder, "--storage=here"],
    }
    for message, argv in wrong.items():
        assert run(sweep, *argv) == 2
        assert message in error(capsys)
    assert not (tmp_path / "sweep").exists()


def test_a_report_needs_the_storage_of_the_sweep(tmp_path, capsys):
    """The study of this sweep is on a server, and the command lacks its URL."""
    folder = SweepFolder(tmp_path / "50% a?b")
    folder.path.mkdir()
    seeds = description.listed([{"seed": 0}], objective="loss", pruner=None)
    files.write_json(folder.record, folder.describe(seeds, {}))
    for storage in ([], [f"--storage=sqlite:///{tmp_path}/typo.db"]):
        assert run(sweep, f"--workdir={folder.path}", "--report", *storage) == 2
        assert f"has no study {folder.read()['study']}; give the storage of this sweep" in error(
            capsys
        )


def test_a_decoding_sweep_varies_only_decoding(tmp_path, capsys):
    workdir = make_workdir(tmp_path / "run")
    what = sweep_file(tmp_path, 'sweep.listed(sweep.seeds(2), objective="bleu", pruner=None)')
    assert run(sweep, f"--from={workdir}", what, f"--workdir={tmp_path / 'sweep'}") == 2
    assert "--from varies only decoding keys" in error(capsys)


def test_trainings_do_not_vary_the_beam_that_validation_ignores(tmp_path, capsys):
    what = sweep_file(
        tmp_path, 'sweep.listed([{"decoding.beam_size": 2}], objective="bleu", pruner=None)'
    )
    assert (
        run(sweep, "--config=configs/quickstart.py", what, f"--workdir={tmp_path / 'sweep'}") == 2
    )
    assert "trial 0: decoding.beam_size: validation reads training.eval_beam_size" in error(capsys)


def test_the_list_has_every_sweep():
    assert set(map(Path, tracked_files("configs/sweeps/*.py"))) == {
        *SWEEPS,
        Path("configs/sweeps/__init__.py"),
    }


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_command_of_every_shipped_sweep_is_valid(path, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)  # an installed package brings its sweeps
        loaded = description.load_sweep(str(path))
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    command = re.search(
        r"Command:\s+python -m scripts\.sweep (.*?)(?:\nHardware|\n\n|\Z)", docstring, re.DOTALL
    )[1]
    arguments = sweep.make_parser().parse(shlex.split(command))
    assert Path(arguments.sweep) == path
    if arguments.source is None:
        tasks.check_values(loaded, tasks.make_task(arguments, SweepFolder(tmp_path)))
    else:
        assert all(key.startswith("decoding.") for key in loaded.keys)


def test_the_configuration_of_a_trial_differs_only_in_its_values(tmp_path):
    config = loading.load_file("configs/quickstart.py", [])
    task = tasks.TrainingTask(config, SweepFolder(tmp_path))
    trial = description.product({"optimizer.learning_rate": [1, 0.5]})[0]
    module, config_flag, workdir_flag = task.command(7, trial)
    assert (module, workdir_flag) == (
        "transformer.train",
        f"--workdir={tmp_path / 'trials' / '0007'}",
    )
    written = loading.load_file(config_flag.removeprefix("--config="), [])
    assert loading.difference(config, written) == {"optimizer.learning_rate": "0.004 -> 1.0"}


def test_the_database_is_in_the_folder_whatever_its_name(tmp_path):
    path = tmp_path / "what? #1 %20 {x}"
    path.mkdir()
    engine = sqlalchemy.create_engine(SweepFolder(path).storage)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a)")
    engine.dispose()
    assert (path / "study.db").exists()


@pytest.mark.parametrize("name", ["trials.csv", "study.db", "configs"])
def test_a_folder_with_a_file_of_the_user_that_a_sweep_would_write_is_refused(
    tmp_path, capsys, name
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_text('{"mine": 1}')
    flags = [sweep_file(tmp_path, LISTED.format(values=[0.5])), "--config=configs/quickstart.py"]
    assert run(sweep, *flags, f"--workdir={tmp_path / 'folder'}") == 2
    assert name in error(capsys)
    (path,) = (tmp_path / "folder").iterdir()
    assert path.read_text() == '{"mine": 1}'


def test_the_workdir_of_a_run_is_no_folder_of_a_sweep(tmp_path):
    create_workdir(tmp_path, loading.load_file("configs/base.py", []))
    with pytest.raises(UserError, match="is the workdir of a run; name a new folder"):
        SweepFolder(tmp_path).check_ownership()


def test_a_sweep_that_was_killed_before_its_record_begins(tmp_path):
    folder = SweepFolder(tmp_path)
    with folder.lock():
        folder.database.touch()
    folder.check_ownership()


def test_a_trial_that_is_listed_twice_is_refused():
    with pytest.raises(
        UserError, match="trial 1: has the values of trial 0, .*; list it once, or vary the seed"
    ):
        description.listed([{"model.dropout": 0.1}] * 2, objective="nll", pruner=None)
