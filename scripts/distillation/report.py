"""The report of a plan: a table of its measurements, and a chart of quality against speed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt

from scripts import markdown
from scripts.charts import output, theme
from scripts.distillation import plan
from scripts.distillation.folder import Folder
from scripts.interop.certificate import FILE_NAME as CERTIFICATE
from transformer import files
from transformer.errors import UserError
from transformer.run.record import read_record
from transformer.workdir import Workdir

CHART = "report.svg"
HEIGHT, LABELS = 180, 60  # of the chart, and the width of its axis
LEAST_RATIO = 5.0  # of the speeds on a logarithmic axis


class Row(NamedTuple):
    """A finished measurement. An export has only BLEU, by the other toolkit; seconds are those of its decoding."""

    name: str
    bleu: float
    bleu_lowercase_tokenized: float | None
    chrf: float | None
    sentences: int
    seconds: float
    training_minutes: float  # of all its models, without what their data took

    @property
    def speed(self) -> float:
        """Sentences a second, without compilation."""
        return self.sentences / self.seconds


def read_rows(stages: Sequence[plan.Stage], folder: Folder) -> list[Row]:
    """Returns the measurements that are finished, in the order of the plan."""
    record, rows = folder.read(), []
    if not record:
        raise UserError(f"--workdir={folder.path}: no stage has begun; leave out --report")
    for stage in stages:
        path = folder.of(stage)
        is_finished = "seconds" in record.get(stage.name, {}) and path.exists()
        if not is_finished or not isinstance(stage, plan.Measurement | plan.Export):
            continue
        models = stage.models if isinstance(stage, plan.Measurement) else (stage.model,)
        minutes = sum(_training_seconds(folder.of(model)) for model in models) / 60
        if isinstance(stage, plan.Measurement):
            result = json.loads(path.read_bytes())
            names = ("bleu", "bleu_lowercase_tokenized", "chrf", "sentences", "seconds")
            rows.append(Row(stage.name, *(result[name] for name in names), minutes))
        elif (result := json.loads((path / CERTIFICATE).read_bytes())).get("bleu"):
            theirs = result["bleu"]["theirs"]
            seconds = result["seconds"]["theirs"]
            rows.append(Row(stage.name, theirs["bleu"], None, None, result["sentences"], seconds, minutes))
    return rows


def _training_seconds(workdir: Path) -> float:
    """Returns the time of a run, over all its starts; 0 for an imported model."""
    return max((line.get("seconds", 0.0) for line in read_record(Workdir(workdir).metrics)), default=0.0)


def publish(stages: Sequence[plan.Stage], folder: Folder, readme: str | None) -> None:
    """Prints the table, or writes it into the file `readme`, and draws the chart in the folder."""
    rows = read_rows(stages, folder)
    header = ("model", "BLEU", "BLEU, lower-cased and tokenized", "chrF", "sentences/s", "minutes of training")
    table = [header, *(_cells(row) for row in rows)]
    markdown.publish(markdown.table(table), "distill", readme)
    if rows:
        output.write(draw(rows), folder.path / CHART)


def _cells(row: Row) -> tuple[str, ...]:
    numbers = (row.bleu, row.bleu_lowercase_tokenized, row.chrf, row.speed, row.training_minutes)
    return (row.name, *("" if number is None else f"{number:.1f}" for number in numbers))


def draw(rows: Sequence[Row]) -> alt.LayerChart:
    """Returns the BLEU of each model by its sentences a second."""
    points: list[dict[str, Any]] = [{"name": row.name, "bleu": row.bleu, "speed": row.speed} for row in rows]
    speeds = [row.speed for row in rows]
    kind = "log" if max(speeds) >= LEAST_RATIO * min(speeds) else "linear"
    chart = alt.Chart(alt.InlineData(values=files.six_digits(points))).encode(
        x=alt.X("speed:Q", title="sentences per second", scale=alt.Scale(type=kind, zero=False, padding=30)),
        y=alt.Y("bleu:Q", title="BLEU", scale=alt.Scale(zero=False, padding=12)),
    )
    marks = chart.mark_point(filled=True, opacity=1, color=theme.CATEGORICAL[0])
    names = chart.mark_text(align="left", dx=6, dy=-4, fontSize=theme.SMALL).encode(text="name:N")
    width = theme.COLUMN_WIDTHS[2] - LABELS
    return theme.themed(alt.layer(marks, names).properties(width=width, height=HEIGHT), orient="bottom")
