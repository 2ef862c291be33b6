"""Objectives of decoding sweeps that another program measures."""

import argparse
import json
import sys
from pathlib import Path

import pytest

from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.tasks import make_task
from tests.checkpoints.workdirs import make_workdir, run
from transformer import evaluate
from transformer.support.errors import UserError

PROGRAM = "import sys; [print(len(line)) for line in open(sys.argv[1])]"
SCORER = f"length:{sys.executable} -c '{PROGRAM}' {{hypothesis}}"


def task(workdir, tmp_path, scorer):
    flags = argparse.Namespace(config=None, source=str(workdir), overrides=[], scorer=[scorer])
    return make_task(flags, SweepFolder(tmp_path / "sweep"))


def test_the_objective_of_a_trial_is_the_mean_of_a_command(tmp_path, capsys):
    workdir = make_workdir(tmp_path / "run")
    made = task(workdir, tmp_path, SCORER)
    assert "length" in made.objectives and made.identity["scorers"] == [SCORER]
    module, *flags = made.command(0, {"decoding.beam_size": 1})
    assert module == "transformer.evaluate"
    assert run(evaluate, *flags) == 0
    result = json.loads(capsys.readouterr().out)
    made.output(0).parent.mkdir(parents=True)
    made.output(0).write_text(json.dumps(result))
    lines = Path(result["hypotheses"]).read_text().split("\n")[:-1]
    expected = sum(len(line) + 1 for line in lines) / len(lines)
    # While a trial runs, its results are read without the command.
    assert made.read_objective(0, "length") == {}
    made.score(0, "length")
    assert made.read_objective(0, "length") == {20: pytest.approx(expected)}
    made.score(0, "bleu")
    assert made.read_objective(0, "bleu") == {20: result["bleu"]}


def test_a_metric_of_which_lower_is_better_is_refused(tmp_path):
    workdir = make_workdir(tmp_path / "run")
    with pytest.raises(UserError, match="--scorer=length,lower: a sweep maximizes"):
        task(workdir, tmp_path, SCORER.replace("length:", "length,lower:"))
