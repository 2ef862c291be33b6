"""Metrics of training: means over tokens, and windows that an interruption does not change."""

import dataclasses
import json
import math

import jax.numpy as jnp
import pytest

from transformer.data.batches.loader import BatchStats
from transformer.training.loss import LossSums
from transformer.training.progress import TrainingWindow, per_token_means

STATS = BatchStats(sentences=2, source_tokens=6, target_tokens=4, positions=16)


def step_metrics(loss, nll, correct, tokens, rate):
    """Returns the metrics of a step with these sums."""
    values = (jnp.float32(value) for value in (loss, nll, correct, tokens))
    norm = jnp.float32(10 * rate)
    return {
        "sums": LossSums(*values),
        "learning_rate": jnp.float32(rate),
        "gradient_norm": norm,
        "skipped": jnp.int32(0),
    }


FIRST, SECOND, THIRD = (
    step_metrics(*values) for values in [(9, 6, 1, 3, 0.25), (3, 2, 4, 5, 0.5), (4, 4, 1, 2, 0.75)]
)


def test_means_are_per_token_and_perplexity_is_of_the_unsmoothed_loss():
    values = per_token_means({"loss": 12.0, "nll": 8.0, "correct": 6.0, "tokens": 8.0})
    assert values == {"loss": 1.5, "nll": 1.0, "perplexity": math.e, "accuracy": 0.75}
    # of small weights
    small = {"loss": 3 / 1024, "nll": 2 / 1024, "correct": 1.5 / 1024, "tokens": 2 / 1024}
    assert per_token_means(small) == values
    assert per_token_means(dict.fromkeys(small, 0.0))["loss"] == 0.0


def test_the_perplexity_of_a_diverged_run_is_bounded():
    assert per_token_means({"loss": 1e6, "nll": 1e6, "correct": 0.0, "tokens": 1.0})[
        "perplexity"
    ] == math.exp(700)
    assert math.isnan(
        per_token_means({"loss": math.nan, "nll": math.nan, "correct": 0.0, "tokens": 1.0})[
            "perplexity"
        ]
    )


def test_a_window_weights_its_steps_by_their_tokens():
    window = TrainingWindow({})
    assert window.totals() == {}
    window.add(FIRST, [STATS])
    window.add(SECOND, [STATS, dataclasses.replace(STATS, positions=48)])
    values = window.summary(data_wait_seconds=0.0)
    assert (values["loss"], values["nll"], values["accuracy"]) == (12 / 8, 8 / 8, 5 / 8)
    assert (values["learning_rate"], values["gradient_norm"]) == (0.5, (2.5 + 5.0) / 2)
    assert values["padding_fraction"] == 1 - 30 / 80
    # Three batches in two steps: unlike the sums, the speed is not weighted.
    assert values["tokens_per_second"] == pytest.approx(
        values["steps_per_second"] * 3 / 2 * STATS.target_tokens
    )


def test_an_interruption_changes_only_the_timings_of_a_window():
    straight, before = TrainingWindow({}), TrainingWindow({})
    for window in (straight, before):
        window.add(FIRST, [STATS])
    after = TrainingWindow(json.loads(json.dumps(before.totals())))
    assert after.totals() == before.totals()
    for window in (straight, after):
        window.add(SECOND, [STATS])
        window.add(THIRD, [STATS])
    assert after.totals() == straight.totals()
    lines = [window.summary(0.0) for window in (straight, after)]
    for name in (
        "loss",
        "nll",
        "perplexity",
        "accuracy",
        "learning_rate",
        "gradient_norm",
        "padding_fraction",
    ):
        assert lines[0][name] == lines[1][name]
    # Speed counts only the two steps that this process made.
    assert lines[1]["tokens_per_second"] == pytest.approx(
        lines[1]["steps_per_second"] * STATS.target_tokens
    )


def test_adding_a_step_waits_until_fewer_than_two_are_in_flight():
    waited = []

    class InFlight:
        def __init__(self, number: int) -> None:
            self.number = number

        def block_until_ready(self) -> None:
            waited.append(self.number)

    window = TrainingWindow({})
    for number, known in enumerate([[], [0], [0, 1]]):
        window.add({"sums": InFlight(number)}, [STATS])
        assert waited == known


def test_pauses_are_excluded_from_the_timings(monkeypatch):
    clock = iter([0.0, 10.0, 110.0, 120.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    window = TrainingWindow({})
    window.add(FIRST, [STATS])
    with window.pause():
        pass
    values = window.summary(data_wait_seconds=5.0)
    assert (
        values["steps_per_second"],
        values["tokens_per_second"],
        values["waiting_fraction"],
    ) == (0.05, 0.2, 0.25)


def test_a_window_of_skipped_updates_has_no_summary_and_skipped_updates_no_part_in_the_means():
    window = TrainingWindow({})
    skipped = {
        **FIRST,
        "sums": LossSums.zeros(),
        "gradient_norm": jnp.float32(math.inf),
        "skipped": jnp.int32(1),
    }
    window.add(skipped, [STATS])
    assert window.summary(0.0) is None
    window.add(SECOND, [STATS])
    values = window.summary(0.0)
    assert (values["loss"], values["gradient_norm"], values["skipped"]) == (3 / 5, 5.0, 1)


def test_no_predicted_token_gives_a_loss_of_zero():
    assert (
        per_token_means({"loss": 0.0, "nll": 0.0, "correct": 0.0, "tokens": 0.0})["perplexity"]
        == 1.0
    )
