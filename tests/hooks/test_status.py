"""The time left of a run, and what a terminal of 80 columns shows."""

import io
import sys

import pytest
from rich.console import Console

from tests.training.tiny import tiny_config
from transformer.hooks import status
from transformer.hooks.status import Status, sparkline
from transformer.support import progress_bar
from transformer.training.progress import Progress
from transformer.training.samples import ValidationSample
from transformer.training.state import TrainState

STATE = TrainState(0, 0, {}, (), None)
VALUES = {
    "loss": 12.345,
    "nll": 9.0,
    "perplexity": 8103.08,
    "learning_rate": 0.002,
    "tokens_per_second": 98765.4,
}
VALUES |= {"waiting_fraction": 0.0, "skipped": 0}


@pytest.fixture
def clock(monkeypatch):
    """Replaces the clock of the status by a list with the present second."""
    now = [0.0]
    monkeypatch.setattr(status.time, "perf_counter", lambda: now[0])
    return now


def started(step: int, steps: int) -> Status:
    shown = Status(tiny_config(training__steps=steps))
    shown.on_start(Progress(step=step))
    shown.before_step(step + 1)
    return shown


def test_the_time_left_includes_validation_and_excludes_what_precedes_the_first_step(clock):
    clock[0] += 1000.0
    shown = started(100, 200)
    for _ in range(10):
        clock[0] += 2.0
        shown.after_step()
    assert shown.time_left == "3m00s"  # 90 steps of 2 seconds
    with shown.during("validating"):
        clock[0] += 80.0
    assert shown.time_left == "15m00s"  # 90 steps of 10 seconds


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([5.0], "▁"),
        ([1.0, 1.0], "▁▁"),
        ([0.0, 1.0, 7.0, 6.0], "▁▂█▇"),
        ([2.0] * 8 + [9.0] * 8, "▁▁▁▁████"),
    ],
)
def test_a_sparkline_has_the_means_of_equal_groups(values, text):
    assert sparkline(values, 8) == text


def test_the_bar_shows_loss_speed_activity_and_time_left_in_80_columns(clock, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        progress_bar, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=80)
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress_bar.logging, "level_info", lambda: True)
    with started(99_000, 100_000) as shown:
        clock[0] += 100.0
        shown.after_step()
        shown.on_log(Progress(), VALUES)
        shown.on_validation(Progress(), VALUES | {"bleu": 33.25}, [])
        sample = ValidationSample("A source that is read.", "Eine Referenz.", "Ein Satz.", None)
        shown.on_validation(Progress(), VALUES | {"bleu": 41.5}, [sample])
        with shown.during("validating"):
            shown.bar.refresh()
    text = screen.getvalue()
    parts = ("validating", "99001/100000", "loss 12.345", "98.8k tok/s", "27h45m left")
    for part in (*parts, "▁█ 41.50", "that is read.", "Ein Satz."):
        assert part in text


def test_log_lines_fit_in_80_columns(clock, caplog):
    shown = started(0, 2)
    clock[0] += 24 * 3600.0 - 1
    shown.after_step()
    with caplog.at_level("INFO"):
        shown.on_log(Progress(step=99_999), VALUES)
        shown.on_validation(Progress(step=99_999, best_step=99_999), VALUES | {"bleu": 41.666}, [])
    lines = [entry.getMessage() for entry in caplog.records]
    assert max(len("12:34:56 " + line) for line in lines) <= 80
    assert lines == [
        "step 99999  loss 12.345  ppl 8103  lr 2.0e-03  98.8k tok/s  23h59m left",
        "step 99999  validation  loss 12.345  ppl 8103  BLEU 41.67  (best)",
    ]
