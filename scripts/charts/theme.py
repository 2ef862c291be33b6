"""The look and the files of all charts: colours that print and that all readers tell apart, fonts,
sizes in points.
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

# Equal steps of 13 in CIELAB, from white to dark blue. Lightness falls at every step, so it also
# prints in grey.
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
# Okabe and Ito's colours without the yellow, which is too light for a line. The eighth category
# repeats the first.
CATEGORICAL = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LINE_SYMBOL = 300  # size of a legend's symbol that shows a dashed line
# For readers without colours. One fewer than the colours, so that lines with the same colour have
# different dashes.
DASHES = ([], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4], [1, 2])
MASKED = "#e8e8e8"

COLUMN_WIDTHS = {1: 240, 2: 500}  # of a paper; a point of the PDF is a pixel of Vega
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
TEXT = 9  # font sizes
SMALL = 8
INK = "#222222"
GRID = "#dddddd"
FRAME = "#bbbbbb"
ALL = 0  # in Vega: no limit to the length of a label
RESOLUTION = 300  # pixels an inch of a PNG

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
    "axis": LETTERS
    | {"titleColor": INK, "titlePadding": 4, "labelLimit": ALL, "labelFlush": False}
    | {"gridColor": GRID, "gridWidth": 0.5, "domainColor": INK, "domainWidth": 0.5}
    | {"tickColor": INK, "tickWidth": 0.5, "tickSize": 3},
    "legend": LETTERS
    | {
        "titleColor": INK,
        "titleLimit": ALL,
        "labelLimit": ALL,
        "symbolStrokeWidth": 1.5,
        "offset": 8,
    }
    | {"gradientThickness": 8, "gradientStrokeWidth": 0.5, "gradientStrokeColor": INK},
    "header": LETTERS | {"labelFontSize": TEXT, "labelPadding": 3, "labelLimit": ALL},
    "title": {"fontSize": TEXT, "fontWeight": "normal", "color": INK, "offset": 4, "limit": ALL},
    "line": {"strokeWidth": 1.2},
    "point": {"size": 24, "strokeWidth": 1.2},
    "concat": {"spacing": 24},
    "facet": {"spacing": 8},
    # Otherwise every cell of a heat map carries its description, which makes an SVG five times as
    # large.
    "aria": False,
}


def themed(chart: Any, **legend: Any) -> Any:
    """Returns the chart with the theme and these options of legends.

    It cannot be combined with others afterwards.
    """
    return chart.configure(**CONFIG | {"legend": CONFIG["legend"] | legend})


def categories(
    channel: Any, field: str, order: Collection[str], values: Iterable[Any], **options: Any
) -> Any:
    """Returns a channel, such as alt.Shape, that shows the categories in `order` of a field by
    these values.
    """
    return channel(f"{field}:N", sort=list(order), **options).scale(
        domain=list(order), range=list(values)
    )


def lines(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    x: str,
    y: str,
    legend: str | None,
    width: float,
    height: float,
) -> alt.Chart:
    """Returns curves, given as x and y by name, with the fields `name`, `x` and `y`.

    `x`, `y`, `legend` are titles.
    """
    points = [
        (name, *point) for name, curve in curves.items() for point in zip(*curve, strict=True)
    ]
    records = [{"name": name, "x": float(a), "y": float(b)} for name, a, b in points]
    box = alt.Legend(title=legend, symbolSize=LINE_SYMBOL)
    return (
        alt.Chart(alt.InlineData(values=records), width=width, height=height)
        .mark_line(clip=True)
        .encode(
            x=alt.X("x:Q", title=x, axis=alt.Axis(grid=False, tickCount=5)).scale(nice=False),
            y=alt.Y("y:Q", title=y, axis=alt.Axis(tickCount=5)).scale(zero=False),
            color=categories(alt.Color, "name", curves, CATEGORICAL, legend=box),
            strokeDash=categories(alt.StrokeDash, "name", curves, DASHES, legend=box),
        )
    )


def visible(text: str) -> str:
    """Returns the text on one line: control and invisible characters are written as escapes, as in
    Python.

    XML has no control characters. SentencePiece's mark of a space, which few fonts have, becomes a
    middle dot.
    """
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(escaped).replace("\N{LOWER ONE EIGHTH BLOCK}", "\N{MIDDLE DOT}")


def label_expression(labels: Sequence[str]) -> str:
    """Returns the Vega expression of the labels of an axis whose values are 0, 1, ... The labels
    may be any text.

    JSON in ASCII is also a literal of Vega's expressions, so a label cannot end its string.
    """
    return f"{json.dumps([visible(label) for label in labels])}[datum.value]"


def check_output(path: Path, formats: Sequence[str] = ("pdf", "svg", "png")) -> None:
    """Raises UserError unless the file has one of the endings and its folder exists, before
    anything is computed.
    """
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
    content = io.StringIO() if ending == "svg" else io.BytesIO()
    chart.save(content, format=ending, ppi=RESOLUTION)
    files.write_bytes(path, content.getvalue().encode() if ending == "svg" else content.getvalue())
