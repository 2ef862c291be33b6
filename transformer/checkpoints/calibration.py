"""The file of a calibration of confidences, which is for some checkpoints and a search."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.checkpoints import checksums
from transformer.checkpoints.loaded_models import Checkpoint
from transformer.config.types import Config
from transformer.decoding.confidence import Calibration
from transformer.support import files
from transformer.support.errors import UserError
from transformer.workdir import Workdir

VERSION = 1  # of the features and of the file


def read_calibration(config: Config, checkpoints: Sequence[Checkpoint]) -> Calibration:
    """Reads the calibration in the workdir of the first checkpoint.

    Raises UserError if it is missing or damaged, or if it is for other checkpoints or another
    search than these.
    """
    workdirs = ",".join(checkpoint.workdir for checkpoint in checkpoints)
    advice = f"run python -m scripts.calibrate --workdir={workdirs} with the same flags"

    def parse(record: dict[str, Any]) -> Calibration:
        for key, value in calibration_settings(config, checkpoints).items():
            fitted = record["settings"].get(key)
            if fitted != value:
                raise UserError(f"is for {key}={fitted}, and the model has {value}; {advice}")
        calibration = Calibration(*(record[name] for name in Calibration._fields))
        numbers = [calibration.threshold, *calibration.weights.values()]
        if not all(map(math.isfinite, numbers)) or calibration.dropout_passes not in range(10_000):
            raise ValueError("a number is not finite or out of range")
        return calibration

    path = Workdir(Path(checkpoints[0].workdir)).calibration
    return files.read_json(path, parse, advice)


def calibration_settings(config: Config, checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """Returns what the features of a translation depend on, as JSON has it."""
    values = {
        "version": VERSION,
        "steps": [checkpoint.averaged for checkpoint in checkpoints],
        "digests": [
            checksums.digest(Workdir(Path(checkpoint.workdir)).checkpoints / str(checkpoint.step))
            for checkpoint in checkpoints
        ],
        "source_language": config.data.source_language,
        "target_language": config.data.target_language,
        **{f"decoding.{key}": value for key, value in config.decoding.items()},
    }
    del values["decoding.batch_tokens"]  # translations do not depend on it
    return json.loads(json.dumps(values))
