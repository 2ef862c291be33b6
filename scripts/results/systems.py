"""Systems, which are groups of evaluations that differ only in the seed of their runs, and how they
are described.
"""

import statistics
import string
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from scripts.results.evaluations import Evaluation, Settings, differing_keys
from transformer.config.keys import show
from transformer.support.errors import UserError

T = TypeVar("T")
MAX_NAMED = 2  # settings in the name of a system; one that differs in more is named otherwise

# Settings that separate evaluations with the same configuration and seed, tried in this order.
TIE_BREAKERS = (
    lambda evaluation: {},
    lambda evaluation: {"commit": evaluation.commit},
    lambda evaluation: {"step": evaluation.result["step"]},
    lambda evaluation: {"evaluation": str(evaluation.path.resolve())},
)


class System(NamedTuple):
    """Evaluations with different seeds.

    `differences` holds its values of the settings in which the systems differ.
    """

    label: str
    differences: Settings
    evaluations: tuple[Evaluation, ...]

    @property
    def name(self) -> str:
        """The label, followed by the settings in which the systems differ unless they are many."""
        return ": ".join(filter(None, (self.label, describe_settings(self.differences))))


def describe_settings(differences: Settings) -> str:
    """Returns the settings in which a system differs from others; "" if they are too many for a
    name.
    """
    if len(differences) > MAX_NAMED or "evaluation" in differences:  # a path, too long for a name
        return ""
    short = {key: key if key.endswith(".name") else key.rpartition(".")[2] for key in differences}
    return ", ".join(f"{short[key]}={show(value)}" for key, value in differences.items())


def group_systems(evaluations: Sequence[Evaluation]) -> list[System]:
    """Returns systems in the order of their first evaluations.

    Raises UserError if an evaluation is given twice.
    """
    settings = [
        evaluation.settings | _break_tie(evaluation, evaluations) for evaluation in evaluations
    ]
    systems = []
    for differences, members in grouped(evaluations, settings):
        label = (
            string.ascii_uppercase[len(systems)] if len(systems) < 26 else f"S{len(systems) + 1}"
        )
        systems.append(System(label, differences, tuple(members)))
    return systems


def grouped(items: Sequence[T], settings: Sequence[Settings]) -> list[tuple[Settings, list[T]]]:
    """Returns the items with equal settings together, and the settings in which the groups differ."""
    groups = {}  # by the number of their first item
    for item, own in zip(items, settings, strict=True):
        groups.setdefault(settings.index(own), []).append(item)
    keys = differing_keys(settings)
    return [
        ({key: settings[first].get(key) for key in keys}, members)
        for first, members in groups.items()
    ]


def _break_tie(evaluation: Evaluation, evaluations: Sequence[Evaluation]) -> Settings:
    """Returns what separates an evaluation from those with the same settings and seed, if there are
    any.
    """
    same = [candidate for candidate in evaluations if candidate.settings == evaluation.settings]
    for tie_breaker in TIE_BREAKERS:
        if len(
            {(candidate.config.seed, *tie_breaker(candidate).values()) for candidate in same}
        ) == len(same):
            return tie_breaker(evaluation)
    raise UserError(f"{evaluation.path}: is given twice; give it once")


def describe_search(decoding: Settings) -> str:
    """Returns the search in words.

    A CTC search with a beam of 1 takes the most likely label of each frame.
    """
    beam = f"beam {decoding['beam_size']}, alpha {decoding['length_penalty']}"
    if (form := decoding["length_penalty_form"]) != "gnmt":
        beam += f", form {form}"
    if size := decoding.get("shortlist"):  # validation has none
        beam += f", shortlist {size}"
    ctc = "ctc greedy" if decoding["beam_size"] == 1 else f"ctc {beam}"
    return {"beam": beam, "ctc": ctc}.get(decoding["strategy"], f"strategy {decoding['strategy']}")


def describe_checkpoints(steps: Iterable[int], averaged: int) -> str:
    """Returns the steps of the checkpoints that the seeds were decoded with, and how many were
    averaged.
    """
    mean = f"mean of {averaged} checkpoints, " if averaged > 1 else ""
    numbers = sorted(set(steps))
    return f"{mean}step{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def mean_and_spread(values: Sequence[float], form: str = ".2f") -> str:
    """Returns the mean, followed by ± and the sample standard deviation if there are several
    values.
    """
    mean = f"{statistics.mean(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):{form}}"
