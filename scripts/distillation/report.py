"""The report of a pipeline: a table of its measurements, and a chart of quality against speed."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import altair as alt
from absl import logging

from scripts import markdown
from scripts.charts import theme
from scripts.charts.curves import LEAST_RATIO, LOG_TICKS
from scripts.distillation.folder import PipelineFolder
from scripts.distillation.pipeline import (
    ExportStage,
    MeasurementStage,
    Stage,
)
from scripts.interop.certificate import FILE_NAME as CERTIFICATE
from scripts.results.runs import training_seconds
from transformer.run.record import read_record
from transformer.support import files
from transformer.support.errors import UserError
from transformer.workdir import Workdir

CHART = "report.svg"
HEIGHT = 220
WIDTH = theme.COLUMN_WIDTHS[2] - 180  # the rest has the axis and the legends
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-left")
METRICS = {
    "bleu": "BLEU",
    "bleu_lowercase_tokenized": "BLEU, lower-cased and tokenized",
    "chrf": "chrF",
}


class Row(NamedTuple):
    """A finished measurement.

    Attributes:
      system: the models and the search.
      form: the number format and the vocabulary that they decode with.
      speed: sentences per second, without compilation; None if it was not measured.
      minutes: the training time of all models, without the time to make their data.
    """

    name: str
    system: str
    form: str
    split: str
    scores: Mapping[str, float]
    speed: float | None
    minutes: float


def read_rows(stages: Sequence[Stage], folder: PipelineFolder) -> list[Row]:
    """Returns the measurements that are finished, in the order of the pipeline."""
    record = folder.read_record()
    if not record:
        raise UserError(f"--workdir={folder.path}: no stage has begun; leave out --report")
    rows = []
    for stage in stages:
        path = folder.result_path(stage)

        # Only a finished stage has its seconds in the record.
        if "seconds" not in record.get(stage.name, {}) or not path.exists():
            continue

        if isinstance(stage, MeasurementStage):
            # The JSON object of transformer.evaluate.
            result = json.loads(path.read_bytes())
            scores = result
            search = result["decoding"]
            seconds = result["seconds"]
            form = "int8" if search.get("dtype") == "int8" else "floating point"
            if search["shortlist"]:
                form += ", shortlist"
            split = stage.split
        elif isinstance(stage, ExportStage):
            # The certificate of scripts.export has the scores and the time of the other toolkit.
            result = json.loads((path / CERTIFICATE).read_bytes())

            # Without the other toolkit or the validation split, an export is not measured.
            if not result.get("bleu"):
                reasons = "; ".join(result["reasons"]) or "the validation split was not found"
                logging.warning("%s: has no BLEU: %s.", stage.name, reasons)
                continue

            scores = result["bleu"]["theirs"]
            search = result["search"]
            seconds = result["seconds"]["search"]
            form = f"{stage.format} {result['precision']}"
            split = "valid"
        else:
            continue

        system = "+".join(model.name for model in stage.models)
        system += ", greedy" if search["beam_size"] == 1 else f", beam {search['beam_size']}"
        speed = seconds and result["sentences"] / seconds
        records = [
            read_record(Workdir(folder.result_path(model)).metrics) for model in stage.models
        ]
        minutes = sum(map(training_seconds, records)) / 60
        rows.append(Row(stage.name, system, form, split, scores, speed, minutes))
    return rows


def publish(stages: Sequence[Stage], folder: PipelineFolder, readme: str | None) -> None:
    """Prints the table, or writes it into the file `readme`, and draws the chart in the folder."""
    rows = read_rows(stages, folder)
    table = [("measurement", *METRICS.values(), "sentences/s", "minutes of training")]
    for row in rows:
        numbers = (*(row.scores[metric] for metric in METRICS), row.speed, row.minutes)
        cells = ["" if number is None else f"{number:.1f}" for number in numbers]
        table.append((row.name, *cells))
    markdown.publish(markdown.table(table), "distill", readme)

    # Not every toolkit reports its time.
    timed_rows = [row for row in rows if row.speed]
    if timed_rows:
        theme.write(draw(timed_rows), folder.path / CHART)


def draw(rows: Sequence[Row]) -> alt.LayerChart:
    """Returns BLEU by sentences per second, on the split that most rows have.

    Lines join the forms of a model.
    """
    # Scores on different splits are not comparable.
    ((split, _),) = Counter(row.split for row in rows).most_common(1)
    points = [row._asdict() | {"bleu": row.scores["bleu"]} for row in rows if row.split == split]
    systems = list(dict.fromkeys(point["system"] for point in points))
    forms = list(dict.fromkeys(point["form"] for point in points))

    # Speeds that span orders of magnitude need a logarithmic axis.
    speeds = [point["speed"] for point in points]
    x = {"scale": alt.Scale(zero=False, padding=12)}
    if max(speeds) >= LEAST_RATIO * min(speeds):
        x = {
            "scale": alt.Scale(type="log", nice=False, padding=12),
            "axis": alt.Axis(values=LOG_TICKS),
        }

    # Colours and lines join the forms of a system. The shape of a mark is its form.
    stroke = alt.Legend(title=None, symbolType="stroke", symbolSize=theme.LINE_SYMBOL)

    # Lines and marks share the data and the axes.
    chart = alt.Chart(alt.InlineData(values=files.six_digits(points))).encode(
        x=alt.X("speed:Q", title="sentences per second", **x),
        y=alt.Y("bleu:Q", title=f"BLEU ({split})", scale=alt.Scale(zero=False, padding=12)),
        color=theme.categories(alt.Color, "system", systems, theme.CATEGORICAL, legend=stroke),
    )

    shape = theme.categories(alt.Shape, "form", forms, SHAPES, legend=alt.Legend(title=None))
    lines = chart.mark_line(strokeWidth=0.8).encode(order="speed:Q")
    marks = chart.mark_point(
        filled=True, opacity=1, size=50, stroke="white", strokeWidth=0.5
    ).encode(shape=shape)

    return theme.themed(alt.layer(lines, marks).properties(width=WIDTH, height=HEIGHT))
