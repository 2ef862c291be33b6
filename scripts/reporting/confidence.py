"""Measures of the confidence in the translations of evaluations, on any text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from scripts.charts import theme
from scripts.reporting.sections import HEIGHT, Section
from scripts.results.calibration import measure, reliability
from scripts.results.evaluations import Evaluation, read_evaluation
from scripts.results.runs import RecordedRun
from transformer.support.errors import UserError

HEADER = ("evaluation", "text", "threshold", "translations", "right", "AUC", "calibration error")
POINTS = 100  # of a curve
PANELS = {
    "reliability": "Share of right translations by confidence, in ten bins",
    "coverage": "Mean chrF of the most confident translations, by their share of all",
}


def confidence_sections(runs: Sequence[RecordedRun]) -> list[Section]:
    """Returns the section on all evaluations of runs with a calibration; none without such runs."""
    calibrated = [run for run in runs if run.workdir.calibration.exists()]
    rows = []
    notes = []
    reliabilities = {}
    coverages = {}
    for run in calibrated:
        evaluations = []
        for path in sorted(run.workdir.evaluations.glob("*.json")):
            try:
                evaluation = read_evaluation(path)
                if "confidence_threshold" in evaluation.result:
                    evaluations.append((evaluation, *read_confidences(evaluation)))
            except UserError as error:
                notes.append(str(error))
        if not evaluations:
            notes.append(
                f"{run.label} has a calibration and no evaluation with it; run "
                "transformer.evaluate again."
            )
        for evaluation, confidences, chrf in evaluations:
            name = f"{run.label}, {evaluation.path.stem}"
            is_right = chrf >= evaluation.result["confidence_threshold"]
            rows.append((name, *describe(evaluation, confidences, is_right)))
            _, mean_confidences, accuracies = reliability(confidences, is_right).T
            reliabilities[name] = (mean_confidences, accuracies)
            coverages[name] = coverage(confidences, chrf)
    if not rows:
        return [Section("confidence", "Confidence", None, notes)] if notes else []

    reliabilities["calibrated"] = (np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    axes = {
        "reliability": (reliabilities, "confidence", "right"),
        "coverage": (coverages, "share of the translations", "chrF"),
    }
    charts = {
        name: theme.lines(curves, x, y, None, HEIGHT, HEIGHT)
        .configure_legend(orient="top")
        .to_dict()
        for name, (curves, x, y) in axes.items()
    }
    content = {"header": HEADER, "rows": rows, "panels": PANELS}
    return [Section("confidence", "Confidence", content, notes, charts)]


def read_confidences(
    evaluation: Evaluation,
) -> tuple[Float[np.ndarray, "N"], Float[np.ndarray, "N"]]:
    """Returns confidence and chrF of each translation that has tokens.

    Raises UserError if there are none.
    """
    columns = [evaluation.sentence_numbers(field) for field in ("confidence", "chrf")]
    values = np.array(columns)
    confidences, chrf = values[:, np.isfinite(values).all(axis=0)]
    if not len(chrf):
        raise UserError(f"{evaluation.path}: no translation has tokens, so none has a confidence.")
    return confidences, chrf


def describe(
    evaluation: Evaluation, confidences: Float[np.ndarray, "N"], is_right: np.ndarray
) -> list[str]:
    """Returns the cells of an evaluation after the first one."""
    measures = measure(confidences, is_right, np.arange(len(is_right)))
    return [
        evaluation.text,
        f"chrF {evaluation.result['confidence_threshold']:g}",
        str(measures["items"]),
        f"{measures['right']:.1%}",
        *(with_interval(measures, name) for name in ("auc", "calibration_error")),
    ]


def with_interval(measures: dict[str, Any], name: str) -> str:
    if measures[name] is None:
        return "not defined"
    low, high = measures[f"{name}_interval"]
    return f"{measures[name]:.3f} [{low:.3f}, {high:.3f}]"


def coverage(
    confidences: Float[np.ndarray, "N"], chrf: Float[np.ndarray, "N"]
) -> tuple[Float[np.ndarray, "P"], Float[np.ndarray, "P"]]:
    """Returns shares of the translations, most confident first, and their mean chrF."""
    order = np.argsort(-confidences, kind="stable")
    counts = np.arange(1, len(chrf) + 1)
    means = np.cumsum(chrf[order]) / counts
    shown = np.unique(np.linspace(0, len(chrf) - 1, POINTS).astype(int))
    return counts[shown] / len(chrf), means[shown]
