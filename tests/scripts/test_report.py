"""The results table: its rows, mean and spread, and the file it is written to."""

import json

import ml_collections
import pytest

from configs import base
from scripts import report
from scripts.results.systems import describe_search
from tests.scripts.evaluated import make_sweep
from transformer.config import cli
from transformer.workdir import Workdir, create_workdir

MARKS = ("<!-- results: begin -->", "<!-- results: end -->")
EVALUATION = {
    "bleu_signature": "b",
    "bleu_lowercase_tokenized_signature": "l",
    "chrf_signature": "c",
    "split": "test",
    "step": 9,
    "averaged": 1,
    "models": [{}],
    "sentences": 3,
    "shortlist": None,
    "decoding": {"strategy": "beam", "beam_size": 5, "length_penalty": 0.6},
}


@pytest.fixture
def finished(tmp_path):
    """Makes the workdir of a complete, evaluated run."""

    def make(name: str, seed: int, bleu: float, minutes: float = 30.0, dropout: float = 0.1):
        config = base.get_config()
        config.seed, config.model.dropout = seed, dropout
        workdir = create_workdir(tmp_path / name, ml_collections.FrozenConfigDict(config))
        workdir.metrics.write_text(
            json.dumps({"step": 9, "split": "valid", "seconds": 60 * minutes}) + "\n"
        )
        workdir.mark_complete(9)
        workdir.evaluations.mkdir()
        scores = {"bleu": bleu, "bleu_lowercase_tokenized": bleu + 1, "chrf": 60.0}
        (workdir.evaluations / "test-step9.json").write_text(json.dumps(EVALUATION | scores))
        return workdir.path

    return make


