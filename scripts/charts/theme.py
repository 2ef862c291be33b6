"""The look of all charts, and the files that they are written to. Sizes are in points.

The colours print well, and readers with colour blindness can tell them apart.
"""

import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from transformer.support import files
from transformer.support.errors import UserError

# White to dark blue in equal steps of 13 in CIELAB. Each step is darker than the one before it, so
# the scale also prints in grey.
SEQUENTIAL = (
    "#ffffff",
    "#d5e6f3",
    "#a6cee4",
    "#77b4d6",
    "#4d9ac9",
    "#2c80bd",
    "#1767ae",
    "#0f4a92",
    "#08306b",
)
# Okabe and Ito's colours without the yellow, which is too light for a line. The eighth category has
# the first colour again.
CATEGORICAL = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
# For readers without colours. There is one pattern less than colours, so that lines of the same
# colour have different patterns.
DASHES = ([], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4], [1, 2])
LINE_SYMBOL = 300  # size of a legend's symbol that shows a dashed line
MASKED = "#e8e8e8"

COLUMN_WIDTHS = {1: 240, 2: 500}  # of a paper; a point of the PDF is a pixel of Vega
FACET_LABELS = 55  # width of the axis of a panel in `facets`
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
TEXT = 9  # font sizes
SMALL = 8
INK = "#222222"
GRID = "#dddddd"
FRAME = "#bbbbbb"
ALL = 0  # in Vega: no limit to the length of a label
RESOLUTION = 300  # pixels per inch of a PNG

LETTERS = {
    "labelFontSize": SMALL,
    "titleFontSize": TEXT,
    "titleFontWeight": "normal",
    "labelColor": INK,
}
CONFIG = {
    "font": FONT,
    "background": "white",
    "padding": 4,
    "view": {"stroke": None},
    "axis": {
        **LETTERS,
        "titleColor": INK,
        "titlePadding": 4,
        "labelLimit": ALL,
        "labelFlush": False,
        "gridColor": GRID,
        "gridWidth": 0.5,
        "domainColor": INK,
        "domainWidth": 0.5,
        "tickColor": INK,
        "tickWidth": 0.5,
        "tickSize": 3,
    },
    "legend": {
        **LETTERS,
        "titleColor": INK,
        "titleLimit": ALL,
        "labelLimit": ALL,
        "symbolStrokeWidth": 1.5,
        "offset": 8,
        "gradientThickness": 8,
        "gradientStrokeWidth": 0.5,
        "gradientStrokeColor": INK,
    },
    "header": {**LETTERS, "labelFontSize": TEXT, "labelPadding": 3, "labelLimit": ALL},
    "title": {"fontSize": TEXT, "fontWeight": "normal", "color": INK, "offset": 4, "limit": ALL},
    "line": {"strokeWidth": 1.2},
    "point": {"size": 24, "strokeWidth": 1.2},
    "concat": {"spacing": 24},
    "facet": {"spacing": 8},
    # Otherwise each cell of a heat map has a description, and an SVG is five times as large.
    "aria": False,
}


def themed(chart: Any, **legend: Any) -> Any:
    """Returns the chart with the theme, and with these options of its legends.

    It cannot be combined with other charts afterwards.
    """
    return chart.configure(**CONFIG | {"legend": CONFIG["legend"] | legend})


def facets(chart: Any, names: Collection[str], columns: int) -> Any:
    """Returns the themed chart with a panel for each value of the field `name`.

    All panels are in `columns` columns of a paper.
    """
    chart = chart.properties(width=COLUMN_WIDTHS[columns] / columns - FACET_LABELS)
    panels = chart.facet(alt.Facet("name:N", title=None, sort=list(names)))
    return themed(panels.properties(columns=columns, spacing=24), orient="bottom")


def chart_of(records: Sequence[Mapping[str, Any]], **options: Any) -> alt.Chart:
    """Returns a chart of these records, without marks."""
    return alt.Chart(alt.InlineData(values=list(records)), **options)


def categories(
    channel: Any, field: str, order: Collection[str], values: Iterable[Any], **options: Any
) -> Any:
    """Returns a channel, such as alt.Shape, with one of `values` for each category in `order`."""
    channel = channel(f"{field}:N", sort=list(order), **options)
    return channel.scale(domain=list(order), range=list(values))


def lines(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    x: str,
    y: str,
    legend: str | None,
    width: float,
    height: float,
) -> alt.Chart:
    """Returns curves with the fields `name`, `x` and `y`.

    `curves` are the values of x and y by name. `x`, `y` and `legend` are titles.
    """
    records = []
    for name, curve in curves.items():
        for x_value, y_value in zip(*curve, strict=True):
            records.append({"name": name, "x": float(x_value), "y": float(y_value)})
    box = alt.Legend(title=legend, symbolSize=LINE_SYMBOL)
    return (
        chart_of(records, width=width, height=height)
        .mark_line(clip=True)
        .encode(
            x=alt.X("x:Q", title=x, axis=alt.Axis(grid=False, tickCount=5)).scale(nice=False),
            y=alt.Y("y:Q", title=y, axis=alt.Axis(tickCount=5)).scale(zero=False),
            color=categories(alt.Color, "name", curves, CATEGORICAL, legend=box),
            strokeDash=categories(alt.StrokeDash, "name", curves, DASHES, legend=box),
        )
    )


def visible(text: str) -> str:
    """Returns the text on one line, with control and invisible characters escaped as in Python.

    XML cannot contain control characters. SentencePiece's mark of a space, which few fonts have, is
    replaced by a middle dot.
    """
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(escaped).replace("\N{LOWER ONE EIGHTH BLOCK}", "\N{MIDDLE DOT}")


def label_expression(labels: Sequence[str]) -> str:
    """Returns the Vega expression for the labels of an axis with the values 0, 1, ...

    The labels may be any text. JSON in ASCII is also a literal of Vega's expressions, so a label
    cannot end its string.
    """
    return f"{json.dumps([visible(label) for label in labels])}[datum.value]"


def check_output(path: Path, formats: Sequence[str] = ("pdf", "svg", "png")) -> None:
    """Raises UserError unless the file has one of the endings and its folder exists."""
    endings = " or ".join(f".{ending}" for ending in formats)
    if path.suffix[1:].lower() not in formats:
        raise UserError(f"--output={path}: must end in {endings}")
    if not path.parent.is_dir():
        raise UserError(
            f"--output={path}: there is no folder {path.parent}; make it first, or name another"
        )


def write(chart: Any, path: Path) -> None:
    """Writes the chart atomically. vl-convert renders it without a browser or a network."""
    ending = path.suffix[1:].lower()
    is_text = ending == "svg"
    buffer = io.StringIO() if is_text else io.BytesIO()
    chart.save(buffer, format=ending, ppi=RESOLUTION)
    write_file = files.write_text if is_text else files.write_bytes
    write_file(path, buffer.getvalue())
