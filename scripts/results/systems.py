"""Systems: groups of evaluations that differ only in the seed of their runs."""

import statistics
import string
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from scripts.results.evaluation_files import Json
from scripts.results.evaluations import Evaluation, differing_keys
from transformer.config.keys import format_value
from transformer.support.errors import UserError

T = TypeVar("T")
MAX_NAMED = 2  # settings in the name of a system; with more differences it is only the label

# Settings that separate evaluations with the same configuration and seed, tried in this order.
TIE_BREAKERS = (
    lambda evaluation: {},
    lambda evaluation: {"commit": evaluation.commit},
    lambda evaluation: {"step": evaluation.result["step"]},
    lambda evaluation: {"evaluation": str(evaluation.path.resolve())},
)


class System(NamedTuple):
    """Evaluations with different seeds.

    `differences` has the settings in which the systems differ, with the values of this system.
    """

    label: str
    differences: Json
    evaluations: tuple[Evaluation, ...]

    @property
    def name(self) -> str:
        """The label, followed by the settings in which the systems differ, unless they are many."""
        settings = describe_settings(self.differences)
        return f"{self.label}: {settings}" if settings else self.label


def describe_settings(differences: Json) -> str:
    """Returns settings as text, such as "dropout=0.1"; "" if they are too many for a name."""
    if len(differences) > MAX_NAMED or "evaluation" in differences:  # a path, too long for a name
        return ""
    parts = []
    for key, value in differences.items():
        # "model.dropout" becomes "dropout", but "data.name" would be ambiguous without its group.
        name = key if key.endswith(".name") else key.rpartition(".")[2]
        parts.append(f"{name}={format_value(value)}")
    return ", ".join(parts)


def group_systems(evaluations: Sequence[Evaluation]) -> list[System]:
    """Returns systems in the order of their first evaluations.

    Raises UserError if an evaluation is given twice.
    """
    settings = [
        evaluation.settings | _break_tie(evaluation, evaluations) for evaluation in evaluations
    ]

    systems = []
    for i, (differences, members) in enumerate(group_by_settings(evaluations, settings)):
        # A to Z, then S27, S28 and so on.
        label = string.ascii_uppercase[i] if i < 26 else f"S{i + 1}"
        systems.append(System(label, differences, tuple(members)))
    return systems


def group_by_settings(items: Sequence[T], settings: Sequence[Json]) -> list[tuple[Json, list[T]]]:
    """Groups items with equal settings.

    Returns:
      For each group, in the order of the first items: the settings that differ between groups, with
      the values of this group; and its items.
    """
    # Settings are dictionaries, which cannot be keys, so the first equal one identifies them.
    groups = {}  # by the index of their first item
    for item, item_settings in zip(items, settings, strict=True):
        groups.setdefault(settings.index(item_settings), []).append(item)

    keys = differing_keys(settings)
    return [
        ({key: settings[first].get(key) for key in keys}, members)
        for first, members in groups.items()
    ]


def _break_tie(evaluation: Evaluation, evaluations: Sequence[Evaluation]) -> Json:
    """Returns what separates an evaluation from others with the same settings and seed; or {}."""
    # The first tie breaker that makes all evaluations with the same settings and seed distinct.
    same = [candidate for candidate in evaluations if candidate.settings == evaluation.settings]
    for tie_breaker in TIE_BREAKERS:
        # Different seeds need no tie breaker.
        keys = {(candidate.config.seed, *tie_breaker(candidate).values()) for candidate in same}
        if len(keys) == len(same):
            return tie_breaker(evaluation)
    raise UserError(f"{evaluation.path}: is given twice; give it once")


def describe_search(decoding: Json) -> str:
    """Returns the search in words.

    A CTC search with a beam of 1 takes the most likely label of each frame.
    """
    strategy = decoding["strategy"]
    if strategy not in ("beam", "ctc"):
        return f"strategy {strategy}"
    if strategy == "ctc" and decoding["beam_size"] == 1:
        return "ctc greedy"

    search = f"beam {decoding['beam_size']}, alpha {decoding['length_penalty']}"
    if decoding["length_penalty_form"] != "gnmt":
        search += f", form {decoding['length_penalty_form']}"
    if decoding.get("shortlist"):  # absent in validation
        search += f", shortlist {decoding['shortlist']}"
    return f"ctc {search}" if strategy == "ctc" else search


def describe_checkpoints(steps: Iterable[int], averaged: int) -> str:
    """Returns the checkpoints that seeds were decoded with, such as "steps 900, 1000"."""
    mean = f"mean of {averaged} checkpoints, " if averaged > 1 else ""
    numbers = sorted(set(steps))
    noun = "steps" if len(numbers) > 1 else "step"
    return f"{mean}{noun} {', '.join(map(str, numbers))}"


def mean_and_spread(values: Sequence[float], form: str = ".2f") -> str:
    """Returns "MEAN ± DEVIATION", with the sample standard deviation; "MEAN" for one value."""
    mean = f"{statistics.mean(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):{form}}"
