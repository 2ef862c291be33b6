"""A workdir with a calibration of a random model, half of whose translations are right."""

import json
import random
from pathlib import Path

import transformer
from scripts import calibrate
from tests.checkpoints.workdirs import make_workdir, run
from transformer.checkpoints.calibration import calibration_settings

COUNT = 60  # validation sentences


def write_validation(path: Path, data: Path, **decoding: object) -> None:
    """Writes validation sentences whose references are the model's outputs, or other texts.

    The references of the more probable outputs are more often the outputs.
    """
    generator = random.Random(0)
    sources = [
        " ".join(generator.choices("1234567", k=generator.randint(1, 9))) for _ in range(COUNT)
    ]
    best = [row[0] for row in transformer.load(path, **decoding).translate(sources)]
    means = [one.log_probability / len(one.tokens) for one in best]
    middle = sorted(means)[COUNT // 2]
    references = []
    for one, mean in zip(best, means, strict=True):
        is_right = generator.random() < (0.9 if mean > middle else 0.3)
        references.append(one.text if is_right and one.text else "0 9")
    for side, lines in (("in", sources), ("out", references)):
        (data / f"valid.{side}").write_text("".join(f"{line}\n" for line in lines))


def write_calibration(path: Path, weights: dict[str, float], dropout_passes: int = 0) -> None:
    """Writes a calibration with these weights for the run's own search."""
    model = transformer.load(path)
    record = {
        "settings": calibration_settings(model.config, model.checkpoints),
        "threshold": 50.0,
        "dropout_passes": dropout_passes,
        "weights": weights,
    }
    (path / "calibration.json").write_text(json.dumps(record))


def make_calibrated(path: Path, *flags: str, **changes: str) -> Path:
    """Makes a workdir as `make_workdir`, and calibrates it with these flags."""
    make_workdir(path, **changes)
    write_validation(path, path.parent / "data")
    assert run(calibrate, f"--workdir={path}", *flags) == 0
    return path
