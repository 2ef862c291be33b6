"""Curves of training from the records of runs: the seeds of a system overlaid, with a band of their mean and spread."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from scripts.charts import theme
from scripts.evaluations import differing_keys, run_settings
from scripts.runs import RecordedRun, read_runs
from scripts.systems import describe_settings
from transformer.decoding.bleu import METRICS
from transformer.errors import UserError

SPLITS = ("valid", "train")
TEACHER_FORCED = ("loss", "nll", "perplexity", "accuracy")  # these and METRICS have the split in their titles
TITLES = {
    **{"loss": "loss (nats per token)", "nll": "negative log-likelihood (nats)"},
    **{"seconds": "training time (s)", "padding_fraction": "fraction of padding"},
}
LOGARITHMIC = ("perplexity",)
LEAST_RATIO = 5.0  # of the values on a logarithmic axis; a smaller range has too few round numbers
HEIGHT = {1: 110, 2: 150}
LABELS = 55  # width of a panel's axis
MAX_MARKED = 40  # points; a longer curve has no marks at them


def draw(
    workdirs: Sequence[str | os.PathLike],
    metrics: Sequence[str] = ("loss", "bleu"),
    split: str | None = None,
    columns: int = 2,
) -> Any:
    """Returns the curves of runs over the steps, in a panel for each metric.

    Runs that differ only in their seed are one system: thin lines, and their mean with a band of one standard deviation
    at the steps that all of them have.

    Args:
      workdirs: folders of runs, complete or not.
      metrics: names in the lines of `metrics.jsonl`.
      split: "valid" or "train". None: for each metric valid if all runs have it, else train.
      columns: 1 or 2 columns of a paper. Two panels stand beside each other in 2, one above the other in 1.

    Raises:
      UserError: a folder is not a run's, or has no record of a metric.
    """
    runs = read_runs(list(map(Path, workdirs)))
    for run in runs:
        if not run.record:
            raise UserError(f"{run.workdir.path}: has no lines in {run.workdir.metrics.name} yet; train it first")
    systems = group(runs)
    in_row = min(columns, len(metrics))
    width = theme.COLUMN_WIDTHS[columns] / in_row - LABELS
    panels = [panel(systems, metric, split, width, HEIGHT[columns]) for metric in metrics]
    return theme.themed(alt.concat(*panels, columns=in_row), orient="bottom", columns=3 if columns == 2 else 1)


def group(runs: Sequence[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """Returns the runs of each system, by a label: the settings in which the systems differ, or the runs' names."""
    settings = [run_settings(run.config) for run in runs]
    keys = differing_keys(settings)
    systems: dict[int, list[RecordedRun]] = {}  # by the number of their first run
    for run, own in zip(runs, settings, strict=True):
        systems.setdefault(settings.index(own), []).append(run)
    grouped: dict[str, list[RecordedRun]] = {}
    for first, members in systems.items():
        label = describe_settings({key: settings[first].get(key) for key in keys})
        label = label or os.path.commonprefix([run.label for run in members]).rstrip("-_./ ") or members[0].label
        label = theme.visible(label + (f" ({len(members)} seeds)" if len(members) > 1 else ""))
        grouped[label if label not in grouped else f"{label} [{len(grouped) + 1}]"] = members
    return grouped


def panel(
    systems: Mapping[str, Sequence[RecordedRun]], metric: str, split: str | None, width: float, height: float
) -> alt.LayerChart:
    """Returns the curves of one metric without a theme. Raises UserError if a run has none."""
    if split is None:
        members = [run for runs in systems.values() for run in runs]
        split = next((name for name in SPLITS if all(points(run, metric, name) for run in members)), SPLITS[0])
    seeds, means = [], []
    for label, runs in systems.items():
        curves = [points(run, metric, split) for run in runs]
        for run, curve in zip(runs, curves, strict=True):
            if not curve:
                numbers = {name for line in run.record for name in line if points(run, name, split)} - {"step"}
                known = ", ".join(sorted(numbers)) or "nothing"
                raise UserError(f"{run.label}: has no {metric} of the split {split}; its record has {known}")
            seeds += [{"system": label, "run": run.label, "step": step, "value": y} for step, y in curve.items()]
        means += [{"system": label, **mean} for mean in mean_and_band(curves)]
    box = alt.Legend(title=None, symbolSize=theme.LINE_SYMBOL, symbolType="stroke", symbolOpacity=1)
    legend = box if len(systems) > 1 else None
    color, dash = theme.color("system", list(systems), legend), theme.dashes("system", list(systems), legend)
    x = alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=4))
    title = METRICS[metric].label if metric in METRICS else TITLES.get(metric, metric.replace("_", " "))
    if metric in METRICS or metric in TEACHER_FORCED:
        title = f"{'validation' if split == 'valid' else 'training'} {title}"
    scale, axis = alt.Scale(zero=False), alt.Axis(tickCount=5)
    values = [point["value"] for point in seeds]
    if metric in LOGARITHMIC and 0 < LEAST_RATIO * min(values) <= max(values):
        scale, axis = alt.Scale(type="log", nice=False), alt.Axis(values=log_ticks(values))
    y = alt.Y("value:Q", title=title, scale=scale, axis=axis)
    several = {point["system"] for point in means}
    lengths = Counter(point["run"] for point in seeds).values()
    marked = min(lengths) == 1 or len(systems) == 1 and max(lengths) <= MAX_MARKED
    marks: dict[str, Any] = {"point": alt.OverlayMarkDef(size=12)} if marked else {}
    line, layers = {"x": x, "y": y, "color": color, "strokeDash": dash}, []
    if means:
        mean = alt.Chart(alt.InlineData(values=means))
        overlaid = alt.Chart(alt.InlineData(values=[point for point in seeds if point["system"] in several]))
        low = alt.Y("low:Q", title=title, scale=scale, axis=axis)
        layers = [
            mean.mark_area(opacity=0.2).encode(x=x, y=low, y2="high:Q", color=color),
            overlaid.mark_line(strokeWidth=0.5, opacity=0.6).encode(x=x, y=y, color=color, detail="run:N"),
            mean.mark_line(**marks).encode(**line),
        ]
    if single := [point for point in seeds if point["system"] not in several]:  # Vega warns about a layer without data
        layers.append(alt.Chart(alt.InlineData(values=single)).mark_line(**marks).encode(**line))
    return alt.layer(*layers).properties(width=width, height=height)


def points(run: RecordedRun, metric: str, split: str) -> dict[int, float]:
    """Returns the finite values of a metric by step; none if the run's record has none."""
    values = {line["step"]: line.get(metric) for line in run.record if line["split"] == split}
    return {step: float(y) for step, y in values.items() if isinstance(y, int | float) and math.isfinite(y)}


def mean_and_band(seeds: Sequence[Mapping[int, float]]) -> Iterator[dict[str, float]]:
    """Yields the mean of several curves and mean ± sample standard deviation, at the steps that all of them have."""
    steps = set.intersection(*(set(curve) for curve in seeds)) if len(seeds) > 1 else ()
    for step in sorted(steps):
        values = [curve[step] for curve in seeds]
        mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
        yield {"step": step, "value": mean, "low": mean - spread, "high": mean + spread}


def log_ticks(values: Sequence[float]) -> list[float]:
    """Returns the numbers 1, 2 and 5 times a power of ten between positive values; only powers of ten if many."""
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    leading = (1,) if len(powers) > 4 else (1, 2, 5)
    return [digit * 10.0**p for p in powers for digit in leading if min(values) <= digit * 10.0**p <= max(values)]
