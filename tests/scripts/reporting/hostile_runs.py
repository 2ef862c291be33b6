"""Runs for reports, with markup in their names, their settings and their text."""

import json
from pathlib import Path

import pytest

from tests.checkpoints import workdirs
from tests.checkpoints.workdirs import make_workdir, run
from transformer import evaluate

SCRIPT = "<script>fail('a_script_of_the_data_ran')</script>"
SOURCES = ["1 2 3", f"4 {SCRIPT}", "6", "7 7 7 1", "2 3 &amp; 5 6"]
REFERENCES = ["3 2 1", f"{SCRIPT} 4", "6", "1 7 7 7", "6 5 \"' 3 2"]
SETTINGS = {"data.source": "text", "tokenizer.kind": "word", "tokenizer.vocab_size": "16"}


def make_runs(folder: Path, patch: pytest.MonkeyPatch) -> list[Path]:
    """Makes two evaluated runs that differ in dropout, and one that only has a record."""
    patch.setattr(workdirs, "SOURCES", SOURCES)
    patch.setattr(workdirs, "REFERENCES", REFERENCES)
    settings = SETTINGS | {"data.cache_dir": str(folder / "cache"), "data.name": "<i>data</i>"}
    changes = {"model.dropout": "0.3", "training.log_every": "7"}
    runs = [
        make_workdir(folder / "<b>bold", seed=0, steps=(10, 20), **settings),
        make_workdir(folder / "plain", seed=1, steps=(10, 20), **settings, **changes),
        make_workdir(folder / "begun", seed=2, steps=(), **settings),
    ]
    for number, path in enumerate(runs):
        (path / "metrics.jsonl").write_text("".join(map(record_line, range(1, 21 - number))))
        if number < 2:
            assert run(evaluate, f"--workdir={path}", "--split=valid") == 0
    return runs


def record_line(step: int) -> str:
    train = {
        "step": step,
        "split": "train",
        "loss": 9 / step,
        "learning_rate": step / 100,
        "seconds": float(step),
    }
    valid = {
        "step": step,
        "split": "valid",
        "loss": 10 / step,
        "perplexity": 2.0 ** (10 / step),
        "bleu": float(step),
    }
    return json.dumps(train) + "\n" + json.dumps(valid) + "\n"
