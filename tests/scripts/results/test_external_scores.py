"""Scores of other programs: from files and commands, stored, compared, and refused."""

import json
import sys

import numpy as np
import pytest

from scripts import compare, report
from scripts.results.evaluations import read_evaluation
from scripts.results.records import make_record
from scripts.results.runs import read_runs
from tests.checkpoints.workdirs import run
from tests.scripts.evaluated import (
    SENTENCES,
    add_evaluation,
    damage,
    error,
    file,
    make_run,
    result,
)
from tests.scripts.recorded import complete_run

COUNT = len(SENTENCES)
# Prints the number of words of each hypothesis, and notes that it has run.
WORDS = f"""{sys.executable} -c '
import sys
open(sys.argv[1], "a").write("ran ")
for line in open(sys.argv[2], encoding="utf-8").read().split("\\n")[:-1]:
    print(len(line.split()))
' NOTE {{hypothesis}}"""


@pytest.fixture
def runs(tmp_path):
    """Two evaluated systems. The first one has two seeds."""
    paths = []
    for name, amount, changes in (
        ("a", 0.1, {}),
        ("b", 0.2, {"seed": "1"}),
        ("c", 0.5, {"model__dropout": "0.3"}),
    ):
        path = make_run(tmp_path / name, **changes)
        (path / "environment.json").write_text(
            json.dumps(
                {"commit": None, "uncommitted_changes": None, "cpu_count": 2, "devices": ["cpu"]}
            )
        )
        add_evaluation(path, "valid-step9", damage(SENTENCES, amount, seed=len(paths)), SENTENCES)
        paths.append(path)
    return paths


def write_scores(path, values):
    path.write_text("".join(f"{value}\n" for value in values))
    return str(path)


def test_scores_of_files_are_stored_and_tested_like_other_means(runs, tmp_path, capsys):
    values = np.random.default_rng(0).normal(size=(3, COUNT)).round(3) + [[0], [0.1], [2]]
    names = [write_scores(tmp_path / f"{i}.txt", row) for i, row in enumerate(values)]
    comparison = result(capsys, *runs, f"--scores=comet:{','.join(names)}")
    first, second = comparison["systems"]
    about = pytest.approx
    assert first["comet"]["mean"] == about(values[:2].mean(), rel=1e-5)
    assert second["comet"]["mean"] == about(values[2].mean(), rel=1e-5)
    (difference,) = comparison["differences"]
    expected = values[2].mean() - values[:2].mean()
    assert difference["comet"]["difference"] == about(expected, rel=1e-4)
    low, high = difference["comet"]["interval"]
    assert low < expected < high and 0 < difference["comet"]["p_value"] < 0.5
    assert comparison["signatures"]["comet"] == "given"

    # They are stored beside the evaluation, so that no flag is needed again.
    again = result(capsys, *runs)
    assert again["systems"][0]["comet"] == first["comet"]
    evaluation = read_evaluation(file(runs[2]))
    assert evaluation.result["comet"] == about(values[2].mean())
    assert run(compare, *map(str, runs), "--samples=40") == 0
    text = capsys.readouterr().out
    assert f"{values[2].mean():.4f}" in text and "comet" in text.splitlines()[-1]


def test_a_command_runs_once_for_all_evaluations_and_not_again(runs, tmp_path, capsys):
    flag = f"--scorer=words,lower:{WORDS.replace('NOTE', str(tmp_path / 'note'))}"
    comparison = result(capsys, *runs, flag)
    assert (tmp_path / "note").read_text() == "ran "
    expected = np.mean([len(text.split()) for text in read_evaluation(file(runs[2])).hypotheses])
    assert comparison["systems"][1]["words"]["mean"] == pytest.approx(expected, rel=1e-5)
    assert comparison["signatures"]["words"].startswith("lower is better|")
    result(capsys, *runs, flag)
    assert (tmp_path / "note").read_text() == "ran "

    # After a new evaluation, the command scores only this one.
    add_evaluation(runs[1], "valid-step9", SENTENCES, SENTENCES)
    result(capsys, *runs, flag)
    assert (tmp_path / "note").read_text() == "ran ran "


