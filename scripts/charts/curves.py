"""Curves of training from the records of runs: the seeds of a system overlaid, with a band of their mean and spread."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from scripts.charts import theme
from scripts.evaluations import differing_keys, distinct_names, run_settings
from scripts.systems import describe_settings
from transformer.config_types import Config
from transformer.decoding.bleu import METRICS
from transformer.errors import UserError
from transformer.run.record import read_record
from transformer.training.metrics import Record
from transformer.workdir import open_all

SPLITS = ("valid", "train")
TEACHER_FORCED = ("loss", "nll", "perplexity", "accuracy")  # these and METRICS have the split in their titles
TITLES = {
    **{"loss": "loss (nats per token)", "nll": "negative log-likelihood (nats)"},
    **{"seconds": "training time (s)", "padding_fraction": "share of padding"},
}
LOGARITHMIC = ("perplexity",)
LEAST_RATIO = 5.0  # of the values on a logarithmic axis; a smaller range has too few round numbers
HEIGHT = {1: 110, 2: 150}
LABELS = 55  # width of a panel's axis
MAX_MARKED = 40  # points; a longer curve has no marks at them


@dataclass(frozen=True)
class Run:
    """The record of one run: the lines of its `metrics.jsonl`. Names of runs in one chart differ."""

    name: str
    config: Config
    lines: Sequence[Record]


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
    systems = group(read_runs(workdirs))
    in_row = min(columns, len(metrics))
    width = theme.COLUMN_WIDTHS[columns] / in_row - LABELS
    panels = [panel(systems, metric, split, width, HEIGHT[columns]) for metric in metrics]
    return theme.themed(alt.concat(*panels, columns=in_row), orient="bottom", columns=3 if columns == 2 else 1)


def read_runs(workdirs: Sequence[str | os.PathLike]) -> list[Run]:
    """Returns the records of runs. Raises UserError if a folder is not a run's, given twice or without a record."""
    runs, paths = [], [Path(name) for name in workdirs]
    for name, (workdir, config) in zip(distinct_names(paths), open_all(paths), strict=True):
        if not (lines := read_record(workdir.metrics)):
            raise UserError(f"{workdir.path}: has no lines in {workdir.metrics.name} yet; train it first")
        runs.append(Run(name, config, lines))
    return runs


def group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Returns the runs of each system, by a label: the settings in which the systems differ, or the runs' names."""
    settings = [run_settings(run.config) for run in runs]
    keys = differing_keys(settings)
    systems: dict[int, list[Run]] = {}  # by the number of their first run
    for run, each in zip(runs, settings, strict=True):
        systems.setdefault(settings.index(each), []).append(run)
    grouped: dict[str, list[Run]] = {}
    for first, members in systems.items():
        label = describe_settings({key: settings[first].get(key) for key in keys}) or _name(members)
        label = theme.visible(label + (f" ({len(members)} seeds)" if len(members) > 1 else ""))
        grouped[label if label not in grouped else f"{label} [{len(grouped) + 1}]"] = members
    return grouped


def panel(
    systems: Mapping[str, Sequence[Run]], metric: str, split: str | None, width: float, height: float
) -> alt.LayerChart:
    """Returns the curves of one metric without a theme. Raises UserError if a run has none."""
    split = split or _split(systems, metric)
    seeds, means = [], []
    for label, runs in systems.items():
        found = [points(run, metric, split) for run in runs]
        for run, steps in zip(runs, found, strict=True):
            seeds += [{"system": label, "run": run.name, "step": step, "value": y} for step, y in steps.items()]
        means += [{"system": label, **mean} for mean in mean_and_band(found)]
    return _layers(seeds, means, list(systems), metric, split, width, height)


def points(run: Run, metric: str, split: str) -> dict[int, float]:
    """Returns the finite values of a metric by step. Raises UserError, listing the metrics, if there are none."""
    lines = [line for line in run.lines if line["split"] == split]
    found = {line["step"]: float(line[metric]) for line in lines if _is_finite(line.get(metric))}
    if not found:
        names = {name for line in lines for name, value in line.items() if _is_finite(value)} - {"step"}
        listed = ", ".join(sorted(names)) or "nothing"
        raise UserError(f"{run.name}: has no {metric} of the split {split}; its record has {listed}")
    return found


