"""Evaluations as `transformer.evaluate` leaves them in workdirs: what the scripts that report and compare share."""

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections

from transformer.config.keys import flatten
from transformer.errors import UserError
from transformer.workdir import MAY_DIFFER, Workdir

WHERE = (*MAY_DIFFER, "seed")  # what runs of one system may differ in
SCORES = ("bleu_lowercase_tokenized", "bleu", "chrf")
EVALUATION = {  # what every reader needs of one
    "split": str | None,
    "step": int,
    "averaged": int,
    "models": list,
    "decoding": dict,
    **{name: int | float for name in SCORES},
    **{f"{name}_signature": str for name in SCORES},
}
ENVIRONMENT = {"commit": str | None, "uncommitted_changes": bool | None, "cpu_count": int | None, "devices": list}


def read(path: Path, kinds: dict[str, Any]) -> dict[str, Any]:
    """What is in the .json file of an evaluation. Raises UserError unless it is one and has what `kinds` asks for."""
    return _read_object(path, kinds, "must be an evaluation; run transformer.evaluate to write it anew")


def read_environment(workdir: Workdir) -> dict[str, Any]:
    """Where and with what the run was made. Raises UserError if the record is damaged."""
    return _read_object(workdir.environment, ENVIRONMENT, "must be the record of a run; name the workdir of one")


def _read_object(path: Path, kinds: dict[str, Any], advice: str) -> dict[str, Any]:
    """The JSON object in a file. Raises UserError, with the advice, unless it has these keys and kinds of values."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {advice}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); {advice}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: no JSON object; {advice}")
    for key, kind in kinds.items():
        if key not in found or not isinstance(found[key], kind):
            raise UserError(f"{path}: {key} is missing or damaged; {advice}")
    return found


def run_settings(config: ml_collections.FrozenConfigDict) -> dict[str, Any]:
    """What runs of one system have in common: everything in the configuration but seed and place."""
    return {key: value for key, value in flatten(config).items() if key not in WHERE}


def differing(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that do not have the same value in all of these settings, or are in some only."""
    keys = dict.fromkeys(itertools.chain(*several))
    return [key for key in keys if any(each.get(key) != several[0].get(key) for each in several)]


def describe_commit(environment: dict[str, Any]) -> str:
    """Abbreviated; + for changes that were not committed."""
    return (environment["commit"] or "unknown")[:9] + ("+" if environment["uncommitted_changes"] else "")


def mean_and_spread(values: Sequence[float]) -> str:
    """The spread, where there are several, is the sample standard deviation."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"
