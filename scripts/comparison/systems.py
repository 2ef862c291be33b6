"""Systems: groups of evaluations that differ only in the seed of their runs."""

import json
import string
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scripts.evaluations import Evaluation, differing_keys

# Tried in this order to separate evaluations with the same settings and seed. The last one always separates them.
TRAITS = {
    "commit": lambda evaluation: evaluation.commit,
    "step": lambda evaluation: evaluation.result["step"],
    "evaluation": lambda evaluation: str(evaluation.path),
}


@dataclass(frozen=True)
class System:
    """Evaluations with different seeds. `differences` holds its values of the settings in which the systems differ."""

    label: str
    differences: dict[str, Any]
    evaluations: tuple[Evaluation, ...]


def group_systems(evaluations: Sequence[Evaluation]) -> list[System]:
    """Returns the systems, in the order of their first evaluations."""
    groups = defaultdict(list)
    for evaluation in evaluations:
        groups[json.dumps(system_settings(evaluation), sort_keys=True)].append(evaluation)
    parts = [part for members in groups.values() for part in _split_repeated_seeds(members)]
    parts.sort(key=lambda part: evaluations.index(part[1][0]))
    settings = [system_settings(members[0]) | traits for traits, members in parts]
    keys = differing_keys(settings)
    return [
        System(_label(number), {key: each.get(key) for key in keys}, tuple(members))
        for number, (each, (_, members)) in enumerate(zip(settings, parts, strict=True))
    ]


def system_settings(evaluation: Evaluation) -> dict[str, Any]:
    """Returns what the evaluations of a system have in common: the configuration without seed, and the decoding."""
    decoding = {f"decoding.{key}": value for key, value in evaluation.decoding.items()}
    counts = {"averaged": evaluation.result["averaged"], "models": len(evaluation.result["models"])}
    return evaluation.run_settings | decoding | counts


def _split_repeated_seeds(members: list[Evaluation]) -> list[tuple[dict[str, Any], list[Evaluation]]]:
    """Returns groups in which no seed occurs twice, each with the trait that distinguishes it."""
    if _seeds_differ(members):
        return [({}, members)]
    for name, trait in TRAITS.items():
        parts = defaultdict(list)
        for member in members:
            parts[trait(member)].append(member)
        if all(_seeds_differ(part) for part in parts.values()):
            return [({name: value}, part) for value, part in parts.items()]
    raise AssertionError("the same evaluation twice")


def _seeds_differ(members: list[Evaluation]) -> bool:
    return len({member.config.seed for member in members}) == len(members)


def _label(number: int) -> str:
    return string.ascii_uppercase[number] if number < len(string.ascii_uppercase) else f"S{number + 1}"
