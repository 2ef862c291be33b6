"""The record of a run: its numbers by hand, and that interruptions leave no trace in it."""

import dataclasses
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from transformer.data.batches.loader import BatchStats
from transformer.training.loss import LossSums
from transformer.training.metrics import Recorder, TrainingWindow, means
from transformer.training.progress import Progress
from transformer.workdir import Workdir

# What scripts and people rely on in a line of `metrics.jsonl`.
ALWAYS = {"step", "split", "loss", "nll", "perplexity", "accuracy", "examples", "tokens"}
TRAIN = ALWAYS | {"learning_rate", "gradient_norm", "tokens_per_second", "padding_fraction", "seconds"}

STATS = BatchStats(sentences=2, source_pieces=6, target_pieces=4, positions=16)


def step_metrics(loss, nll, correct, tokens, rate):
    """As a step returns them, for as many tokens."""
    values = (jnp.float32(value) for value in (loss, nll, correct, tokens, 2))
    norm = jnp.float32(10 * rate)
    return {
        "sums": LossSums(*values),
        "learning_rate": jnp.float32(rate),
        "gradient_norm": norm,
        "skipped": jnp.int32(0),
    }


FIRST, SECOND, THIRD = (step_metrics(*values) for values in [(9, 6, 1, 3, 0.25), (3, 2, 4, 5, 0.5), (4, 4, 1, 2, 0.75)])


@pytest.fixture
def workdir(tmp_path) -> Workdir:
    return Workdir(tmp_path)


def record(workdir) -> list[dict]:
    return [json.loads(line) for line in workdir.metrics.read_text().splitlines()]


def events(path: Path) -> Iterator[Event]:
    """Of a file of TensorBoard's: length, its checksum, content, its checksum."""
    content = path.read_bytes()
    while content:
        (length,) = struct.unpack("Q", content[:8])
        yield Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]


def shown(workdir: Workdir) -> list[tuple[int, str, float]]:
    """Step, curve and value of each point that TensorBoard shows: from a start's step on, no earlier ones."""
    points = []
    for path in sorted(workdir.tensorboard.iterdir()):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                points = [point for point in points if point[0] < event.step]
            points += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return points


def test_means_are_per_token_and_perplexity_is_of_the_truth():
    values = means({"loss": 12.0, "nll": 8.0, "correct": 6.0, "tokens": 8.0, "sentences": 2.0})
    assert values == {"loss": 1.5, "nll": 1.0, "perplexity": math.e, "accuracy": 0.75}


def test_a_diverged_run_still_has_a_perplexity():
    assert means({"loss": 1e6, "nll": 1e6, "correct": 0.0, "tokens": 1.0})["perplexity"] == math.exp(700)
    assert math.isnan(means({"loss": math.nan, "nll": math.nan, "correct": 0.0, "tokens": 1.0})["perplexity"])


def test_a_window_weighs_its_steps_by_their_tokens():
    window = TrainingWindow(None)
    assert window.totals() is None
    window.add(FIRST, [STATS])
    window.add(SECOND, [STATS, dataclasses.replace(STATS, positions=48)])
    values = window.summary(waited=0.0)
    assert (values["loss"], values["nll"], values["accuracy"]) == (12 / 8, 8 / 8, 5 / 8)
    assert (values["learning_rate"], values["gradient_norm"]) == (0.5, (2.5 + 5.0) / 2)
    assert values["padding_fraction"] == 1 - 30 / 80
    assert values["tokens_per_second"] == pytest.approx(values["steps_per_second"] * 4)
    window.restart(waited=0.0)
    window.add(THIRD, [STATS])
    assert window.summary(waited=0.0)["loss"] == 2.0


def test_a_window_goes_on_after_an_interruption():
    straight, before = TrainingWindow(None), TrainingWindow(None)
    for window in (straight, before):
        window.add(FIRST, [STATS])
    after = TrainingWindow(json.loads(json.dumps(before.totals())))
    assert after.totals() == before.totals()
    for window in (straight, after):
        window.add(SECOND, [STATS])
        window.add(THIRD, [STATS])
    assert after.totals() == straight.totals()
    lines = [window.summary(0.0) for window in (straight, after)]
    for name in ("loss", "nll", "perplexity", "accuracy", "learning_rate", "gradient_norm", "padding_fraction"):
        assert lines[0][name] == lines[1][name]
    # Three steps of ten tokens against the two of seven that took this process's time.
    assert lines[1]["tokens_per_second"] == pytest.approx(lines[1]["steps_per_second"] * 3.5)
    after.restart(0.0)
    assert after.totals() is None