def test_scores_of_other_translations_are_ignored_with_a_warning(runs, tmp_path, capsys):
    names = [write_scores(tmp_path / f"{i}.txt", range(COUNT)) for i in range(3)]
    result(capsys, *runs, f"--scores=comet:{','.join(names)}")
    add_evaluation(runs[0], "valid-step9", SENTENCES, SENTENCES)
    assert run(compare, *map(str, runs), "--samples=40", "--format=json") == 0
    captured = capsys.readouterr()
    assert "comet" not in json.loads(captured.out)["systems"][0]
    assert "scores.jsonl: comet are scores of other translations." in captured.err


def test_blank_lines_do_not_count(runs, tmp_path, capsys):
    add_evaluation(runs[0], "valid-step9", ["a b", "", "c"], ["a", "", "c"])
    name = write_scores(tmp_path / "scores.txt", [1, 100, 2])
    comparison = result(capsys, runs[0], f"--scores=comet:{name}")
    assert comparison["systems"][0]["comet"]["mean"] == pytest.approx(1.5)


def test_the_table_of_results_and_the_record_have_them(tmp_path, capsys):
    path = complete_run(tmp_path / "run")
    environment = {"commit": None, "uncommitted_changes": None, "cpu_count": 2, "devices": ["cpu"]}
    (path / "environment.json").write_text(json.dumps(environment))
    name = write_scores(tmp_path / "scores.txt", [0.5] * COUNT)
    result(capsys, path, f"--scores=comet:{name}")
    (recorded,) = read_runs([path])
    (described,) = make_record(recorded, "a", [read_evaluation(file(path))])["evaluations"]
    assert (described["comet"], described["comet_signature"]) == (0.5, "given")
    assert run(report, str(path)) == 0
    header, _, row, *_ = capsys.readouterr().out.splitlines()
    assert dict(zip(header.split(" | "), row.split(" | "), strict=True))["comet"] == "0.5000"


def test_a_damaged_file_of_scores_is_named(runs, capsys):
    (runs[0] / "evaluations" / "valid-step9.scores.jsonl").write_text('{"metric": "comet"}\n')
    assert "valid-step9.scores.jsonl: damaged (TypeError" in error(capsys, runs[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\n2\n", f"has 2 lines, must have one for each of the {COUNT} translations"),
        ("1\n" * (COUNT - 1) + "nan\n", f"line {COUNT}: 'nan' is not a finite number"),
        ("score\n" * COUNT, "line 1: 'score' is not a finite number"),
        (None, "No such file"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(content, message, runs, tmp_path, capsys):
    if content is not None:
        (tmp_path / "scores.txt").write_text(content)
    assert message in error(capsys, runs[0], f"--scores=comet:{tmp_path / 'scores.txt'}")
    assert not (runs[0] / "evaluations" / "valid-step9.scores.jsonl").exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--scores=comet:a,b", "has 2 files, must have one for each of the 1 evaluations"),
        ("--scores=a.txt", "--scores=a.txt: must be NAME:FILE"),
        ("--scores=bleu:a.txt", "bleu is computed here; choose another name"),
        ("--scores=step:a.txt", "step: is a field of evaluations; choose another name"),
        ("--scores=note:a.txt", "note is a field of the results; choose another name"),
        ("--scores=x_signature:a.txt", "x_signature is a field of the results"),
        ("--scorer=comet", "--scorer=comet: must be NAME:COMMAND"),
        ("--scorer=comet:comet {mt}", "has {mt}, and may have {source}, {reference}, {hypothes"),
    ],
)
def test_a_wrong_flag_is_refused(flag, message, runs, capsys):
    assert message in error(capsys, runs[0], flag)


def test_a_table_takes_no_scores(runs, capsys):
    assert run(report, str(runs[0]), "--scores=comet:a.txt") == 2
    assert "--scores: is for a page; give --output=FILE.html as well" in capsys.readouterr().err
