"""Curves of training from the records of runs: the seeds of a system overlaid, with a band of their
mean and spread.
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
from scripts.results.systems import describe_settings, grouped
from transformer.decoding.bleu import METRICS
from transformer.support.errors import UserError

SPLITS = {"valid": "validation", "train": "training"}
# these and METRICS have the split in their titles
TEACHER_FORCED = ("loss", "nll", "perplexity", "accuracy")
TITLES = {
    "loss": "loss (nats per token)",
    "nll": "negative log-likelihood (nats)",
    "seconds": "training time (s)",
    "padding_fraction": "fraction of padding",
}
LOG_TICKS = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
LEAST_RATIO = 5.0  # of the values on a logarithmic axis; a smaller range has too few round numbers
HEIGHT = {1: 110, 2: 150}
LABELS = 55  # width of a panel's axis
MAX_MARKED = 40  # points of a panel; with more, curves of several points have no marks at them


def draw(
    workdirs: Sequence[str | os.PathLike],
    metrics: Sequence[str] = ("loss", "bleu"),
    split: str | None = None,
    columns: int = 2,
) -> Any:
    """Returns the curves of runs over the steps, in a panel for each metric.

    Runs on the same data that differ only in their seed are one system: thin lines, and their mean
    with a band of one standard deviation at the steps that all of them have.

    Args:
      workdirs: folders of runs, complete or not.
      metrics: names in the lines of `metrics.jsonl`.
      split: "valid" or "train". None: for each metric valid if all runs have it, else train.
      columns: 1 or 2 columns of a paper. Two panels stand beside each other in 2, one above the
          other in 1.

    Raises:
      UserError: a folder is not a run's, or has no record of a metric.
    """
    runs = read_runs(list(map(Path, workdirs)))
    systems = group(runs)
    in_row = min(columns, len(metrics))
    width = theme.COLUMN_WIDTHS[columns] / in_row - LABELS
    panels = [panel(systems, metric, split, width, HEIGHT[columns]) for metric in metrics]
    return theme.themed(
        alt.concat(*panels, columns=in_row), orient="bottom", columns=3 if columns == 2 else 1
    )


def group(runs: Sequence[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """Returns the runs of each system, by a label: the settings in which the systems differ, or the
    runs' names.
    """
    systems = {}
    settings = [run_settings(run.config) | training_data(run.workdir.path) for run in runs]
    for differences, members in grouped(runs, settings):
        label = describe_settings(differences)
        label = (
            label
            or os.path.commonprefix([run.label for run in members]).rstrip("-_./ ")
            or members[0].label
        )
        label = theme.visible(label + (f" ({len(members)} seeds)" if len(members) > 1 else ""))
        systems[label if label not in systems else f"{label} [{len(systems) + 1}]"] = members
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
        members = [run for runs in systems.values() for run in runs]
        split = next(
            (name for name in SPLITS if all(points(run, metric, name) for run in members)), "valid"
        )
    records = []
    for label, runs in systems.items():
        curves = [points(run, metric, split) for run in runs]
        common = set.intersection(*map(set, curves)) if len(runs) > 1 else set()
        for run, curve in zip(runs, curves, strict=True):
            if not curve:
                raise UserError(f"{run.label}: its record has no {metric} of the split {split}")
            own = {"system": label, "run": run.label, "has_mean": bool(common)}
            records += [
                own | {"step": step, "value": y, "is_common": step in common}
                for step, y in curve.items()
            ]
    box = alt.Legend(title=None, symbolSize=theme.LINE_SYMBOL, symbolType="stroke", symbolOpacity=1)
    legend = box if len(systems) > 1 else None
    color = theme.categories(alt.Color, "system", systems, theme.CATEGORICAL, legend=legend)
    dash = theme.categories(alt.StrokeDash, "system", systems, theme.DASHES, legend=legend)
    shortest = min(Counter(record["run"] for record in records).values())
    is_marked = shortest == 1 or len(records) <= MAX_MARKED  # a line of one point is only its mark
    thick = alt.MarkDef(type="line", point=alt.OverlayMarkDef(size=12) if is_marked else False)
    name = title(metric)
    if metric in METRICS or metric in TEACHER_FORCED:
        name = f"{SPLITS[split]} {name}"
    values = [record["value"] for record in records]
    scale = alt.Scale(zero=False)
    axis = alt.Axis(tickCount=5)
    if min(values) == max(values):  # Vega rounds the label of an axis without length to an integer
        axis = alt.Axis(values=values[:1], format=".4~g")
    if metric == "perplexity" and 0 < LEAST_RATIO * min(values) <= max(values):
        scale = alt.Scale(type="log", nice=False)
        axis = alt.Axis(values=LOG_TICKS)
    y = {"title": name, "scale": scale, "axis": axis}
    x = alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=4))
    data = alt.Chart(alt.InlineData(values=records)).encode(
        x=x, y=alt.Y("value:Q", **y), color=color
    )
    layers = []
    if any(record["has_mean"] for record in records):  # Vega warns about a layer without data
        common = data.transform_filter("datum.is_common")
        layers = [
            common.mark_errorband(extent="stdev", opacity=0.2),
            data.transform_filter("datum.has_mean")
            .mark_line(strokeWidth=0.5, opacity=0.6)
            .encode(detail="run:N"),
            common.properties(mark=thick).encode(y=alt.Y("mean(value):Q", **y), strokeDash=dash),
        ]
    if not all(record["has_mean"] for record in records):
        layers.append(
            data.transform_filter("!datum.has_mean")
            .properties(mark=thick)
            .encode(detail="run:N", strokeDash=dash)
        )
    return alt.layer(*layers).properties(width=width, height=height)


def title(metric: str) -> str:
    return (
        METRICS[metric].label if metric in METRICS else TITLES.get(metric, metric.replace("_", " "))
    )


def points(run: RecordedRun, metric: str, split: str) -> dict[int, float]:
    """Returns the finite values of a metric by step; none if the run's record has none."""
    values = {line["step"]: line.get(metric) for line in run.record if line["split"] == split}
    return {
        step: float(y)
        for step, y in values.items()
        if isinstance(y, int | float) and math.isfinite(y)
    }
