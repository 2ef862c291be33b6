"""Progress: the best validation, and when a run validates and ends."""

import dataclasses

import ml_collections
import pytest

from transformer.training.progress import Progress


@pytest.mark.parametrize(("metric", "scores", "best"), [("bleu", [1, 3, 3, 2], 2), ("loss", [3, 1, 2, 1], 2)])
def test_the_earliest_of_equal_scores_is_the_best(metric, scores, best):
    progress = Progress()
    for step, score in enumerate(map(float, scores), start=1):
        progress = dataclasses.replace(progress, step=step).after_validation(score, metric)
        assert progress.is_best == (step in (1, best))
    assert (progress.best_step, progress.best_score) == (best, float(scores[best - 1]))
    assert progress.validations_since_best == 2


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
