"""Which evaluations are seeds of one system, and what tells the systems apart."""

import itertools
import json
import string
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.comparison.choice import Evaluation
from scripts.evaluations import differing
from transformer.config.keys import show

# What may tell runs apart whose settings and seeds are all the same, tried in this order: other code, other checkpoints
# of the same runs. The last always does.
TRAITS = {
    "commit": lambda evaluation: evaluation.commit,
    "step": lambda evaluation: evaluation.saved["step"],
    "evaluation": lambda evaluation: str(evaluation.path),
}


@dataclass(frozen=True)
class System:
    """Evaluations, each of another seed. `differences`: its values of the settings in which the systems differ."""

    label: str
    differences: dict[str, Any]
    evaluations: tuple[Evaluation, ...]

    @property
    def name(self) -> str:
        return ", ".join(f"{key}={show(value)}" for key, value in self.differences.items())


def group(evaluations: Sequence[Evaluation]) -> list[System]:
    """The systems, in the order in which the first evaluation of each was given."""
    alike = defaultdict(list)
    for evaluation in evaluations:
        alike[json.dumps(evaluation.settings, sort_keys=True)].append(evaluation)
    groups = [group for members in alike.values() for group in _divide(members)]
    groups.sort(key=lambda group: evaluations.index(group[1][0]))
    settings = [members[0].settings | traits for traits, members in groups]
    keys = differing(settings)
    return [
        # None for a trait that another system is told apart by.
        System(label, {key: each.get(key) for key in keys}, tuple(members))
        for label, each, (_, members) in zip(_labels(), settings, groups, strict=False)
    ]


def _divide(members: list[Evaluation]) -> list[tuple[dict[str, Any], list[Evaluation]]]:
    """The members with what tells them apart, in as many groups as leave no seed twice in one."""
    if _seeds_differ(members):
        return [({}, members)]
    for name, trait in TRAITS.items():
        parts = defaultdict(list)
        for member in members:
            parts[trait(member)].append(member)
        if all(_seeds_differ(part) for part in parts.values()):
            return [({name: value}, part) for value, part in parts.items()]
    raise AssertionError("an evaluation was given twice")


def _seeds_differ(members: list[Evaluation]) -> bool:
    return len({member.config.seed for member in members}) == len(members)


def _labels() -> Iterator[str]:
    """A, B, ..., Z, AA, AB, ..."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_uppercase, repeat=length))
