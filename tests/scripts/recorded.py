"""Complete runs on three sentences, made without training, for tests of records."""

import json
from pathlib import Path
from typing import Any

from tests.data.files import write_pairs
from tests.scripts.evaluated import SENTENCES, add_evaluation, damage, make_run
from transformer.support import files
from transformer.support.environment import TRAINING_CORPUS
from transformer.workdir import Workdir

PAIRS = [("a b", "x y"), ("c", "z"), ("ä", "ö")]


def complete_run(
    path: Path, bleu: float = 20.0, evaluate: bool = True, saved: Any = None, **changes: str
) -> Path:
    """Makes the workdir of a complete run with two validations, of which the second is worse."""
    data = path.parent / "data"
    data.mkdir(parents=True, exist_ok=True)
    for stem in ("train", "valid"):
        write_pairs(data, stem, PAIRS)
    settings = {"data__source": "text", "data__name": "tiny", "data__valid_split": "valid"}
    make_run(path, **settings | {"data__path": str(data)} | changes)
    workdir = Workdir(path)
    valid = {"split": "valid", "loss": 1.5, "accuracy": 1 / 3, "gradient_norm/encoder": 1.0}
    lines = [
        valid | {"step": 5, "perplexity": 8.0, "bleu": bleu, "seconds": 70.0},
        valid | {"step": 9, "perplexity": 9.0, "bleu": bleu - 1, "seconds": 130.0},
        {"step": 9, "split": "train", "loss": 1.0, "seconds": 126.0},
    ]
    for line in lines:
        line["validation_seconds"] = 5.0 if line["step"] == 5 else 10.0
    workdir.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    files.write_json(workdir.contents, {TRAINING_CORPUS: "0123456789"})
    workdir.mark_complete(9)
    if evaluate:
        amount = 0.01 * int(changes.get("seed", 1)) + 0.1
        hypotheses = damage(SENTENCES, amount, seed=int(bleu))
        add_evaluation(path, "valid-step9", hypotheses, SENTENCES, **(saved or {}))
    return path
