"""Table 3 of the paper: differences from its base row, in the paper and by `scripts.reproduce`."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from configs.table3 import ROWS
from scripts.charts import theme
from scripts.reproduction.rows import SCALES, read_rows, read_table, scores_by_row
from scripts.results.records import find_records, read_record_file
from scripts.sweeping.folder import SweepFolder
from transformer.support.errors import UserError

ROW_HEIGHT = 14
LABELS = {1: 110, 2: 120}  # width of the row names
SYMBOLS = {
    "A_h": "h",
    "B_dk": "d_k",
    "C_N": "N",
    "C_d": "d_model",
    "C_ff": "d_ff",
    "D_dropout": "dropout",
    "D_smoothing": "smoothing",
}
TITLES = {
    "bleu": ("BLEU, difference from base", "+~f"),
    "perplexity": ("perplexity, change from base", "+%"),
}
COLORS = {"paper": theme.INK, "here": theme.CATEGORICAL[0]}
SHAPES = ["diamond", "circle"]

Scores = Mapping[str, Sequence[float]]  # the scores of all seeds, by row


def draw(folder: str | os.PathLike, columns: int = 2) -> Any:
    """Returns the differences from the base row, here and in the paper.

    There is a panel for BLEU, and one for perplexity as a fraction. It has the rows with complete
    runs. Rows with several seeds have their mean and ± one standard deviation.

    Args:
      folder: the `--output` of `scripts.reproduce`, or a folder of its records.

    Raises:
      UserError: the folder is not one of `scripts.reproduce`, or a run that is needed is not
        complete.
    """
    results = read(Path(folder))
    if "base" not in results["bleu"]:
        raise UserError(
            f"{folder}: has no complete run of the row base, from which the others differ; "
            "run it first"
        )
    width = (theme.COLUMN_WIDTHS[columns] - LABELS[columns]) / columns - 12
    panels = []
    for i, metric in enumerate(TITLES):
        points = records(results[metric], metric)
        panels.append(panel(points, metric, width, has_names=i % columns == 0))
    return theme.themed(alt.concat(*panels, columns=columns), orient="bottom")


def read(path: Path) -> dict[str, Scores]:
    """Returns the scores of the complete runs in a folder of `scripts.reproduce` or of records.

    Raises UserError if it has none.
    """
    # Neither a sweep nor records name their scale. d_model of the base row tells it.
    widths = [read_record_file(record).config.model.d_model for record in find_records(path)]
    widths = widths or [SweepFolder(path).read()["task"].get("model.d_model")]
    for scale in SCALES:
        configs = read_rows(scale, ",".join(ROWS), [])
        if configs["base"].model.d_model in widths:
            break
    else:
        raise UserError(
            f"{path}: is a sweep of another config; name the --output of scripts.reproduce"
        )
    _, results, _ = read_table(path, configs)
    return {metric: scores_by_row(results, metric) for metric in TITLES}


def records(results: Scores, metric: str) -> list[dict[str, Any]]:
    """Returns the difference `value` from the base row, for each score in the paper and here.

    Rows with a score that is not finite are left out.
    """
    paper = {name: [getattr(ROWS[name], metric)] for name in results}
    points = []
    for source, rows in (("paper", paper), ("here", results)):
        # The paper's scores are compared with its own base row, and ours with ours.
        base = np.mean(rows["base"])
        for name, values in rows.items():
            differences = np.array(values) - base
            if metric == "perplexity":
                differences = np.array(values) / base - 1
            if not np.isfinite(differences).all():  # a run has diverged
                continue
            for value in differences.tolist():
                points.append({"row": row_name(name), "source": source, "value": value})
    return points


def row_name(name: str) -> str:
    """Returns the name of a row with the paper's symbols: "(A) h = 1" for A_h1."""
    parts = re.fullmatch(r"(\w_[A-Za-z]+?)([\d.]+)", name)
    if not parts:
        return {"E_learned": "(E) learned positions"}.get(name, name)
    return f"({name[0]}) {SYMBOLS[parts[1]]} = {parts[2]}"


def panel(
    points: Sequence[dict[str, Any]], metric: str, width: float, has_names: bool
) -> alt.LayerChart:
    """Returns the points of one metric, a row of the table on each line, without a theme."""
    # Rows have the order of the paper. Each has a place for the paper's score and one for ours.
    title, number = TITLES[metric]
    rows = list(dict.fromkeys(point["row"] for point in points))
    names = alt.Axis(grid=True, ticks=False, labels=has_names, domain=False)
    chart = theme.chart_of(points).encode(
        y=alt.Y("row:N", sort=rows, title=None, axis=names),
        yOffset=alt.YOffset("source:N", sort=list(COLORS)),
        color=theme.categories(alt.Color, "source", COLORS, COLORS.values(), title=None),
    )

    # A line marks the base row's score, a bar one standard deviation, and a point the mean.
    base = alt.Chart().mark_rule(strokeWidth=0.5, color=theme.INK).encode(x=alt.datum(0))
    bars = chart.mark_errorbar(extent="stdev", rule={"strokeWidth": 1})
    axis = alt.Axis(format=number, tickCount=5, labelExpr="datum.value ? datum.label : '0'")
    means = chart.mark_point(filled=True, opacity=1).encode(
        x=alt.X("mean(value):Q", title=title, axis=axis),
        shape=theme.categories(alt.Shape, "source", COLORS, SHAPES, title=None),
    )
    layers = alt.layer(base, bars.encode(x=alt.X("value:Q", title=title)), means)
    return layers.properties(width=width, height=alt.Step(ROW_HEIGHT, **{"for": "position"}))
