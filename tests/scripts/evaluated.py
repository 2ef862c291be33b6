"""Workdirs of evaluated runs, made without training or translating, and runs of `scripts.compare`
on them.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs import base
from scripts import compare
from scripts.sweeping import folder
from tests.checkpoints.workdirs import run
from transformer.config import loading
from transformer.decoding import bleu, metrics
from transformer.workdir import create_workdir

WORDS = (
    "ein",
    "Mann",
    "Frau",
    "Hund",
    "läuft",
    "steht",
    "über",
    "die",
    "Straße",
    "den",
    "Strand",
    "mit",
    "Ball",
    ".",
)


def make_sentences(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(3, 20))) for _ in range(count)]


SENTENCES = make_sentences(20, seed=0)


def damage(sentences: Sequence[str], amount: float, seed: int) -> list[str]:
    """Returns the sentences without a random share `amount` of their words."""
    generator = random.Random(seed)
    return [
        " ".join(word for word in text.split() if generator.random() > amount) for text in sentences
    ]


def make_run(path: Path, **changes: str) -> Path:
    """Makes a workdir of base.py with changed keys, which are written with __ for the dot."""
    overrides = [(key.replace("__", "."), value) for key, value in changes.items()]
    create_workdir(path, loading.override(base.get_config(), overrides)).evaluations.mkdir()
    return path


def add_evaluation(
    path: Path, name: str, hypotheses: Sequence[str], references: Sequence[str], **saved: Any
) -> Path:
    """Writes an evaluation as transformer.evaluate does.

    `saved`: changes of the JSON object, in `decoding` by key.
    """
    config = loading.load(path)
    result = metrics.compute_metrics(
        hypotheses, [references], bleu.bleu_language(config.data), metrics.METRICS
    ) | {
        "split": "valid",
        "step": 9,
        "averaged": 1,
        "models": [{"workdir": str(path), "step": 9, "averaged": [9]}],
        "sentences": len(references),
        "shortlist": None,
    }
    decoding = config.decoding.to_dict() | saved.pop("decoding", {})
    file = path / "evaluations" / f"{name}.json"
    file.write_text(json.dumps(result | {"decoding": decoding} | saved))
    texts = {"sources": references[::-1], "hypotheses": hypotheses, "references": references}
    for kind, lines in texts.items():
        file.with_name(f"{name}.{kind}.txt").write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )
    scores = "".join(f'{{"score": {-number / 4}}}\n' for number in range(len(references)))
    file.with_name(f"{name}.sentences.jsonl").write_text(scores)
    return file


def make_sweep(path: Path, trials: int, **task: str) -> Path:
    """Writes the record of a sweep with so many listed trials; `task` is what they share."""
    path.mkdir(exist_ok=True)
    record = {
        "schema_version": folder.SCHEMA_VERSION,
        "trials": [{"seed": seed} for seed in range(trials)],
    }
    (path / "sweep.json").write_text(json.dumps(record | {"task": task}))
    return path


def file(path: Path, name: str = "valid-step9") -> Path:
    return path / "evaluations" / f"{name}.json"


def result(capsys, *argv) -> dict:
    assert run(compare, *map(str, argv), "--samples=40", "--format=json") == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    return json.loads(output)


def error(capsys, *argv) -> str:
    """Returns the error line of a comparison that is expected to fail."""
    assert run(compare, *map(str, argv)) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert captured.out == "" and "Traceback" not in captured.err
    return line