def rows(output: str) -> list[list[str]]:
    lines = [line for line in output.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_seeds_share_a_row_with_mean_and_spread(finished, capsys):
    names = [
        str(finished("a", 0, 30.0, 20)),
        str(finished("b", 2, 33.0, 40)),
        str(finished("c", 0, 25.0, dropout=0.3)),
    ]
    assert cli.execute(report.make_parser(), report.main, names) == 0
    output = capsys.readouterr().out
    _, _, both, other = rows(output)
    # 30 and 33 have mean 31.5 and sample standard deviation sqrt(2 * 1.5^2 / 1) = 2.12.
    assert both[1:4] == ["test", "3", "beam 5, alpha 0.6, step 9"]
    assert both[4:9] == ["0, 2", "32.50 ± 2.12", "31.50 ± 2.12", "60.00 ± 0.00", "30 min"]
    assert other[4:7] == ["0", "26.00", "25.00"]
    assert [both[0].split(", ")[1:], other[0].split(", ")[1:]] == [
        ["model.dropout=0.1"],
        ["model.dropout=0.3"],
    ]
    assert output.rstrip().endswith("Signatures: `b`, `c`, `l`.")


def test_a_metric_by_text_and_system(finished, capsys):
    """Rows are splits and the splits of other data, columns are systems."""
    scores = {
        "clean-0": ({"test": 30.0, "test of data/typos": 10.0}, 0, 0.1),
        "clean-1": ({"test": 32.0, "test of data/typos": 12.0}, 1, 0.1),
        "robust-0": ({"test": 29.0, "test of data/typos": 20.0, "valid": 31.0}, 0, 0.3),
    }
    folders = []
    for name, (bleu_of, seed, dropout) in scores.items():
        folder = finished(name, seed, 0.0, dropout=dropout)
        (folder / "evaluations" / "test-step9.json").unlink()
        for i, (text, bleu) in enumerate(bleu_of.items()):
            texts = {"split": text} if " of " not in text else {"split": None, "data": text}
            evaluation = EVALUATION | texts | {"bleu": bleu, "chrf": 60.0}
            path = folder / "evaluations" / f"{i}.json"
            path.write_text(json.dumps(evaluation | {"bleu_lowercase_tokenized": bleu}))
        folders.append(str(folder))
    assert cli.execute(report.make_parser(), report.main, [*folders, "--metric=bleu"]) == 0
    output = capsys.readouterr().out
    header, _, *body = rows(output)
    assert header == ["text", "1: clean-0", "2: robust-0"]
    assert body == [
        ["test", "31.00 ± 1.41", "29.00"],
        ["test of data/typos", "11.00 ± 1.41", "20.00"],
        ["valid", "", "31.00"],
    ]
    assert "1: clean-0: beam 5, alpha 0.6, step 9, seeds 0, 1." in output
    assert "2: robust-0: beam 5, alpha 0.6, step 9, seeds 0." in output
    for metric in ("comet", "split"):  # the second one is no score
        assert cli.execute(report.make_parser(), report.main, [*folders, f"--metric={metric}"]) == 2
        message = f"--metric={metric}: the evaluation on test of "
        assert message in capsys.readouterr().err
    page = ["--metric=bleu", "--output=a.html"]
    assert cli.execute(report.make_parser(), report.main, [*folders, *page]) == 2
    assert "--metric=bleu: is for a table" in capsys.readouterr().err


def test_the_papers_bleu_is_a_column_if_an_evaluation_has_it(finished, capsys):
    folders = [finished("a", 0, 30.0), finished("b", 1, 33.0), finished("c", 0, 25.0, dropout=0.3)]
    paper = {"bleu_paper_signature": "p"}
    for folder, value in zip(folders, (28.0, 29.0, None), strict=True):
        file = folder / "evaluations" / "test-step9.json"
        scores = {} if value is None else paper | {"bleu_paper": value}
        file.write_text(json.dumps(json.loads(file.read_text()) | scores))
    argv = [str(folder) for folder in folders]
    assert cli.execute(report.make_parser(), report.main, argv) == 0
    output = capsys.readouterr().out
    header, _, both, other = rows(output)
    assert header[5:9] == ["bleu_lowercase_tokenized", "bleu", "chrf", "bleu_paper"]
    assert (both[8], other[8]) == ("28.50 ± 0.71", "")
    assert output.rstrip().endswith("Signatures: `b`, `c`, `l`, `p`.")
    file.write_text(json.dumps(json.loads(file.read_text()) | paper | {"bleu_paper": "high"}))
    assert cli.execute(report.make_parser(), report.main, argv) == 2
    assert "bleu_paper=high" in capsys.readouterr().err


def test_a_sweep_stands_for_its_complete_trials(finished, tmp_path, capsys):
    sweep = make_sweep(tmp_path / "sweep", 3)
    for number, bleu in enumerate((30.0, 33.0)):
        finished(f"sweep/trials/{number:04}", number, bleu)
    assert cli.execute(report.make_parser(), report.main, [str(sweep)]) == 0
    captured = capsys.readouterr()
    assert [row[4] for row in rows(captured.out)[2:]] == ["0, 1"]
    assert f"{sweep}: 2 of 3 trials are complete, 1 left out." in captured.err


@pytest.mark.parametrize(
    ("decoding", "text"),
    [
        ({}, "beam 4, alpha 0.6"),
        ({"shortlist": 32}, "beam 4, alpha 0.6, shortlist 32"),
        ({"length_penalty_form": "power"}, "beam 4, alpha 0.6, form power"),
        ({"strategy": "ctc"}, "ctc beam 4, alpha 0.6"),
        ({"strategy": "ctc", "beam_size": 1}, "ctc greedy"),
        ({"strategy": "sample"}, "strategy sample"),
    ],
)
def test_the_search_is_named(decoding, text):
    assert describe_search(base.get_config().decoding.to_dict() | decoding) == text


def test_an_imported_model_has_no_training(finished, capsys):
    folder = finished("a", 0, 30.0)
    Workdir(folder).metrics.unlink()
    (path,) = (folder / "evaluations").glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"step": 0}))
    assert cli.execute(report.make_parser(), report.main, [str(folder)]) == 0
    assert "0 min" in rows(capsys.readouterr().out)[2]


