"""Progress: the best validation, and when a run validates and ends."""

import dataclasses
import json
import math

import ml_collections
import pytest

from transformer.decoding.metrics import METRICS, Metric
from transformer.training.progress import Progress

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("metric", "scores", "losses", "bests"),
    [
        ("bleu", [1, 3, 3, 2], [4, 3, 3, 2], [1, 2]),  # of equal scores and losses the first
        ("loss", [3, 1, 2, 1], [3, 1, 2, 1], [1, 2]),
        # of equal scores the one of lower loss
        ("bleu", [0, 0, 0, 0, 2, 2], [5, 4, 6, 3, 9, 8], [1, 2, 4, 5, 6]),
        # what is not finite is worse than any other
        ("loss", [NAN, 3, NAN, INF, 2], [NAN, 3, NAN, INF, 2], [1, 2, 5]),
        ("bleu", [0, 0, 0], [NAN, 4, NAN], [1, 2]),
        ("errors/news", [80, 50, 60], [1, 1, 1], [1, 2]),  # a metric of the table that is to be low
    ],
)
def test_the_best_validation_has_the_best_score_then_the_lowest_loss(
    metric, scores, losses, bests, monkeypatch
):
    monkeypatch.setitem(METRICS, "errors", Metric(None, "errors", direction="minimize"))
    progress = Progress()
    for step, (score, loss) in enumerate(
        zip(map(float, scores), map(float, losses), strict=True), start=1
    ):
        progress = dataclasses.replace(progress, step=step).after_validation(
            {"loss": loss, metric: score}, metric
        )
        assert progress.is_best == (step in bests)
        assert progress.validations_since_best == step - max(best for best in bests if best <= step)
        # as a run that resumes
        progress = Progress(**json.loads(json.dumps(dataclasses.asdict(progress))))
    assert (progress.best_step, progress.best_score) == (bests[-1], scores[bests[-1] - 1])


def test_a_checkpoint_without_the_loss_of_the_best_takes_the_next_of_equal_scores():
    old = Progress(step=8, best_step=4, best_score=2.0)
    assert old.after_validation({"loss": 3.0, "bleu": 2.0}, "bleu").best_loss == 3.0
    assert not old.after_validation({"loss": 3.0, "bleu": 1.0}, "bleu").is_best


def test_a_run_ends_after_its_last_validation_or_without_patience():
    training = ml_collections.ConfigDict({"steps": 10, "eval_every": 4, "patience": 2})
    due = [step for step in range(11) if Progress(step=step).validation_due(training)]
    assert due == [4, 8, 10]
    assert not Progress(step=8, validated_step=8).validation_due(training)
    assert not Progress(step=10, validated_step=8).is_finished(training)
    assert Progress(step=10, validated_step=10).is_finished(training)
    assert Progress(step=8, validated_step=8, validations_since_best=2).is_finished(training)
    training.patience = 0
    assert not Progress(step=8, validated_step=8, validations_since_best=9).is_finished(training)
