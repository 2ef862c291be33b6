"""The curves of training, a panel for each quantity."""

from collections.abc import Mapping, Sequence

import altair as alt

from scripts.charts import curves
from scripts.reporting.section import Section
from scripts.runs import RecordedRun
from transformer.decoding.bleu import METRICS, metrics_in

# The quantities in the lines of metrics.jsonl, with their splits; the metrics of translations stand between the two.
LOSSES = (("loss", "train"), ("loss", "valid"), ("perplexity", "valid"))
OTHERS = (
    *(("accuracy", "valid"), ("learning_rate", "train"), ("gradient_norm", "train"), ("tokens_per_second", "train")),
    ("padding_fraction", "train"),
)
SPLITS = {"train": "training", "valid": "validation"}
HEIGHT = 190


def section(runs: Sequence[RecordedRun]) -> Section:
    notes = [f"{run.label} has no record of training." for run in runs if not run.record]
    systems = curves.group([run for run in runs if run.record])
    charts, panels = {}, []
    for metric, split in (*LOSSES, *((name, "valid") for name in metrics_in("log")), *OTHERS):
        # Systems without the metric stay, so that each has the same colour in all panels.
        members = {label: [run for run in runs if curves.points(run, metric, split)] for label, runs in systems.items()}
        if any(members.values()):
            name = f"curve-{split}-{metric}"
            charts[name] = panel(members, metric, split).to_dict()
            panels.append({"name": name, "description": f"{_title(metric)}, {SPLITS[split]}"})
    return Section("curves", "Curves", {"panels": panels} if panels else None, notes, charts)


def panel(systems: Mapping[str, Sequence[RecordedRun]], metric: str, split: str) -> alt.LayerChart:
    """Returns the curves of one quantity, with the points' values on hover and a zoom named `zoom` over the steps."""
    points = [
        {"system": label, "run": run.label, "step": step, "value": value}
        for label, members in systems.items()
        for run in members
        for step, value in curves.points(run, metric, split).items()
    ]
    nearest = alt.selection_point(name="nearest", nearest=True, on="pointermove", fields=["step", "run"], empty=False)
    hover = (
        alt.Chart(alt.InlineData(values=points))
        .mark_point(filled=True, size=50)
        .encode(
            x="step:Q",
            y="value:Q",
            opacity=alt.condition(nearest, alt.value(1), alt.value(0)),
            color=alt.Color("system:N"),
            tooltip=["run:N", "step:Q", alt.Tooltip("value:Q", title=_title(metric), format=".5~g")],
        )
        .add_params(nearest, alt.selection_interval(name="zoom", bind="scales", encodings=["x"]))
    )
    chart = alt.layer(curves.panel(systems, metric, split, HEIGHT, HEIGHT), hover).properties(height=HEIGHT)
    return chart.configure_legend(orient="top")


def _title(metric: str) -> str:
    return METRICS[metric].label if metric in METRICS else metric.replace("_", " ")
