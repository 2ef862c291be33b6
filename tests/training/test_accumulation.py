"""The phases of a run by the number of batches of an update."""

import pytest

from tests.training.tiny import tiny_config
from transformer.training.accumulation import batches_at, phases, update_kinds


def training(steps: int, accumulation: int, changes: str):
    return tiny_config(
        training__steps=steps,
        training__accumulation=accumulation,
        training__accumulation_changes=changes,
    ).training


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("", [3, 3, 3, 3, 3, 3]),
        ("2:1", [3, 1, 1, 1, 1, 1]),
        ("3:4,5:2", [3, 3, 4, 4, 2, 2]),
        ("6:9", [3, 3, 3, 3, 3, 9]),
        ("7:9,8:1", [3, 3, 3, 3, 3, 3]),  # after the last step
    ],
)
def test_each_step_has_the_batches_of_the_last_change_up_to_it(changes, expected):
    config = training(6, 3, changes)
    assert [batches_at(step, config) for step in range(1, 7)] == expected
    assert [count for steps, count in phases(config) for _ in steps] == expected
    assert [step for steps, _ in phases(config) for step in steps] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("accumulation", "changes", "expected"),
    [
        (1, "", [False]),
        (4, "", [True]),
        (1, "3:2,4:8", [True, False]),
        (2, "3:1", [True, False]),
        (2, "3:4", [True]),
        (1, "9:2", [False]),
        (1, "8:2,9:4", [False]),
    ],
)
def test_only_the_programs_of_updates_that_occur_are_needed(accumulation, changes, expected):
    assert update_kinds(training(6, accumulation, changes)) == expected
