"""Measures of the confidence in the translations of evaluations, on any text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scripts.charts import theme
from scripts.reporting.sections import HEIGHT, Section
from scripts.results.calibration import Values, measure, reliability
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
    notes = []
    rows = []
    reliabilities = {}
    coverages = {}
    for run in runs:
        if not run.workdir.calibration.exists():
            continue
        try:
            evaluations = read_confidences(run)
        except UserError as error:
            notes.append(str(error))
            continue
        if not evaluations:
            notes.append(
                f"{run.label} has a calibration and no evaluation with it; run "
                "transformer.evaluate with --confidence."
            )
        for evaluation, confidences, chrf in evaluations:
            name = f"{run.label}, {evaluation.path.stem}"
            is_right = chrf >= evaluation.result["confidence_threshold"]
            rows.append((name, *cells(evaluation, measure(confidences, is_right))))
            reliabilities[name] = tuple(reliability(confidences, is_right)[:, 1:].T)
            coverages[name] = coverage(confidences, chrf)
    if not rows:
        return [Section("confidence", "Confidence", None, notes)] if notes else []

    # The last one, so that the evaluations have the same colours in both charts.
    reliabilities["calibrated"] = (np.arange(2), np.arange(2))
    axes = {
        "reliability": (reliabilities, "confidence", "right"),
        "coverage": (coverages, "share of the translations", "chrF"),
    }
    charts = {}
    for chart, (curves, x, y) in axes.items():
        lines = theme.lines(curves, x, y, None, HEIGHT, HEIGHT)
        charts[chart] = lines.configure_legend(orient="top").to_dict()
    content = {"header": HEADER, "rows": rows, "panels": PANELS}
    return [Section("confidence", "Confidence", content, notes, charts)]


def read_confidences(run: RecordedRun) -> list[tuple[Evaluation, Values, Values]]:
    """Returns evaluations with the confidence and the chrF of all translations that have tokens.

    Raises UserError if a file is damaged.
    """
    evaluations = []
    for path in sorted(run.workdir.evaluations.glob("*.json")):
        evaluation = read_evaluation(path)
        if "confidence_threshold" in evaluation.result:
            columns = [evaluation.sentence_numbers(name) for name in ("confidence", "chrf")]
            values = np.array(columns)
            values = values[:, np.isfinite(values).all(axis=0)]
            if values.size:
                evaluations.append((evaluation, *values))
    return evaluations


def cells(evaluation: Evaluation, measures: Mapping[str, Any]) -> list[str]:
    """Returns the cells of a row after the first one."""
    texts = [
        evaluation.text,
        f"chrF {evaluation.result['confidence_threshold']:g}",
        str(measures["items"]),
        f"{measures['right']:.1%}",
    ]
    for name in ("auc", "calibration_error"):
        if measures[name] is None:
            texts.append("not defined")
        else:
            low, high = measures[f"{name}_interval"]
            texts.append(f"{measures[name]:.3f} [{low:.3f}, {high:.3f}]")
    return texts


def coverage(confidences: Values, chrf: Values) -> tuple[Values, Values]:
    """Returns shares of the translations, most confident first, and their mean chrF."""
    order = np.argsort(-confidences, kind="stable")
    counts = np.arange(1, len(chrf) + 1)
    means = np.cumsum(chrf[order]) / counts
    shown = np.unique(np.linspace(0, len(chrf) - 1, POINTS).astype(int))
    return counts[shown] / len(chrf), means[shown]