def test_other_settings_and_steps_make_other_rows(finished, capsys):
    folders = [finished("a", 0, 30.0), finished("b", 1, 33.0)]
    whole = json.loads((folders[0] / "evaluations" / "test-step9.json").read_text())
    sampled = {"strategy": "sample", "beam_size": 5, "length_penalty": 0.6}
    others = {
        "best": whole | {"step": 6, "bleu": 20.0},
        "ensemble": whole | {"models": [{}, {}], "bleu": 21.0},
        "mean": whole | {"averaged": 3, "bleu": 22.0},
        "sample": whole | {"decoding": sampled | {"seed": 0}, "bleu": 23.0},
        "typed": whole,
        "of-lo": whole | {"split": None, "data": "test of runs/lo", "bleu": 26.0},
        "file": whole | {"split": None, "data": None, "source": "set.en", "bleu": 27.0},
        "again": whole | {"decoding": sampled | {"seed": 1}, "bleu": 24.0},
    }
    for name, evaluation in others.items():
        (folders[0] / "evaluations" / f"{name}.json").write_text(json.dumps(evaluation))
    assert cli.execute(report.make_parser(), report.main, list(map(str, folders))) == 0
    found = {
        (row[3], row[4]) if row[1] == "test" else row[1]: row[6]
        for row in rows(capsys.readouterr().out)[2:]
    }
    assert found == {
        "test of runs/lo": "26.00",
        ("beam 5, alpha 0.6, seed=0, step 6", "0"): "20.00",
        ("beam 5, alpha 0.6, seed=0, step 9", "0, 1"): "31.50 ± 2.12",
        ("beam 5, alpha 0.6, seed=0, mean of 3 checkpoints, step 9", "0"): "22.00",
        ("strategy sample, seed=0, step 9", "0"): "23.00",
        ("strategy sample, seed=1, step 9", "0"): "24.00",
    }


def test_the_table_replaces_only_the_text_between_the_marks(finished, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")
    argv = [str(finished("a", 0, 30.0)), f"--readme={readme}"]
    for _ in range(2):
        assert cli.execute(report.make_parser(), report.main, argv) == 0
        text = readme.read_text()
        assert text.startswith(f"before\n{MARKS[0]}\n| config |") and text.endswith(
            f"{MARKS[1]}\nafter\n"
        )
        assert "old" not in text and text.count("30.00") == 1


def test_runs_that_cannot_be_reported_give_one_line(finished, tmp_path, capsys):
    whole = finished("a", 0, 30.0)
    Workdir(finished("b", 0, 30.0)).complete.unlink()
    (finished("c", 0, 30.0) / "evaluations" / "test-step9.json").unlink()
    (tmp_path / "plain.md").write_text("no marks\n")
    (tmp_path / "latin.md").write_text("M\u00e4rz\n", encoding="latin-1")
    Workdir(finished("d", 0, 30.0)).metrics.unlink()
    (finished("e", 0, 30.0) / "evaluations" / "test-step9.json").write_text("[]")
    wrong = {
        "metrics.jsonl": [str(tmp_path / "d")],
        "test-step9.json": [str(tmp_path / "e")],
        "given twice": [str(whole), str(whole)],
        "this run is not complete": [str(tmp_path / "b")],
        "has no evaluation": [str(tmp_path / "c")],
        "no such folder": [str(tmp_path / "nowhere")],
        "plain.md": [str(whole), f"--readme={tmp_path / 'plain.md'}"],
        "latin.md, line 1: ": [str(whole), f"--readme={tmp_path / 'latin.md'}"],
        "missing.md": [str(whole), f"--readme={tmp_path / 'missing.md'}"],
    }
    for named, argv in wrong.items():
        assert cli.execute(report.make_parser(), report.main, argv) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and named in error
    assert (tmp_path / "plain.md").read_text() == "no marks\n"
