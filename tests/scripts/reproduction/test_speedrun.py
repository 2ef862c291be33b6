"""The race: what an entry must be, its test, its records, and the table of entries.

Runs are made without training.
"""

import math
import os
import shutil
from pathlib import Path

import pytest

from scripts import reproduce
from scripts.reproduction import speedrun
from scripts.results.records import digest_texts, read_record_file, write_record
from tests.checkpoints.workdirs import run
from tests.scripts.evaluated import SENTENCES, add_evaluation
from tests.scripts.recorded import PAIRS, complete_run
from tests.scripts.tiny_sweep import error
from transformer.config import loading
from transformer.support import files
from transformer.support.environment import describe_environment

ENTRY = """
from configs import base

def get_config():
    config = base.get_config()
    config.data.source = "text"
    config.data.name = "tiny"
    config.data.valid_split = "valid"
    config.training.note = "one change"
    {change}
    return config

def get_average():
    return 3
"""
COMMITTED = {"commit": "0123456789" * 4, "uncommitted_changes": False}
SCORES = [41.9, 42.1, 42.0, 41.8, 42.2]  # mean 42.0, variance 0.025


@pytest.fixture
def race(tmp_path, monkeypatch):
    """Returns a function that runs an entry, whose commands make workdirs without training."""
    digest = digest_texts((source.encode(), target.encode()) for source, target in PAIRS)
    monkeypatch.setattr(speedrun, "DATA", {"train": digest, "valid": digest})
    monkeypatch.setattr(speedrun, "git", lambda *_: "")
    monkeypatch.setattr(speedrun, "ENTRIES", tmp_path)
    monkeypatch.setattr(speedrun, "device_kinds", lambda: ["cpu"])
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    calls = []

    def output_of(name, module, flags, log):
        values = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        workdir = Path(values["workdir"])
        calls.append((module, workdir.name))
        if module == "transformer.train":
            config = loading.load_file(values["config"], [("seed", values["config.seed"])])
            settings = {"training__note": config.training.note}
            settings |= {"model__dropout": str(config.model.dropout), "seed": str(config.seed)}
            complete_run(workdir, evaluate=False, **settings)
            environment = describe_environment() | race.environments.get(workdir.name, COMMITTED)
            files.write_json(workdir / "environment.json", environment)
            return ""
        assert (values["split"], values["checkpoint"], values["average"]) == ("valid", "last", "3")
        score = 30.0 if workdir.name == "beside" else race.scores[int(workdir.name[-1])]
        saved = {"bleu_lowercase_tokenized": score, "averaged": 3}
        path = add_evaluation(workdir, "valid-step9-average3", SENTENCES, SENTENCES, **saved)
        return f'{{"hypotheses": "{path.with_suffix("")}.hypotheses.txt"}}'

    monkeypatch.setattr(speedrun.child, "output_of", output_of)
    complete_run(tmp_path / "runs" / "data-maker")  # writes the texts of runs/data

    def race(*flags: str, change: str = "", name: str = "faster") -> int:
        entry = tmp_path / f"{name}.py"
        entry.write_text(ENTRY.format(change=change))
        defaults = [f"--entry={entry}", f"--output={tmp_path / 'runs'}"]
        defaults += [f"--records={tmp_path / 'records'}"]
        defaults += [f"--config.data.path={tmp_path / 'runs' / 'data'}"]
        given = {flag.partition("=")[0] for flag in flags}
        defaults = [flag for flag in defaults if flag.partition("=")[0] not in given]
        return run(reproduce, "speedrun", *defaults, *flags)

    race.scores = SCORES
    race.environments = {}
    race.calls = calls
    return race


