"""Table 3 of the paper: BLEU and perplexity of its rows as printed and as `scripts.reproduce` measured them."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from configs.table3 import ROWS
from scripts.charts import theme
from scripts.reproduction.rows import SCALES, read_results, read_rows, scores
from scripts.sweeping.folder import Folder
from transformer.errors import UserError

METRICS = ("bleu", "perplexity")
ROW_HEIGHT = 14
LABELS = {1: 110, 2: 120}  # width of the row names
SYMBOLS = {"A_h": "h", "B_dk": "d_k", "C_N": "N", "C_d": "d_model", "C_ff": "d_ff"}
SYMBOLS |= {"D_dropout": "dropout", "D_smoothing": "smoothing"}
TITLES = {
    ("bleu", False): ("BLEU", ""),
    ("bleu", True): ("BLEU, difference from base", "+~f"),
    ("perplexity", False): ("perplexity", ""),
    ("perplexity", True): ("perplexity, change from base", "+%"),
}
PAPER, HERE = "paper", "here"

Scores = Mapping[str, Sequence[float]]  # of each row, one a seed


def draw(folder: str | os.PathLike, absolute: bool = False, columns: int = 2) -> Any:
    """Returns BLEU and perplexity of the rows with complete runs, here and in the paper, ± one standard deviation.

    Args:
      folder: the `--output` of `scripts.reproduce`.
      absolute: draws the scores instead of differences from the base row, which compare across data and scales.

    Raises:
      UserError: the folder is not one of `scripts.reproduce`, or a run that is needed is not complete.
    """
    measured, relative = read(Path(folder)), not absolute
    if relative and "base" not in measured["bleu"]:
        raise UserError(f"{folder}: has no complete run of the row base, from which the others differ; run it first")
    width = (theme.COLUMN_WIDTHS[columns] - LABELS[columns]) / columns - 12
    panels = [
        panel(records(measured[metric], metric, relative), metric, relative, width, i % columns == 0)
        for i, metric in enumerate(METRICS)
    ]
    return theme.themed(alt.concat(*panels, columns=columns), orient="bottom")


def read(path: Path) -> dict[str, Scores]:
    """Returns the scores of the complete runs in a folder of `scripts.reproduce`. Raises UserError if it has none."""
    folder = Folder(path)
    record = folder.read()
    for scale in SCALES.values():
        configs = read_rows(scale, scale.data, None, [])
        if record["task"].get("model.d_model") == configs["base"].model.d_model:
            break
    else:
        raise UserError(f"{path}: is a sweep of another config; name the --output of scripts.reproduce")
    if not (results := read_results(folder, configs, record["trials"])):
        raise UserError(f"{path}: has no complete run of a row of Table 3 yet")
    return {metric: scores(results, metric) for metric in METRICS}


def records(measured: Scores, metric: str, relative: bool) -> list[dict[str, Any]]:
    """Returns a record for each row, here and in the paper: `value`, and `low` and `high` if it has several seeds.

    A row with a value that is not finite has only the paper's record.
    """
    paper = {name: [getattr(ROWS[name], metric)] for name in measured}
    paper_base, base = getattr(ROWS["base"], metric), np.mean(measured.get("base", [np.nan]))
    points = []
    for source, rows, reference in ((PAPER, paper, paper_base), (HERE, measured, base)):
        for name, values in rows.items():
            shown = np.asarray(values, float)
            if relative:
                shown = shown / reference - 1 if metric == "perplexity" else shown - reference
            if not np.isfinite(shown).all():  # this run has diverged
                continue
            mean, spread = float(shown.mean()), float(shown.std(ddof=1)) if len(shown) > 1 else None
            record = {"row": row_name(name), "source": source, "value": mean}
            points.append(record | ({} if spread is None else {"low": mean - spread, "high": mean + spread}))
    return points


def row_name(name: str) -> str:
    """Returns the name of a row with the paper's symbols: "(A) h = 1" for A_h1."""
    if not (parts := re.fullmatch(r"(\w_[A-Za-z]+?)([\d.]+)", name)):
        return {"E_learned": "(E) learned positions"}.get(name, name)
    return f"({name[0]}) {SYMBOLS[parts[1]]} = {parts[2]}"


def panel(
    points: Sequence[dict[str, Any]], metric: str, relative: bool, width: float, has_names: bool
) -> alt.LayerChart:
    """Returns the points of one metric, a row of the table on each line, without a theme."""
    title, formats = TITLES[metric, relative]
    rows = list(dict.fromkeys(point["row"] for point in points))
    y = alt.Y("row:N", sort=rows, title=None, axis=alt.Axis(grid=True, ticks=False, labels=has_names, domain=False))
    axis = alt.Axis(format=formats, tickCount=5, labelExpr="datum.value ? datum.label : '0'")
    x = alt.X("value:Q", title=title, axis=axis).scale(zero=relative)
    names = [PAPER, HERE]
    color = alt.Color("source:N", title=None, sort=names).scale(domain=names, range=[theme.INK, theme.CATEGORICAL[0]])
    shape = alt.Shape("source:N", title=None, sort=names).scale(domain=names, range=["diamond", "circle"])
    offset = alt.YOffset("source:N", sort=names)
    chart = alt.Chart(alt.InlineData(values=list(points)))
    layers = [
        chart.mark_rule(strokeWidth=1)
        .transform_filter("isValid(datum.low)")
        .encode(x=alt.X("low:Q", title=title), x2="high:Q", y=y, yOffset=offset, color=color),
        chart.mark_point(filled=True, opacity=1).encode(x=x, y=y, yOffset=offset, color=color, shape=shape),
    ]
    if relative:
        zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(strokeWidth=0.5, color=theme.INK)
        layers.insert(0, zero.encode(x=alt.X("zero:Q", title=title)))
    return alt.layer(*layers).properties(width=width, height=alt.Step(ROW_HEIGHT, **{"for": "position"}))
