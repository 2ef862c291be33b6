"""Continuing runs with more steps or other settings: refusals, records, and equal results."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.checkpoints.saved_runs import refusal, save_run
from tests.training.tiny import at_step, flags, record, remove_layers, run
from transformer import train
from transformer.checkpoints.restore import read_arrays
from transformer.config import cli, loading
from transformer.run import checks
from transformer.run.preparation import create_or_check, open_workdir
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.progress import Progress
from transformer.workdir import Workdir, create_workdir


def make_config(**changes):
    settings = {
        "training__steps": 8,
        "training__eval_every": 4,
        "optimizer__warmup_steps": 4,
    } | changes
    overrides = [(key.replace("__", "."), str(value)) for key, value in settings.items()]
    return loading.load_file("configs/base.py", overrides)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Path:
    """Returns the workdir of a complete run of eight steps, whose best validation was the first of
    two.
    """
    workdir = create_workdir(tmp_path_factory.mktemp("ended") / "run", make_config())
    save_run(workdir.path, 5, {4: 2.0, 8: 1.0})
    workdir.mark_complete(8)
    return workdir.path


@pytest.fixture
def workdir(ended, tmp_path) -> Workdir:
    """Returns a copy of the complete run."""
    return Workdir(shutil.copytree(ended, tmp_path / "run"))


def later_starts(workdir: Workdir) -> list[dict]:
    return json.loads(workdir.environment.read_text())["resumed"]


@pytest.mark.slow
def test_settings_that_do_not_change_the_result_may_change_and_are_recorded(workdir, caplog):
    workdir.complete.unlink()
    changed = make_config(
        training__log_every=7, mesh__data=1, data__path="elsewhere", checkpoint__keep=2
    )
    checks.check_continuation(workdir, changed)
    with caplog.at_level("INFO"):
        checks.record_start(workdir, changed)
    assert loading.load(workdir.path) == changed
    (start,) = later_starts(workdir)
    assert start["step"] == 8 and start["changes"] == {
        "training.log_every": [100, 7],
        "mesh.data": [-1, 1],
        "data.path": ["", "elsewhere"],
        "checkpoint.keep": [5, 2],
    }
    (line,) = caplog.messages
    assert (
        line.startswith("Settings that change at step 8: ")
        and "training.log_every: 100 -> 7" in line
    )
    checks.record_start(workdir, changed)
    assert later_starts(workdir)[1]["changes"] == {} and len(caplog.messages) == 1


def test_another_commit_or_dtype_gives_a_warning(workdir, caplog):
    record = json.loads(workdir.environment.read_text())
    workdir.environment.write_text(json.dumps(record | {"commit": "abc", "auto_dtype": "float16"}))
    checks.record_start(workdir, make_config(model__dtype="float32"))
    (line,) = [message for message in caplog.messages if message.startswith("Since")]
    assert line == f"Since the last start, commit has changed from abc to {record['commit']}."
    workdir.environment.write_text(json.dumps(record | {"auto_dtype": "float16"}))
    checks.record_start(workdir, make_config(model__dtype="auto"))
    line = [message for message in caplog.messages if message.startswith("Since")][-1]
    assert (
        line
        == f"Since the last start, auto_dtype has changed from float16 to {record['auto_dtype']}."
    )


@pytest.mark.parametrize(
    "key", ["training__eval_sentences", "training__eval_beam_size", "training__max_skipped"]
)
def test_settings_that_choose_the_best_checkpoint_or_the_order_of_the_data_may_not_change(
    workdir, key
):
    assert key.replace("__", ".") in refusal(
        checks.check_continuation, workdir, make_config(**{key: 5})
    )


def test_another_config_is_refused_without_changing_anything(workdir):
    before = contents(workdir.path)
    message = refusal(
        checks.check_continuation, workdir, make_config(model__d_model=256, model__d_k=32)
    )
    assert f"--workdir={workdir.path}: " in message and f"--config={workdir.config}" in message
    assert "model.d_k: None -> 32" in message and "model.d_model: 512 -> 256" in message
    assert contents(workdir.path) == before


def test_an_open_quotation_mark_is_an_error_before_the_run_is_compared(workdir):
    config = make_config(data__mixture=("label=a path=John's",))
    with pytest.raises(UserError, match="open quotation mark"), open_workdir(workdir.path, config):
        pass


def test_the_files_of_a_mixture_may_move_but_not_change(tmp_path):
    config = lambda text: make_config(data__mixture=(text, "label=b"))  # noqa: E731
    workdir = create_workdir(tmp_path / "run", config("label=a path=/scratch/1/a weight=2"))
    checks.check_continuation(workdir, config("label=a path=/scratch/2/a weight=2"))
    assert "data.mixture" in refusal(
        checks.check_continuation, workdir, config("label=a path=/scratch/2/a weight=3")
    )


def test_files_with_spaces_may_move_too(tmp_path):
    config = lambda path: make_config(data__mixture=(f"label=a path='{path}'", "label=b"))  # noqa: E731
    workdir = create_workdir(tmp_path / "run", config("old data dir"))
    checks.check_continuation(workdir, config("new place"))


def test_a_complete_run_that_starts_again_records_no_start(workdir):
    record = workdir.environment.read_bytes()
    checks.record_start(workdir, make_config())
    assert workdir.is_complete() and workdir.environment.read_bytes() == record


@pytest.mark.parametrize("has_metrics", [False, True])
def test_a_complete_run_without_its_checkpoints_trains_again(workdir, has_metrics):
    shutil.rmtree(workdir.checkpoints)
    workdir.metrics.unlink(missing_ok=True)
    if has_metrics:
        workdir.metrics.touch()
    create_or_check(workdir, make_config(), None)
    checks.record_start(workdir, make_config())
    assert not workdir.is_complete()


def test_a_long_difference_is_shortened(workdir):
    changes = {
        f"model__{key}": 0.5 for key in ("dropout", "attention_dropout", "activation_dropout")
    }
    changes |= {f"optimizer__{key}": 0.5 for key in ("beta1", "beta2", "epsilon", "clip_norm")}
    assert "; optimizer.beta2: 0.98 -> 0.5 and 2 more)" in refusal(
        checks.check_continuation, workdir, make_config(**changes)
    )


def test_a_length_can_only_be_changed_by_extending(workdir):
    message = refusal(checks.check_continuation, workdir, make_config(training__steps=12))
    assert (
        "(training.steps: 8 -> 12); extend it with --extend=12, resume it with --config=" in message
    )
    assert "--extend" not in refusal(
        checks.check_continuation, workdir, make_config(training__steps=6)
    )
    assert "--extend" not in refusal(
        checks.check_continuation, workdir, make_config(training__steps=12, seed=1)
    )


def test_an_extension_cannot_remove_steps(workdir, monkeypatch):
    for extend in (-1, 0, 7):
        message = refusal(checks.check_continuation, workdir, make_config(), extend)
        assert (
            message
            == f"--extend={extend}: this run has done 8 of 8 steps; name at least 8, or more to "
            "extend it"
        )
    # a command that is repeated finds the run complete
    checks.check_continuation(workdir, make_config(), 8)
    checks.check_continuation(workdir, make_config(training__steps=9), 9)
    monkeypatch.setattr(
        checks, "_last_progress", lambda workdir: Progress(step=4, validated_step=4)
    )
    message = refusal(checks.check_continuation, workdir, make_config(), 6)
    assert "has done 4 of 8 steps; name at least 8, or more to extend it" in message
    # the command that extended an interrupted run resumes it
    checks.check_continuation(workdir, make_config(), 8)


def test_a_run_that_lost_patience_is_extended_only_with_more_patience(workdir):
    impatient = {"training__steps": 12, "training__patience": 1}
    message = refusal(checks.check_continuation, workdir, make_config(**impatient), 12)
    assert (
        "config.training.patience=1: 1 validations in a row have not improved the score" in message
    )
    checks.check_continuation(workdir, make_config(**impatient | {"training__patience": 2}), 12)
    # More patience without more steps continues a run that ended early.
    loading.save(make_config(training__steps=12, training__patience=1), workdir.path)
    checks.record_start(workdir, make_config(training__steps=12, training__patience=1))
    assert workdir.is_complete()
    checks.record_start(workdir, make_config(training__steps=12, training__patience=0))
    assert not workdir.is_complete()


def test_the_first_command_continues_an_extension_with_its_patience(workdir):
    impatient = make_config(training__patience=1)
    loading.save(impatient, workdir.path)
    extended = make_config(training__steps=12)
    checks.check_continuation(workdir, extended, 12)
    checks.record_start(workdir, extended)
    with open_workdir(workdir.path, impatient) as (_, config):
        assert (config.training.steps, config.training.patience) == (12, 0)


class Killed(Exception):
    pass


@pytest.mark.first_case
@pytest.mark.parametrize(("writes", "is_extended"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_kill_during_the_transition_leaves_a_run_that_is_complete_or_extended(
    workdir, monkeypatch, writes, is_extended
):
    """The writes are environment.json and config.json, and the deletion of complete.json."""
    longer, left = make_config(training__steps=12), [writes]

    def unless_killed(function):
        def call(*arguments):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_json", unless_killed(files.write_json))
        # Writing a file also unlinks, but always with `missing_ok`.
        killed, unlink = unless_killed(Path.unlink), Path.unlink
        patch.setattr(
            Path,
            "unlink",
            lambda path, **options: unlink(path, **options) if options else killed(path),
        )
        try:
            checks.record_start(workdir, longer)
        except Killed:
            assert writes < 3
    # The original command continues what there is.
    checks.check_continuation(workdir, make_config())
    length = loading.load(workdir.path).training.steps
    assert length == (12 if is_extended else 8)
    checks.record_start(workdir, make_config(training__steps=length))
    assert workdir.is_complete() != is_extended
    # The extension can be repeated, and is then recorded.
    checks.check_continuation(workdir, longer, 12)
    checks.record_start(workdir, longer)
    assert not workdir.is_complete() and loading.load(workdir.path) == longer
    checks.check_continuation(workdir, make_config())
    (*_, extension) = [start for start in later_starts(workdir) if start["changes"]]
    assert extension["changes"] == {"training.steps": [8, 12]} and extension["step"] == 8


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """Returns the workdir of an uninterrupted run of ten steps."""
    path = tmp_path_factory.mktemp("straight") / "run"
    with pytest.MonkeyPatch.context() as patch:
        remove_layers(patch)
        assert run(path, training__steps=10, training__ema_decay=0.9) == 0
    return path


def extend(workdir: Path, *argv: str) -> int:
    return cli.execute(train.make_parser(), train.main, [f"--workdir={workdir}", *argv])


@pytest.mark.slow
def test_an_extended_run_gives_the_results_of_a_longer_one_in_spite_of_kills_and_changed_settings(
    straight, tmp_path, monkeypatch, capsys
):
    def crash() -> None:
        raise ZeroDivisionError("a crash")

    remove_layers(monkeypatch)
    path = tmp_path / "run"
    # The last step is no multiple of any interval.
    short = {
        "training__steps": 7,
        "training__ema_decay": 0.9,
        "data__cache_dir": straight.parent / "cache",
    }
    assert run(path, **short) == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        at_step(patch, 9, crash)
        assert extend(path, "--extend=10") == 1
    assert "Settings that change at step 7: training.steps: 7 -> 10" in capsys.readouterr().err
    assert not (path / "complete.json").exists()
    # The original command, with other intervals.
    assert run(path, **short, training__log_every=5, checkpoint__every=4, checkpoint__keep=1) == 0
    errors = capsys.readouterr().err
    assert "This run has been extended from 7 to 10 steps." in errors
    assert "Settings that change at step 9: " in errors and "training.log_every: 2 -> 5" in errors
    assert json.loads((path / "complete.json").read_text()) == {"step": 10}
    for item in ("parameters", "optimizer", "ema_parameters"):
        trees = (read_arrays(Workdir(each).checkpoints / "10", item) for each in (path, straight))
        jax.tree.map(np.testing.assert_array_equal, *trees)
    lines, expected = (
        {(line["split"], line["step"]): line for line in record(each)} for each in (path, straight)
    )
    assert [step for split, step in lines if split == "train"] == [2, 4, 6, 7, 8, 10]
    differing = {key for key in lines if key not in expected or lines[key] != expected[key]}
    # Validated and logged at the old last step; the window of the next line is shorter.
    assert differing == {("train", 7), ("valid", 7), ("train", 8)}
    assert len(later_starts(Workdir(path))) == 2


def test_wrong_flags_are_refused_in_one_line(workdir, tmp_path, capsys):
    def says(*argv: str) -> str:
        before = contents(tmp_path)
        assert cli.execute(train.make_parser(), train.main, argv) == 2
        assert contents(tmp_path) == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    here = f"--workdir={workdir.path}"
    assert "--config: is required, except with --extend" in says(here)
    assert "--extend=7: this run has done 8 of 8 steps" in says(here, "--extend=7")
    assert "--extend: invalid int value: 'more'" in says(here, "--extend=more")
    assert "--extend=9: becomes config.training.steps" in says(
        here, "--extend=9", "--config.training.steps=9"
    )
    assert "model.d_ff: 2048 -> 32" in says(here, "--extend=9", "--config.model.d_ff=32")
    assert "no such folder" in says(f"--workdir={tmp_path / 'none'}", "--extend=9")
    assert f"--workdir={workdir.path}: holds a run of another config" in says(*flags(workdir.path))
    # The run's own configuration with another value of a fixed key: the same file as --config is no
    # advice.
    line = says(here, f"--config={workdir.config}", "--config.batch.tokens=8192")
    assert " -> 8192" in line and "without these keys, which are fixed for the run" in line
    assert line.endswith(
        f"in another --workdir, from this one with --config.training.init_from={workdir.path}"
    )
