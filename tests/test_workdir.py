"""Workdirs: creating, resuming, refusing and locking them; atomic writing of files."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from configs import base
from tests.conftest import REPOSITORY
from tests.training import tiny
from transformer import train
from transformer.config import cli
from transformer.config.keys import flatten, freeze
from transformer.run.record import Recorder
from transformer.support import environment, files
from transformer.support.errors import UserError
from transformer.training.progress import Progress
from transformer.workdir import (
    Workdir,
    create_workdir,
    linked_workdir,
    lock_workdir,
    open_existing,
)

BASE = flatten(base.get_config())
CONFIG = freeze(BASE)


@pytest.fixture
def begun(tmp_path) -> Workdir:
    """Returns the workdir of a run of the base config that has begun."""
    workdir = create_workdir(tmp_path / "runs" / "first", CONFIG)
    workdir.metrics.write_text("{}\n")
    return workdir


def refusal(function, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_workdir_holds_config_and_environment(tmp_path):
    workdir = create_workdir(tmp_path / "a" / "b", CONFIG)
    assert sorted(path.name for path in workdir.path.iterdir()) == [
        "config.json",
        "environment.json",
    ]
    opened, config = open_existing(tmp_path / "a" / "b")
    assert (opened.path, config) == (workdir.path, CONFIG)
    recorded = json.loads(workdir.environment.read_text())
    assert recorded["packages"]["jax"] == jax.__version__
    assert recorded["devices"] == [device.device_kind for device in jax.devices()]
    assert recorded["resumed"] == []


def test_the_commit_is_recorded(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", tmp_path, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    (tmp_path / "requirements.txt").write_text("jax==1\n")
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    assert environment.describe_environment()["commit"] is None
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "another project")
    (tmp_path / "transformer").mkdir()  # installed in the folder of that project
    (tmp_path / "transformer" / "__init__.py").touch()
    described = environment.describe_environment()
    assert described["commit"] is None and described["uncommitted_changes"] is None
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    described = environment.describe_environment()
    assert (
        described["commit"] == git("rev-parse", "HEAD")
        and described["uncommitted_changes"] is False
    )
    assert "diff" not in described
    (tmp_path / "my_config.py").touch()  # config.json has what it says
    assert environment.describe_environment()["uncommitted_changes"] is False
    (tmp_path / "transformer" / "new.py").touch()
    described = environment.describe_environment()
    assert described["uncommitted_changes"] is True and described["untracked"] == [
        "transformer/new.py"
    ]
    (tmp_path / "transformer" / "new.py").unlink()
    (tmp_path / "requirements.txt").write_text("jax==2 \n")
    described = environment.describe_environment()
    assert described["uncommitted_changes"] is True
    # The diff makes the changed file from the committed one.
    git("reset", "--hard")
    (tmp_path / "changes.patch").write_text(described["diff"])
    git("apply", "changes.patch")
    assert (tmp_path / "requirements.txt").read_text() == "jax==2 \n"
    (tmp_path / "notes").write_bytes(b"\xff" * environment.MAX_DIFF)
    git("add", "notes")
    diff = environment.describe_environment()["diff"]
    assert diff.startswith("diff --git ") and len(diff) < environment.MAX_DIFF + 100
    assert re.search(r"\n\[cut: the first 100,000 of 100,\d\d\d characters\]\n$", diff)


def test_a_run_that_never_began_is_replaced(tmp_path):
    planned = freeze(BASE | {"tokenizer.vocab_size": 100})
    create_workdir(tmp_path, planned)
    (tmp_path / "tokenizer.model").write_text("100 pieces")
    create_workdir(tmp_path, CONFIG)
    assert open_existing(tmp_path)[1] == CONFIG
    assert not (tmp_path / "tokenizer.model").exists()


def test_a_start_that_never_trained_leaves_its_runs_in_trackers_to_the_next_one(tmp_path):
    workdir = create_workdir(tmp_path, CONFIG)
    workdir.trackers.write_text('{"mlflow": "1"}')
    assert create_workdir(tmp_path, CONFIG).trackers.read_text() == '{"mlflow": "1"}'
    # MLflow changes no parameter of a run.
    assert not create_workdir(
        tmp_path, freeze(BASE | {"tokenizer.vocab_size": 100})
    ).trackers.exists()


def test_a_run_has_begun_once_it_has_a_complete_checkpoint(tmp_path):
    workdir = create_workdir(tmp_path, CONFIG)
    (workdir.checkpoints / "10.orbax-checkpoint-tmp").mkdir(parents=True)
    assert not workdir.has_begun()
    (workdir.checkpoints / "10").mkdir()
    assert workdir.has_begun()


def test_unusable_workdirs_are_refused(begun, tmp_path):
    assert "no such folder; did you mean" in refusal(open_existing, begun.path.with_name("fist"))
    assert "config.json: No such file or directory; name the workdir of a run" in refusal(
        open_existing, tmp_path
    )
    begun.config.write_text("{")
    assert "config.json: damaged (" in refusal(open_existing, begun.path)


def test_a_file_is_refused_as_a_workdir(tmp_path):
    (tmp_path / "file").write_text("")
    assert f"cannot be made (File exists: {tmp_path / 'file'})" in refusal(
        create_workdir, tmp_path / "file", CONFIG
    )
    assert "cannot be made (Not a directory: " in refusal(
        create_workdir, tmp_path / "file" / "inside", CONFIG
    )
    assert "no such folder" in refusal(open_existing, tmp_path / "file")


def test_a_run_can_be_marked_complete(begun):
    assert not begun.is_complete()
    begun.mark_complete(100)
    assert begun.is_complete()
    assert json.loads(begun.complete.read_text()) == {"step": 100}


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        files.write_json(path, {"a": float("nan")})
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "\ud800")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_workdir_in_use_is_refused_naming_its_process(tmp_path):
    with lock_workdir(tmp_path / "run"):
        message = refusal(lambda: lock_workdir(tmp_path / "run").__enter__())
        assert f"--workdir={tmp_path / 'run'}: is in use by process {os.getpid()} on " in message
    with lock_workdir(tmp_path / "run"):
        pass


def test_a_refused_run_leaves_no_new_workdir_and_nothing_of_an_old_one_is_lost(tmp_path, begun):
    def refuse(path: Path) -> None:
        with lock_workdir(path):
            create_workdir(path, CONFIG)
            raise UserError("no data")

    refusal(refuse, tmp_path / "new" / "run")
    assert not (tmp_path / "new" / "run").exists()
    (tmp_path / "empty").mkdir()
    refusal(refuse, tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists()
    refusal(refuse, begun.path)
    assert begun.has_begun()


def test_files_of_the_user_stay_in_a_new_workdir_of_a_refused_run(tmp_path):
    def refuse() -> None:
        with lock_workdir(tmp_path / "run"):
            create_workdir(tmp_path / "run", CONFIG)
            (tmp_path / "run" / "notes.txt").write_text("mine")
            raise UserError("no data")

    refusal(refuse)
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "notes.txt"]


@pytest.mark.parametrize("makes_new", [False, True])
def test_a_run_whose_workdir_is_renamed_ends_in_one_line(tmp_path, makes_new):
    def rename() -> None:
        with (
            lock_workdir(tmp_path / "run"),
            Recorder(Workdir(tmp_path / "run"), tiny.tiny_config()) as recorder,
        ):
            recorder.on_start(Progress())
            (tmp_path / "run").rename(tmp_path / "renamed")
            if makes_new:
                (tmp_path / "run").mkdir()
            recorder.write("train", Progress(), {})

    assert "was renamed, deleted or replaced" in refusal(rename)
    assert makes_new == (tmp_path / "run").exists() and not any(tmp_path.glob("run/*"))


def test_a_run_that_fails_before_its_first_line_keeps_its_workdir(tmp_path):
    def diverge() -> None:
        with (
            lock_workdir(tmp_path / "run"),
            Recorder(Workdir(tmp_path / "run"), tiny.tiny_config()) as recorder,
        ):
            recorder.on_start(Progress())
            raise UserError("training diverged")

    refusal(diverge)
    assert (tmp_path / "run").exists()


def test_training_refuses_a_workdir_in_use_without_changing_it(tmp_path, capsys):
    with lock_workdir(tmp_path / "run"):
        before = contents(tmp_path)
        assert tiny.run(tmp_path / "run", training__steps=8) == 2
        assert contents(tmp_path) == before
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(
        f"error: --workdir={tmp_path / 'run'}: is in use by process {os.getpid()} on "
    )


def test_the_lock_of_a_dead_process_is_released(tmp_path):
    script = "import sys, pathlib, time; from transformer import workdir\n"
    script += (
        "with workdir.lock_workdir(pathlib.Path(sys.argv[1])): print(1, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"1\n"
        assert f"is in use by process {process.pid} on" in refusal(
            lambda: lock_workdir(tmp_path).__enter__()
        )
    finally:
        process.kill()
        process.communicate()
    with lock_workdir(tmp_path):
        pass


@pytest.mark.parametrize(
    "name", ["config.json", "data.json", "tokenizer.model", "log.txt", "evaluations", ".lock"]
)
def test_a_folder_with_a_file_of_the_user_that_a_run_would_write_is_refused_without_changing_it(
    tmp_path, name
):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_text('{"model_type": "bert"}')
    (folder / "tokenizer_news.model").write_text("mine")
    before = contents(tmp_path)
    for plan in ([], ["--plan"]):
        argv = [
            *tiny.flags(folder),
            *plan,
            f"--config.tokenizer.model_file={folder}/tokenizer.model",
        ]
        code = cli.execute(train.make_parser(), train.main, argv)
        assert code == 2 and contents(tmp_path) == before


def test_other_files_of_the_user_stay_in_a_workdir(tmp_path):
    (tmp_path / "tokenizer_news.model").write_text("mine")
    for _ in range(2):  # the second replaces a start that never began
        with lock_workdir(tmp_path):
            create_workdir(tmp_path, CONFIG)
    assert (tmp_path / "tokenizer_news.model").read_text() == "mine"


def test_a_plan_works_on_links_to_the_files_of_a_run(begun):
    before = contents(begun.path)
    with linked_workdir(begun.path) as path:
        files.write_text(path / "metrics.jsonl", "changed")
        assert Workdir(path).has_begun() and open_existing(path)[1] == CONFIG
    assert contents(begun.path) == before and not path.exists()


def test_the_errors_of_a_plan_name_the_workdir(tmp_path):
    def refuse() -> None:
        with linked_workdir(tmp_path / "run") as path:
            raise UserError(f"{path}/config.json: no")

    assert refusal(refuse) == f"{tmp_path}/run/config.json: no" and not (tmp_path / "run").exists()


def test_recorded_packages_are_requirements():
    files = [REPOSITORY / "requirements.txt", REPOSITORY / "requirements" / "data.txt"]
    lines = "".join(file.read_text() for file in files)
    required = set(re.findall(r"^([\w-]+)==", lines, re.MULTILINE))
    assert set(environment.PACKAGES) - required == {"jaxlib"}  # which jax requires


def test_the_environment_is_described_without_the_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    described = environment.describe_environment()
    assert described["packages"]["jax"] == jax.__version__ and described["commit"] is None


def test_a_package_that_is_not_installed_has_no_version():
    assert environment.installed_version("a-package-of-an-extra") is None