def test_an_entry_is_trained_tested_and_recorded(race, tmp_path, capsys):
    other = tmp_path / "slower.py"
    other.write_text(ENTRY.format(change="config.model.dropout = 0.3"))
    assert race(f"--beside={other}") == 0
    names = ["beside", *(f"seed{seed}" for seed in range(5))]
    modules = ("transformer.train", "transformer.evaluate")
    assert race.calls == [(module, name) for name in names for module in modules]

    records = tmp_path / "records" / "faster"
    assert sorted(path.stem for path in records.iterdir()) == names
    content = read_record_file(records / "seed3.json").content
    assert content["config"]["training.note"] == "one change" and content["seed"] == 3
    assert [evaluation["averaged"] for evaluation in content["evaluations"]] == [3]

    # t = (42 - 41) / sqrt(0.025 / 5) = 14.14. With four degrees of freedom the tail of Student's
    # distribution is 1/2 - 3/8 (u - u^3 / 3) ..., here by its integral.
    t = 1 / math.sqrt(0.025 / 5)
    u = t / math.sqrt(4 + t * t)
    p_value = 0.5 - 0.75 * (u - u**3 / 3)
    printed = capsys.readouterr().out
    cells = [cell.strip() for cell in printed.splitlines()[-1].strip("|").split("|")]
    # 130 seconds of training have 10 seconds of validations.
    assert cells[:6] == ["two CPU cores", "faster", "2.00", "2.00", "42.00 ± 0.16", "5"]
    assert float(cells[6]) == pytest.approx(p_value, rel=0.1) and cells[9] == "one change"
    assert speedrun.make_table(tmp_path / "records") == printed

    # Complete runs are not trained again.
    race.calls.clear()
    assert race(f"--beside={other}") == 0
    assert race.calls == [("transformer.evaluate", name) for name in names]


def test_published_records_are_found_before_any_run(race, tmp_path, capsys):
    assert race() == 0
    race.calls.clear()
    capsys.readouterr()
    assert race(f"--output={tmp_path / 'again'}") == 2 and race.calls == []
    assert f"--records={tmp_path / 'records'}: has faster; name another folder" in error(capsys)


def test_a_mean_that_does_not_show_the_target_has_no_record(race, tmp_path, capsys):
    race.scores = [41.0, 41.3, 41.4, 40.8, 41.2]
    assert race() == 2
    captured = capsys.readouterr()
    message = "faster: a mean BLEU of 41.14 ± 0.24 after 2.00 minutes does not show 41.0 (p=0.1"
    assert message in captured.err and not (tmp_path / "records").exists()


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        ("", ["--seeds=4"], "--seeds=4: an entry has at least 5 seeds"),
        ("", ["--entry=configs/speedrun/nothing.py"], "--entry=configs/speedrun/nothing.py: no"),
        ("", ["--config.model.dropout=0.2"], "model.dropout=0.2: an entry is a whole config"),
        ("", ["--scale=mini"], "--scale=mini: speedrun has no such flag"),
        ("config.training.patience = 2", [], "training.patience=2: must be 0 in an entry"),
        ("config.training.init_from = 'x'", [], "training.init_from=x: must be '' in an entry"),
        ("config.decoding.rerank = 'x:1'", [], "decoding.rerank=x:1: must be '' in an entry"),
        ("config.data.mixture = ('label=a',)", [], "must be () in an entry"),
        ("config.training.note = ''", [], "training.note is empty; describe the change"),
        ("", ["--entry=configs/multi30k.py"], "--entry=configs/multi30k.py: an entry is a file in"),
        ("config.data.train_pairs = 2", [], "an entry of the race whose data differ: train has"),
    ],
)
def test_mistakes_are_one_line_before_any_run(race, capsys, change, flags, message):
    assert race(*flags, change=change) == 2 and race.calls == []
    assert message in error(capsys)


def test_a_changed_tree_and_compiler_flags_are_refused(race, monkeypatch, capsys):
    monkeypatch.setattr(speedrun, "git", lambda *_: " M transformer/train.py\n")
    assert race() == 2
    assert "M transformer/train.py: an entry is the code of a commit" in error(capsys)
    monkeypatch.setenv("XLA_FLAGS", "--xla_fast")
    assert race() == 2
    assert "XLA_FLAGS=--xla_fast: an entry has no compiler flags" in error(capsys)


def test_the_folder_of_another_entry_is_refused(race, capsys):
    assert race() == 0
    assert race(change="config.model.dropout = 0.2", name="other") == 2
    assert "holds a run of another entry; name another --output" in capsys.readouterr().err