def test_only_a_step_with_as_many_after_it_as_may_be_under_way_is_waited_for():
    waited = []

    class UnderWay:
        def __init__(self, number: int) -> None:
            self.number = number

        def block_until_ready(self) -> None:
            waited.append(self.number)

    window = TrainingWindow(None)
    for number, known in enumerate([[], [0], [0, 1]]):
        window.add({"sums": UnderWay(number)}, [STATS])
        assert waited == known
    window.restart(waited=0.0)
    window.add({"sums": UnderWay(3)}, [STATS])
    assert waited == [0, 1]


def test_pauses_do_not_count_as_training(monkeypatch):
    clock = iter([0.0, 10.0, 110.0, 120.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    window = TrainingWindow(None)
    window.add(FIRST, [STATS])
    with window.pause():
        pass
    values = window.summary(waited=5.0)
    assert (values["steps_per_second"], values["tokens_per_second"], values["waiting_fraction"]) == (0.05, 0.15, 0.25)


def test_a_line_has_what_is_promised(workdir):
    progress = Progress(step=7, examples=20, tokens=80, seconds=1.23456)
    window = TrainingWindow(None)
    window.add(FIRST, [STATS])
    with Recorder(workdir, Progress()) as recorder:
        recorder.write("train", progress, window.summary(0.0))
        recorder.write(
            "valid", progress, means({"loss": 1.0, "nll": 1.0, "correct": 0.0, "tokens": 1.0}) | {"bleu": 3.0}
        )
    train, valid = record(workdir)
    assert set(train) >= TRAIN and set(valid) >= ALWAYS | {"bleu"}
    assert (train["step"], train["split"], train["examples"], train["tokens"]) == (7, "train", 20, 80)
    assert (valid["split"], valid["seconds"]) == ("valid", 1.235)
    assert (7, "train/loss", 3.0) in shown(workdir) and (7, "valid/bleu", 3.0) in shown(workdir)


def test_going_on_drops_what_came_after_the_checkpoint(workdir):
    with Recorder(workdir, Progress()) as recorder:
        for step in (1, 2, 3, 4):
            for split in ("train", "valid"):
                recorder.write(split, Progress(step=step), {"loss": float(step)})
    with workdir.metrics.open("a") as file:
        file.write('{"step": 1, "split": "tr')
    before = [(1, "train", 1.0), (1, "valid", 1.0), (2, "train", 2.0), (2, "valid", 2.0)]
    with Recorder(workdir, Progress(step=2, validated_step=2)) as recorder:
        check_losses(workdir, before)
        recorder.write("train", Progress(step=3), {"loss": 3.5})
    check_losses(workdir, [*before, (3, "train", 3.5)])
    # The checkpoint may come before the validation of its step, and the kill after it.
    with Recorder(workdir, Progress(step=2, validated_step=1)) as recorder:
        check_losses(workdir, before[:3])
        recorder.write("valid", Progress(step=2), {"loss": 2.5})
    check_losses(workdir, [*before[:3], (2, "valid", 2.5)])
    with Recorder(workdir, Progress()):
        check_losses(workdir, [])


def check_losses(workdir: Workdir, expected: list[tuple[int, str, float]]) -> None:
    """Each once and in order in the record; each once in TensorBoard's curves."""
    assert [(line["step"], line["split"], line["loss"]) for line in record(workdir)] == expected
    assert sorted(shown(workdir)) == [(step, f"{split}/loss", loss) for step, split, loss in expected]


@pytest.mark.parametrize("damage", ["{}", "[]", "7", '"step"', '{"step": null}', "\0\0"])
def test_a_line_that_is_none_is_dropped(workdir, damage):
    lines = [{"step": 1, "split": "train"}, {"step": 2, "split": "train"}]
    workdir.metrics.write_text(f"{json.dumps(lines[0])}\n{damage}\n{json.dumps(lines[1])}\n")
    with Recorder(workdir, Progress(step=2)):
        assert record(workdir) == lines


@pytest.mark.parametrize(("metric", "scores", "best"), [("bleu", [1, 3, 3, 2], 2), ("loss", [3, 1, 2, 1], 2)])
def test_the_first_of_the_best_stays_the_best(metric, scores, best):
    progress = Progress()
    for step, score in enumerate(map(float, scores), start=1):
        progress = dataclasses.replace(progress, step=step).validated(score, metric)
        assert progress.is_best == (step in (1, best))
    assert (progress.best_step, progress.best_score) == (best, float(scores[best - 1]))
    assert progress.validations_since_best == 2
