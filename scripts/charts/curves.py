"""Curves of training from the records of runs.

The seeds of a system are overlaid, with their mean and a band of their spread.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from scripts.charts import theme
from scripts.results.evaluations import run_settings, training_data
from scripts.results.runs import RecordedRun, read_runs
from scripts.results.systems import describe_settings, group_by_settings
from transformer.decoding.metrics import METRICS
from transformer.support.errors import UserError

SPLITS = {"valid": "validation", "train": "training"}
# The titles of these metrics, and of METRICS, name the split.
TEACHER_FORCED = ("loss", "nll", "perplexity", "accuracy")
TITLES = {
    "loss": "loss (nats per token)",
    "nll": "negative log-likelihood (nats)",
    "seconds": "training time (s)",
    "padding_fraction": "fraction of padding",
}
LOG_TICKS = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
# Smallest ratio of the values on a logarithmic axis. A smaller range has too few round numbers.
LEAST_RATIO = 5.0
HEIGHT = {1: 110, 2: 150}
LABELS = 55  # width of a panel's axis
MAX_MARKED = 40  # points of a panel that are marked on their lines


def draw(
    workdirs: Sequence[str | os.PathLike],
    metrics: Sequence[str] = ("loss", "bleu"),
    split: str | None = None,
    columns: int = 2,
) -> Any:
    """Returns the curves of runs over the steps, in a panel for each metric.

    Runs on the same data that differ only in their seeds are one system. A system has a thin line
    for each run, their mean, and a band of one standard deviation at the steps that all runs have.

    Args:
      workdirs: folders of runs, complete or not.
      metrics: names in the lines of `metrics.jsonl`.
      split: "valid" or "train". None: for each metric valid if all runs have it, else train.
      columns: 1 or 2 columns of a paper. With 2, two panels are beside each other.

    Raises:
      UserError: a folder is not a run's, or has no record of a metric.
    """
    systems = group(read_runs(list(map(Path, workdirs))))
    in_row = min(columns, len(metrics))
    width = theme.COLUMN_WIDTHS[columns] / in_row - LABELS
    panels = [panel(systems, metric, split, width, HEIGHT[columns]) for metric in metrics]
    chart = alt.concat(*panels, columns=in_row)
    return theme.themed(chart, orient="bottom", columns=3 if columns == 2 else 1)


def group(runs: Sequence[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """Returns the runs of each system, by its label.

    The label has the settings in which the systems differ, or else names of the runs.
    """
    systems = {}
    settings = [run_settings(run.config) | training_data(run.contents) for run in runs]
    for differences, members in group_by_settings(runs, settings):
        label = describe_settings(differences)
        if not label:
            # The common beginning of the runs' names, such as "base" for base-0 and base-1.
            beginning = os.path.commonprefix([run.label for run in members])
            label = beginning.rstrip("-_./ ") or members[0].label
        if len(members) > 1:
            label += f" ({len(members)} seeds)"
        label = theme.visible(label)
        if label in systems:
            label += f" [{len(systems) + 1}]"
        systems[label] = members
    return systems


def panel(
    systems: Mapping[str, Sequence[RecordedRun]],
    metric: str,
    split: str | None,
    width: float,
    height: float,
) -> alt.LayerChart:
    """Returns the curves of one metric without a theme. Raises UserError if a run has none."""
    if split is None:
        # The first split in which all runs have the metric.
        runs = [run for members in systems.values() for run in members]
        complete = (name for name in SPLITS if all(points(run, metric, name) for run in runs))
        split = next(complete, "valid")
    records = make_records(systems, metric, split)
    y = _y_axis(metric, split, [record["value"] for record in records])

    # A single system needs no legend.
    box = alt.Legend(title=None, symbolSize=theme.LINE_SYMBOL, symbolType="stroke", symbolOpacity=1)
    legend = box if len(systems) > 1 else None
    dash = theme.categories(alt.StrokeDash, "system", systems, theme.DASHES, legend=legend)

    # The line of a run with one point is only a mark.
    shortest = min(Counter(record["run"] for record in records).values())
    is_marked = shortest == 1 or len(records) <= MAX_MARKED

    # The mean of several runs is thick, as is the line of a system with one run.
    thick = alt.MarkDef(type="line", point=alt.OverlayMarkDef(size=12) if is_marked else False)
    chart = theme.chart_of(records).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=4)),
        y=alt.Y("value:Q", **y),
        color=theme.categories(alt.Color, "system", systems, theme.CATEGORICAL, legend=legend),
    )

    # Vega warns about layers without data.
    layers = []
    if any(record["has_mean"] for record in records):
        # The band and the mean of the seeds, with a thin line for each seed.
        common = chart.transform_filter("datum.is_common")
        seeds = chart.transform_filter("datum.has_mean").mark_line(strokeWidth=0.5, opacity=0.6)
        mean = alt.Y("mean(value):Q", **y)
        layers = [
            common.mark_errorband(extent="stdev", opacity=0.2),
            seeds.encode(detail="run:N"),
            common.properties(mark=thick).encode(y=mean, strokeDash=dash),
        ]
    if not all(record["has_mean"] for record in records):
        # A line for each run of the other systems.
        single = chart.transform_filter("!datum.has_mean").properties(mark=thick)
        layers.append(single.encode(detail="run:N", strokeDash=dash))
    return alt.layer(*layers).properties(width=width, height=height)


def make_records(
    systems: Mapping[str, Sequence[RecordedRun]], metric: str, split: str
) -> list[dict[str, Any]]:
    """Returns a record for each point of each run. Raises UserError if a run has no points."""
    records = []
    for label, runs in systems.items():
        curves = [points(run, metric, split) for run in runs]

        # The mean is drawn at the steps that all runs of the system have.
        common = set.intersection(*map(set, curves)) if len(runs) > 1 else set()
        for run, curve in zip(runs, curves, strict=True):
            if not curve:
                raise UserError(f"{run.label}: its record has no {metric} of the split {split}")
            fields = {"system": label, "run": run.label, "has_mean": bool(common)}
            for step, y in curve.items():
                records.append({**fields, "step": step, "value": y, "is_common": step in common})
    return records


def _y_axis(metric: str, split: str, values: Sequence[float]) -> dict[str, Any]:
    """Returns title, scale and axis of the values of a metric."""
    name = title(metric)
    if metric in METRICS or metric in TEACHER_FORCED:
        name = f"{SPLITS[split]} {name}"
    scale = alt.Scale(zero=False)
    axis = alt.Axis(tickCount=5)
    if min(values) == max(values):  # Vega rounds the label of an axis without length to an integer
        axis = alt.Axis(values=values[:1], format=".4~g")
    if metric == "perplexity" and 0 < LEAST_RATIO * min(values) <= max(values):
        scale = alt.Scale(type="log", nice=False)
        axis = alt.Axis(values=LOG_TICKS)
    return {"title": name, "scale": scale, "axis": axis}


def title(metric: str) -> str:
    if metric in METRICS:
        return METRICS[metric].label
    return TITLES.get(metric, metric.replace("_", " "))


def points(run: RecordedRun, metric: str, split: str) -> dict[int, float]:
    """Returns the finite values of a metric by step; {} if the run's record has none."""
    # If a step has several lines, the last one counts.
    values = {line["step"]: line.get(metric) for line in run.record if line["split"] == split}
    return {
        step: float(value)
        for step, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