def test_a_machine_of_no_track_is_refused_before_any_run(race, monkeypatch, capsys):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert race() == 2 and race.calls == []
    message = "this machine: has the devices cpu and 16 CPU cores; the tracks are two"
    assert message in error(capsys)
    monkeypatch.setattr(speedrun, "device_kinds", lambda: ["gpu", "gpu"])
    assert race() == 2 and race.calls == []
    assert "this machine: has the devices gpu, gpu and 16 CPU" in error(capsys)


def test_a_child_lists_the_devices(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    assert speedrun.device_kinds() == ["cpu", "cpu"]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"commit": "a" * 40}, "faster: has runs of the code 012345678, aaaaaaaaa; an entry is"),
        ({"commit": None}, "has runs of the code 012345678, unknown; an entry"),
        ({"uncommitted_changes": True}, "has runs of the code 012345678, 012345678+; an entry"),
    ],
)
def test_the_runs_of_an_entry_have_one_commit(race, tmp_path, capsys, environment, message):
    race.environments["seed2"] = COMMITTED | environment
    assert race() == 2 and not (tmp_path / "records").exists()
    assert message in error(capsys)


def test_a_commit_that_git_cannot_tell_is_refused(race, monkeypatch, capsys):
    monkeypatch.setattr(speedrun, "git", lambda *_: None)
    assert race() == 2 and race.calls == []
    assert "git status failed: an entry is the code of a commit" in error(capsys)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["config"].update({"training.note": ""}), "note is empty"),
        (
            lambda content: content["config"].update({"decoding.rerank": "x:1"}),
            "decoding.rerank=x:1: must be ''",
        ),
        (lambda content: content["environment"].pop("processor"), "has no processor's name"),
        (lambda content: content["evaluations"][0].update({speedrun.METRIC: 39.0}), "not show"),
    ],
)
def test_a_table_refuses_records_that_break_a_rule(race, tmp_path, change, message):
    assert race() == 0
    folder = tmp_path / "records" / "faster"
    content = read_record_file(folder / "seed1.json").content
    change(content)
    (folder / "seed1.json").unlink()
    write_record(folder, content)
    with pytest.raises(speedrun.UserError, match=message):
        speedrun.make_table(tmp_path / "records")


def test_a_table_needs_all_seeds_and_the_data_of_the_race(race, tmp_path, monkeypatch):
    assert race() == 0
    records = tmp_path / "records"
    monkeypatch.setattr(speedrun, "DATA", speedrun.DATA | {"valid": "0" * 64})
    with pytest.raises(speedrun.UserError, match="seed0.json: an entry of the race whose data"):
        speedrun.make_table(records)
    monkeypatch.setattr(speedrun, "check_data", lambda *_: None)
    (records / "faster" / "seed2.json").unlink()
    with pytest.raises(speedrun.UserError, match="faster: has records of 4 seeds, must have at"):
        speedrun.make_table(records)


def test_entries_come_by_track_and_time(race, tmp_path, monkeypatch):
    assert race(name="slow") == 0
    monkeypatch.setattr(speedrun, "minutes", lambda run: 1.5 if "quick" in str(run.path) else 10.0)
    (tmp_path / "records" / "slow").rename(tmp_path / "records" / "a-slow")
    shutil.copytree(tmp_path / "records" / "a-slow", tmp_path / "records" / "quick")
    lines = speedrun.make_table(tmp_path / "records").splitlines()[2:]
    assert [line.split(" | ")[1:3] for line in lines] == [["quick", "1.50"], ["a-slow", "10.00"]]


def test_the_baseline_is_an_entry_with_the_last_checkpoints():
    path = Path("configs/speedrun/baseline.py")
    config = loading.load_file(str(path), [])
    average = loading.call_function(path, "get_average")
    assert config.checkpoint.keep >= average and config.training.note
    values = speedrun.flatten(config)
    assert all(values[key] == required for key, required in speedrun.REQUIRED.items())