def mean_and_band(seeds: Sequence[Mapping[int, float]]) -> Iterator[dict[str, float]]:
    """Yields the mean of several curves and mean ± sample standard deviation, at the steps that all of them have."""
    steps = set.intersection(*(set(each) for each in seeds)) if len(seeds) > 1 else ()
    for step in sorted(steps):
        values = [each[step] for each in seeds]
        mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
        yield {"step": step, "value": mean, "low": mean - spread, "high": mean + spread}


def _layers(
    seeds: list[dict], means: list[dict], labels: list[str], metric: str, split: str, width: float, height: float
) -> alt.LayerChart:
    box = alt.Legend(title=None, symbolSize=theme.LINE_SYMBOL, symbolType="stroke", symbolOpacity=1)
    legend = box if len(labels) > 1 else None
    color, dash = theme.color("system", labels, legend), theme.dashes("system", labels, legend)
    x = alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=4))
    title = METRICS[metric].label if metric in METRICS else TITLES.get(metric, metric.replace("_", " "))
    if metric in METRICS or metric in TEACHER_FORCED:
        title = f"{'validation' if split == 'valid' else 'training'} {title}"
    scale, axis = alt.Scale(zero=False), alt.Axis(tickCount=5)
    values = [each["value"] for each in seeds]
    if metric in LOGARITHMIC and 0 < LEAST_RATIO * min(values) <= max(values):
        scale, axis = alt.Scale(type="log", nice=False), alt.Axis(values=log_ticks(values))
    y = alt.Y("value:Q", title=title, scale=scale, axis=axis)
    several = {each["system"] for each in means}
    lengths = Counter(each["run"] for each in seeds).values()
    marked = min(lengths) == 1 or len(labels) == 1 and max(lengths) <= MAX_MARKED
    marks: dict[str, Any] = {"point": alt.OverlayMarkDef(size=12)} if marked else {}
    line, layers = {"x": x, "y": y, "color": color, "strokeDash": dash}, []
    if means:
        mean = alt.Chart(alt.InlineData(values=means))
        overlaid = alt.Chart(alt.InlineData(values=[each for each in seeds if each["system"] in several]))
        low = alt.Y("low:Q", title=title, scale=scale, axis=axis)
        layers = [
            mean.mark_area(opacity=0.2).encode(x=x, y=low, y2="high:Q", color=color),
            overlaid.mark_line(strokeWidth=0.5, opacity=0.6).encode(x=x, y=y, color=color, detail="run:N"),
            mean.mark_line(**marks).encode(**line),
        ]
    if single := [each for each in seeds if each["system"] not in several]:  # Vega warns about a layer without data
        layers.append(alt.Chart(alt.InlineData(values=single)).mark_line(**marks).encode(**line))
    return alt.layer(*layers).properties(width=width, height=height)


def log_ticks(values: Sequence[float]) -> list[float]:
    """Returns the numbers 1, 2 and 5 times a power of ten between positive values; only powers of ten if many."""
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    leading = (1,) if len(powers) > 4 else (1, 2, 5)
    return [digit * 10.0**p for p in powers for digit in leading if min(values) <= digit * 10.0**p <= max(values)]


def _split(systems: Mapping[str, Sequence[Run]], metric: str) -> str:
    runs = [run for members in systems.values() for run in members]
    known = {split: all(has(run, metric, split) for run in runs) for split in SPLITS}
    return next((split for split in SPLITS if known[split]), SPLITS[0])


def has(run: Run, metric: str, split: str) -> bool:
    """Tells whether the run's record has a finite value of the metric."""
    return any(line["split"] == split and _is_finite(line.get(metric)) for line in run.lines)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _name(runs: Sequence[Run]) -> str:
    """Returns what the runs' names have in common at their beginning."""
    prefix = os.path.commonprefix([run.name for run in runs]).rstrip("-_./ ")
    return prefix or runs[0].name
