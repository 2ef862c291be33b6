"""scripts.reproduce table4, with runs that train nothing and parse each sentence as one bracket."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import reproduce, translate_corpus
from scripts.reproduction import table4
from scripts.sweeping import running
from tests.checkpoints.workdirs import run
from tests.decoding.trees.grammar import random_treebank
from tests.scripts.evaluated import add_evaluation, make_run
from transformer import evaluate
from transformer.config import loading
from transformer.workdir import Workdir

TREES = ["(S XX XX )S"]
F1 = {"gold": 80.0, "silver": 84.0}


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """Replaces training, evaluation and parsing, and returns the list of these calls."""
    done = []

    def train(study, task, jobs, start=None):
        for number, trial in enumerate(study.sweep.trials):
            workdir = task.folder.workdir(number)
            if workdir.exists():
                continue
            make_run(workdir)
            loading.save(loading.with_values(task.config, trial), workdir)
            line = {
                "split": "valid",
                "step": 9,
                "loss": 1.0,
                task.config.checkpoint.best_metric: 1.0,
            }
            Workdir(workdir).metrics.write_text(f"{json.dumps(line)}\n")
            Workdir(workdir).mark_complete(9)
            done.append(f"train {workdir.parent.parent.name} {number}")

    def score(arguments):
        config = loading.load(Path(arguments.workdir))
        assert config.data.target_form == "tree" and arguments.average == 1
        done.append(f"evaluate {arguments.overrides}")
        is_constrained = ("decoding.well_formed", "true") in arguments.overrides
        f1 = F1["silver" if len(config.data.mixture) > 1 else "gold"] + config.seed + is_constrained
        scores = dict.fromkeys(table4._score_names(), f1) | {"bracket_errors": 3.0}
        scores["decoding"] = {"well_formed": is_constrained}
        scores["split"] = arguments.split
        if arguments.split == "test":
            assert is_constrained
            scores["bracket_f1"] -= 2.0

        def save():
            name = f"{arguments.split}-well_formed{is_constrained}"
            add_evaluation(Path(arguments.workdir), name, TREES, TREES, **scores)
            # Evaluations of another search or another checkpoint are not in the table.
            other = scores | {"decoding": {"beam_size": 1}, "bracket_f1": 1.0}
            add_evaluation(Path(arguments.workdir), f"{name}-greedy", TREES, TREES, **other)
            other = scores | {"step": 8, "bracket_f1": 1.0}
            add_evaluation(Path(arguments.workdir), f"{name}-step8", TREES, TREES, **other)

        return SimpleNamespace(save=save)

    def parse(arguments):
        assert ("decoding.well_formed", "true") in arguments.overrides
        done.append("parse")
        print("{}")
        folder = Path(arguments.output)
        folder.mkdir()
        lines = Path(arguments.source).read_text().splitlines()
        rows = [
            f"{i}\t-1.0\t(S {' '.join(['XX'] * len(line.split()))} )S\n"
            for i, line in enumerate(lines, 1)
        ]
        # The last sentence was cut.
        (folder / "shard.tsv").write_text("".join(rows[:-1]) + f"{len(rows)}\t-1.0\t(S XX )S\n")

    monkeypatch.setattr(running, "run_trials", train)
    monkeypatch.setattr(evaluate, "evaluate", score)
    monkeypatch.setattr(translate_corpus, "main", parse)
    return done


@pytest.mark.slow
def test_table_4_trains_makes_silver_trees_and_trains_again(calls, tmp_path, capsys):
    treebank = tmp_path / "a.mrg"
    treebank.write_text(random_treebank(seed=1, count=5))
    text = tmp_path / "text"
    text.write_text("The dog ( old ) sleeps\n\nThe dog ( old ) sleeps\nIt does\nToo long\n")
    command = ["table4", "--scale=mini", f"--output={tmp_path / 'out'}", "--seeds=2"]
    command += [f"--trees={treebank}", f"--validation={treebank}", f"--text={text}"]
    assert run(reproduce, *command) == 0
    table = capsys.readouterr().out
    expected = [f"train gold {i}" for i in range(2)]
    assert calls[:2] == expected and calls.count("parse") == 1 and len(calls) == 4 + 8 + 1
    assert calls.index("parse") < calls.index("train silver 0")

    silver = tmp_path / "out" / "silver-data"
    assert (silver / "train.en").read_text() == "The dog -LRB- old -RRB- sleeps\nIt does\n"
    assert (silver / "train.trees").read_text() == "(S XX XX XX XX XX XX )S\n(S XX XX )S\n"
    assert (silver / "train.links").read_text().endswith("\n0-0 0-1 1-2 1-3\n")
    assert json.loads((silver / "data.json").read_text())["by"] == "self-training"

    # Two seeds, with the constraint a point more; the paper's rows beside them.
    assert "| Transformer (4 layers) | WSJ only | 91.3 |\n| **here** | WSJ only | 81.50 ±" in table
    assert "| 92.7 |\n| **here** | semi-supervised | 85.50 ± 0.71 |" in table
    assert "| WSJ only | valid | no | 2 | 80.50 ± 0.71 | 3 ± 0 |" in table

    # An evaluation with another search does not replace that of the configuration.
    (missing, *_) = sorted((tmp_path / "out" / "gold").rglob("valid-well_formedTrue.json"))
    missing.unlink()
    calls.clear()
    assert run(reproduce, *command) == 0
    assert len([call for call in calls if call.startswith("evaluate")]) == 1
    assert capsys.readouterr().out == table

    # The same command has nothing left to do, and --report needs no data.
    calls.clear()
    assert run(reproduce, *command) == 0
    assert not [call for call in calls if call.startswith(("evaluate", "parse"))]
    capsys.readouterr()
    assert run(reproduce, *command[:4], "--report", f"--text={text}") == 0
    assert capsys.readouterr().out == table


@pytest.mark.slow
def test_folders_of_trees_resume_and_a_report_has_all_seeds(calls, tmp_path, capsys):
    folder = tmp_path / "wsj" / "00"
    folder.mkdir(parents=True)
    for name in ("b", "a"):
        (folder / f"{name}.mrg").write_text(random_treebank(seed=1, count=5))
    command = ["table4", "--scale=mini", f"--output={tmp_path / 'out'}"]
    flags = [f"--trees={tmp_path / 'wsj'}", f"--validation={folder / 'a.mrg'}", "--seeds=4"]
    assert run(reproduce, *command, *flags) == 0
    table = capsys.readouterr().out
    assert "| WSJ only | valid | yes | 4 |" in table
    assert run(reproduce, *command, *flags) == 0
    assert capsys.readouterr().out == table
    assert run(reproduce, *command, "--report") == 0
    assert capsys.readouterr().out == table


def test_the_test_split_is_measured_under_the_constraint_and_published(calls, tmp_path, capsys):
    treebank = tmp_path / "a.mrg"
    treebank.write_text(random_treebank(seed=1, count=5))
    paths = [f"--{split}={treebank}" for split in ("trees", "validation", "test")]
    flags = ["table4", "--scale=mini", f"--output={tmp_path / 'out'}", "--seeds=1", *paths]
    assert run(reproduce, *flags) == 0
    table = capsys.readouterr().out
    assert len([call for call in calls if call.startswith("evaluate")]) == 3
    assert "| **here** | WSJ only | 79.00 |" in table
    assert "| WSJ only | valid | yes | 1 | 81.00 | 3 |" in table
    assert "| WSJ only | test | yes | 1 | 79.00 | 3 |" in table


def test_another_treebank_or_text_is_refused(calls, tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / f"{name}.mrg").write_text(random_treebank(seed=1, count=5))
        # The last sentence of a text gets no tree.
        (tmp_path / name).write_text(f"{name} does\nToo long\n")

    def reproduce_with(trees, text):
        flags = [f"--trees={tmp_path / trees}", f"--validation={tmp_path / 'a.mrg'}"]
        flags += [f"--text={tmp_path / text}", f"--output={tmp_path / 'out'}", "--seeds=1"]
        return run(reproduce, "table4", "--scale=mini", *flags)

    assert reproduce_with("a.mrg", "a") == 0
    assert reproduce_with("b.mrg", "a") == 2
    assert "a.mrg" in capsys.readouterr().err
    assert reproduce_with("a.mrg", "b") == 2
    assert f"--text={tmp_path / 'b'}: " in capsys.readouterr().err


def test_flags_of_another_table_are_refused(tmp_path, capsys):
    assert run(reproduce, "table3", "--scale=mini", "--text=a") == 2
    assert "--text=a: table3 has no such flag" in capsys.readouterr().err
    assert run(reproduce, "table4", "--scale=mini", f"--output={tmp_path}") == 2
    assert "--trees=PATH: is missing" in capsys.readouterr().err
    assert run(reproduce, "table4", "--scale=mini", f"--output={tmp_path}", "--report") == 2
    assert f"--output={tmp_path}: has no evaluated run" in capsys.readouterr().err
