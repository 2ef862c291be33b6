"""The sections of the report's page, and those on the runs, their settings and their curves."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from scripts.charts import curves, theme
from scripts.results.evaluations import differing_keys, run_settings, short_commit
from scripts.results.runs import RecordedRun, describe_note, training_seconds
from scripts.results.systems import System
from transformer.config.keys import format_value
from transformer.decoding.metrics import metrics_in
from transformer.support.environment import FINGERPRINTS, read_environment
from transformer.support.errors import UserError

HEADER = (
    "run",
    "system",
    "state",
    "data",
    "seed",
    "commit",
    "devices",
    "training",
    "vocabulary",
    "training data",
    "validation data",
    "note",
)
# Quantities in the lines of metrics.jsonl, with their splits. The page shows the metrics of
# translations between the two groups.
LOSSES = (("loss", "train"), ("loss", "valid"), ("perplexity", "valid"))
OTHERS = (
    ("accuracy", "valid"),
    ("learning_rate", "train"),
    ("gradient_norm", "train"),
    ("tokens_per_second", "train"),
    ("padding_fraction", "train"),
)
HEIGHT = 190


class Section(NamedTuple):
    """A part of the page with a heading.

    Attributes:
      name: the name of its template, `templates/NAME.html`, and its anchor.
      title: the heading.
      content: values for the template. None: the section has only notes.
      notes: sentences about missing parts.
      charts: Vega-Lite specifications by name. Names are unique on the page.
      data: values for the page's script.
    """

    name: str
    title: str
    content: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    charts: Mapping[str, Mapping[str, Any]] = {}
    data: Mapping[str, Any] = {}


def runs_section(runs: Sequence[RecordedRun], systems: Sequence[System]) -> Section:
    """Returns the section on the runs. A run without a score is in none of the `systems`."""
    names = {}
    for system in systems:
        for evaluation in system.evaluations:
            names[evaluation.workdir] = system.name

    # A run that was not evaluated has an empty cell.
    rows = [_row(run, names.get(run.workdir.path, "")) for run in runs]
    note = "has no checkpoint: the sections on attention and beam search leave it out."
    notes = [f"{run.label} {note}" for run in runs if not run.has_checkpoint]
    return Section("overview", "Runs", {"header": HEADER, "rows": rows}, notes)


def _row(run: RecordedRun, system: str) -> tuple[str, ...]:
    config = run.config
    environment = read_environment(run.workdir.environment) or {}
    state = "complete"
    if not run.workdir.is_complete():
        step = max((line["step"] for line in run.record), default=0)
        state = f"{step:,} of {config.training.steps:,} steps"

    # Some kinds of data have no languages.
    languages = "-".join(filter(None, (config.data.source_language, config.data.target_language)))
    devices = environment.get("devices") or ["unknown"]
    digests = {}
    with contextlib.suppress(UserError):  # the record is damaged
        digests = run.contents
    return (
        run.label,
        system,
        state,
        f"{config.data.name}, {languages}",
        str(config.seed),
        short_commit(environment),
        f"{len(devices)} {devices[0]}",
        f"{training_seconds(run.record) / 60:.0f} min",
        *(digests.get(name, "unknown")[:8] for name in FINGERPRINTS),
        describe_note(config),
    )


def settings_section(runs: Sequence[RecordedRun]) -> Section:
    """Returns the section with all keys that change the results of a run."""
    configs = [run_settings(run.config) | {"seed": run.config.seed} for run in runs]

    # The page shows the keys in which the runs differ first.
    differing_names = differing_keys(configs)
    differing = []
    common = []
    for key in sorted(configs[0]):
        values = [format_value(config.get(key)) for config in configs]
        if key in differing_names:
            differing.append((key, *values))
        else:
            common.append((key, values[0]))
    labels = [run.label for run in runs]
    content = {"labels": labels, "differing": differing, "common": common}
    return Section("settings", "Settings", content)


def curve_section(runs: Sequence[RecordedRun]) -> Section:
    notes = [f"{run.label} has no record of training." for run in runs if not run.record]
    try:
        systems = curves.group([run for run in runs if run.record])
    except UserError as error:  # a record of data is damaged
        return Section("curves", "Curves", None, [*notes, f"There are no curves: {error}."])
    charts = {}
    panels = {}
    translation_metrics = [(name, "valid") for name in metrics_in("log")]
    for metric, split in (*LOSSES, *translation_metrics, *OTHERS):
        # Systems without the metric stay, so that each has the same colour in all panels.
        members = {
            label: [run for run in runs if curves.points(run, metric, split)]
            for label, runs in systems.items()
        }
        if any(members.values()):
            name = f"curve-{split}-{metric}"
            charts[name] = panel(members, metric, split).to_dict()
            panels[name] = f"{curves.title(metric)}, {curves.SPLITS[split]}"
    return Section("curves", "Curves", {"panels": panels} if panels else None, notes, charts)


def panel(systems: Mapping[str, Sequence[RecordedRun]], metric: str, split: str) -> alt.LayerChart:
    """Returns the curves of one quantity, with the values of points in tooltips.

    A zoom over the steps is named `zoom`, so that it can be shared by all panels.
    """
    nearest = alt.selection_point(
        name="nearest", nearest=True, on="pointermove", fields=["step", "run"], empty=False
    )
    zoom = alt.selection_interval(name="zoom", bind="scales", encodings=["x"])
    value = alt.Tooltip("value:Q", title=curves.title(metric), format=".5~g")

    # The points of this layer are visible only near the mouse.
    points = theme.chart_of(curves.make_records(systems, metric, split))
    hover = points.mark_point(filled=True, size=50).encode(
        x="step:Q",
        y="value:Q",
        opacity=alt.condition(nearest, alt.value(1), alt.value(0)),
        color=alt.Color("system:N"),
        tooltip=["run:N", "step:Q", value],
    )
    lines = curves.panel(systems, metric, split, HEIGHT, HEIGHT)
    chart = alt.layer(lines, hover.add_params(nearest, zoom)).properties(height=HEIGHT)
    return chart.configure_legend(orient="top")
