"""Curves of one panel, told apart by colours and by dashes."""

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt
import numpy as np

from scripts.charts import theme


class Line(NamedTuple):
    """A curve: its name in the legend, and its points."""

    name: str
    x: np.ndarray
    y: np.ndarray


def lines(curves: Sequence[Line], x: str, y: str, legend: str | None, width: float, height: float) -> alt.Chart:
    """Returns the curves, with the fields `name`, `x` and `y`. `x`, `y` and `legend` are titles."""
    names = [curve.name for curve in curves]
    records = [
        {"name": curve.name, "x": float(a), "y": float(b)}
        for curve in curves
        for a, b in zip(curve.x, curve.y, strict=True)
    ]
    box = alt.Legend(title=legend, symbolSize=theme.LINE_SYMBOL)
    return (
        alt.Chart(alt.InlineData(values=records), width=width, height=height)
        .mark_line(clip=True)
        .encode(
            x=alt.X("x:Q", title=x, axis=alt.Axis(grid=False, tickCount=5)).scale(nice=False),
            y=alt.Y("y:Q", title=y, axis=alt.Axis(tickCount=5)).scale(zero=False),
            color=theme.color("name", names, box),
            strokeDash=theme.dashes("name", names, box),
        )
    )
