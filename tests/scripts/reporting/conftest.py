"""One page for the tests of its text and for those in a browser."""

import json
from pathlib import Path

import pytest

from scripts import report
from tests.checkpoints.workdirs import run
from tests.scripts.reporting.hostile_runs import SCRIPT, make_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> list[Path]:
    with pytest.MonkeyPatch.context() as patch:
        return make_runs(tmp_path_factory.mktemp("reported"), patch)


@pytest.fixture(scope="session")
def page_of_one(runs) -> Path:
    path = runs[0].parent / "one.html"
    (scores,) = (runs[0] / "evaluations").glob("*.hypotheses.txt")
    scored = "".join(json.dumps({"score": score}) + "\n" for score in (-3, -1, -5, -2, -4))
    (scores.parent / scores.name.replace("hypotheses.txt", "sentences.jsonl")).write_text(scored)
    assert run(report, str(runs[0]), f"--output={path}", "--sentences=0") == 0
    return path


@pytest.fixture(scope="session")
def page(runs) -> Path:
    path = runs[0].parent / "report.html"
    assert (
        run(
            report, *map(str, runs), f"--output={path}", f"--sentence=1 {SCRIPT} 2", "--sentences=1"
        )
        == 0
    )
    return path
