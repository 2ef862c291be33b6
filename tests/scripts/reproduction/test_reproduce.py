"""The command `scripts.reproduce`, with runs that train nothing, and with real ones in the slow
suite.
"""

import json
import re
from pathlib import Path

import pytest

from configs import table3_mini
from configs.table3 import ROWS
from scripts import reproduce
from scripts.reproduction import rows
from scripts.sweeping import running
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.tasks import TrainingTask
from tests.checkpoints.workdirs import run
from tests.scripts.tiny_sweep import error
from tests.training.tiny import RUN

MINI = "mini"


def pretend(study, task, jobs, start=None, until=None) -> None:
    """Completes trials without training: BLEU is 20, and a tenth more for each seed and head."""
    for number, trial in enumerate(study.sweep.trials[:until]):
        workdir = task.folder.workdir(number)
        workdir.mkdir(parents=True, exist_ok=True)
        bleu = 20 + (trial["seed"] + trial.get("model.num_heads", 8)) / 10
        valid = {
            "step": 1,
            "split": "valid",
            "perplexity": 10.0 + trial["seed"],
            "bleu": bleu,
            "loss": 1.0,
        }
        worse = valid | {"step": 2, "bleu": bleu - 5, "perplexity": 1.0}
        lines = [{"step": 1, "split": "train", "seconds": 60.0}, valid, worse]
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (workdir / "complete.json").touch()
    if until:
        raise KeyboardInterrupt("interrupted")


def command(folder: Path, *flags: str) -> list[str]:
    return [
        "table3",
        "--scale=mini",
        f"--config.data.path={folder}",
        f"--output={folder / 'out'}",
        *flags,
    ]


def cells(text: str) -> dict[str, list[str]]:
    """Returns the cells of each row of the tables by its first cell."""
    return {
        line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:]
        for line in text.splitlines()
        if "|" in line
    }


@pytest.mark.slow
def test_an_interrupted_table_continues_and_more_seeds_are_added(tmp_path, capsys, monkeypatch):
    chosen = "--rows=A_h1,A_h4"
    monkeypatch.setattr(running, "run_trials", lambda *arguments: pretend(*arguments, until=3))
    assert run(reproduce, *command(tmp_path, chosen)) == 130
    assert run(reproduce, *command(tmp_path, chosen, "--report")) == 0
    table = capsys.readouterr().out
    assert "3 of 6 runs, 3 minutes" in table  # each row once, and no second seed
    assert [cells(table)[row][10:14] for row in ("base", "A_h1", "A_h4")] == [
        ["10.00", "20.80", "0.89", "1"],
        ["10.00", "20.10", "0.89", "1"],
        ["10.00", "20.40", "0.89", "1"],
    ]
    assert cells(table)["(A) several heads are better than one"][:4] == [
        "BLEU",
        "+0.90",
        "+0.70",
        "",
    ]

    monkeypatch.setattr(running, "run_trials", pretend)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table3: begin -->\nobsolete\n<!-- table3: end -->\nafter\n")
    assert run(reproduce, *command(tmp_path, chosen, f"--readme={page}")) == 0
    assert capsys.readouterr().out == ""
    assert cells(page.read_text())["A_h1"][10:12] == ["10.50 ± 0.71", "20.15 ± 0.07"]
    # The spread 0.1 / sqrt(2) of all rows with two seeds is the error too, with three degrees of
    # freedom.
    assert cells(page.read_text())["(A) several heads are better than one"][2:] == [
        "+0.70 ± 0.07",
        "0.001",
        "yes |",
    ]
    assert page.read_text().startswith("before\n<!--") and "obsolete" not in page.read_text()

    assert run(reproduce, *command(tmp_path, chosen, "--seeds=4")) == 0
    assert "12 of 12 runs" in capsys.readouterr().out
    assert run(reproduce, *command(tmp_path, "--rows=A_h16")) == 2
    assert "holds another sweep" in error(capsys)


def test_every_row_of_a_scale_is_trained_once_before_its_second_seed():
    configs = rows.read_rows(MINI, None, [])
    assert list(configs) == list(table3_mini.ROWS) and set(configs) < set(ROWS)
    trials = rows.make_trials(configs, 3)
    assert [trial["seed"] for trial in trials] == [0] * 8 + [1] * 8 + [2] * 8
    assert list(rows.read_rows("paper", None, [])) == list(ROWS)


def test_a_report_has_the_settings_that_were_trained():
    configs = rows.read_rows(MINI, "A_h4", [])
    task = TrainingTask(configs["base"], SweepFolder(Path())).identity | {"training.steps": 7700}
    recorded = rows.recorded_rows(configs, json.loads(json.dumps(task)))
    assert {config.training.steps for config in recorded.values()} == {7700}
    assert [config.model.num_heads for config in recorded.values()] == [8, 4]


def test_the_miniature_keeps_the_relations_between_rows():
    mini, paper = (rows.read_rows(scale, ",".join(ROWS), []) for scale in ("mini", "paper"))
    for row in ROWS:
        expected = {}
        for key, value in rows.changes(paper, row).items():
            if key != "training.steps":
                is_width = re.fullmatch(r"model\.d_\w+", key)
                expected[key] = value // 8 if is_width else value
        assert rows.changes(mini, row) == expected, row


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rows=A_h3"], "there is no row A_h3; did you mean A_h"),
        (["--rows=A_h3"], f"the rows are {', '.join(ROWS)}"),
        (["--seeds=0"], "--seeds: 0: must be at least 1"),
        (["--config.model.num_heads=7"], "num_heads=7"),
        (["--readme=nowhere.md"], "--readme=nowhere.md: no such file"),
        (["--report"], "sweep.json: no such file"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, flags, message):
    given = {flag.partition("=")[0] for flag in flags}
    defaults = [flag for flag in command(tmp_path) if flag.partition("=")[0] not in given]
    assert run(reproduce, *defaults, *flags) == 2
    assert message in error(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_real_runs_fill_the_table(tmp_path, capsys):
    settings = [
        f"--config.{setting}"
        for setting in RUN.split()
        if "d_model" not in setting and "num_heads" not in setting
    ]
    settings += [
        f"--config.data.cache_dir={tmp_path / 'cache'}",
        "--config.batch.plan=buckets",
        "--config.training.steps=4",
    ]
    settings += [
        "--config.training.eval_bleu=true",
        "--config.training.eval_sentences=4",
        "--config.batch.plan=buckets",
    ]
    last = {flag.partition("=")[0]: flag for flag in settings}  # each flag once
    flags = ["--rows=D_dropout0", "--seeds=2", *last.values()]
    assert run(reproduce, *command(tmp_path, *flags)) == 0
    table = capsys.readouterr().out
    assert "4 of 4 runs" in table and cells(table)["D_dropout0"][13] == "2"
