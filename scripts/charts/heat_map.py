"""Heat maps of matrices: one, or a grid of panels that share their axes and colours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from scripts.charts import theme
from transformer.errors import UserError

DIGITS = 4  # of the values, as many as the colours can show
OVERLAP = 0.04  # of neighbouring cells, as a fraction of their size
TICK_LABELS = 8  # numbers on an axis, at most
SMALLEST_FONT = 5.5  # of the labels of small cells
TICK_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True)
class Axis:
    """The rows or columns of matrices. `labels` are their names; None: numbers from 0."""

    title: str | None
    labels: Sequence[str] | None = None

    def make(self, count: int, cell: float) -> alt.Axis:
        """Returns the axis of `count` rows or columns with this size."""
        look: dict[str, Any] = {"title": self.title, "domain": False, "ticks": False, "labelPadding": 3}
        if self.labels is not None:
            look["labelFontSize"] = min(max(cell - 0.5, SMALLEST_FONT), theme.SMALL)
            return alt.Axis(labelExpr=theme.label_expression(self.labels), labelOverlap=False, **look)
        step = next(step for step in TICK_STEPS if count <= step * TICK_LABELS or step == TICK_STEPS[-1])
        return alt.Axis(values=list(range(0, count, step)), labelAngle=0, **look)


def heat_map(
    matrices: Sequence[tuple[Mapping[str, Any], np.ndarray]],
    rows: Axis,
    columns: Axis,
    *,
    cell: tuple[float, float],
    value: str,
    domain: tuple[float, float],
    legend: alt.Legend | None = None,
    numbers: str | None = None,
    palette: Sequence[str] = theme.SEQUENTIAL,
    has_grid: bool = False,
) -> alt.LayerChart:
    """Returns a heat map of matrices (R, C). Its fields are `row`, `column`, `value` and the names of the panels.

    A matrix is one record, row by row, and Vega finds the cells. A record for each cell would be eight times as large.

    Args:
      matrices: each with the values of the fields that select it in a facet, such as {"layer": 2, "head": 1}.
      cell: width and height of a cell, in points.
      value: title of the legend.
      domain: the values of the lightest and the darkest colour.
      numbers: the format of the value that each cell shows, as d3 writes it; None: cells show only colours.
      palette: colours of equal steps over the domain.
      has_grid: draws white lines between cells.

    Raises:
      UserError: a number is not finite.
    """
    if not all(np.isfinite(matrix).all() for _, matrix in matrices):
        raise UserError(f"{value}: has numbers that are not finite, which cannot be drawn; choose another checkpoint")
    (height, width), names = matrices[0][1].shape, list(matrices[0][0])
    values = [{**panel, "value": np.round(np.float64(matrix), DIGITS).ravel().tolist()} for panel, matrix in matrices]
    x = alt.X("column:O", axis=columns.make(width, cell[0]))
    y = alt.Y("row:O", axis=rows.make(height, cell[1]))
    colors = {"domain": domain, "range": list(palette), "interpolate": "lab"}
    cells = alt.Chart().encode(x=x, y=y, color=alt.Color("value:Q", title=value, legend=legend).scale(**colors))
    if has_grid:
        layers = [cells.mark_rect(stroke="white", strokeWidth=0.5)]
    else:
        # Rectangles overlap a little to close the seams that PDF viewers show between neighbours.
        size = alt.RelativeBandSize(band=1.0 + OVERLAP)
        # The frame is a mark, since cells would hide half of the panel's own border.
        corners = {"x": 0, "y": 0, "x2": width * cell[0], "y2": height * cell[1]}
        frame = alt.Chart().transform_aggregate(count="count()")  # one rectangle, not one for each cell
        frame = frame.mark_rect(fill=None, stroke=theme.FRAME, strokeWidth=0.5)
        frame = frame.encode(**{side: alt.value(point) for side, point in corners.items()})
        layers = [cells.mark_rect(width=size, height=size), frame]
    if numbers is not None:
        middle = domain[0] + 0.55 * (domain[1] - domain[0])
        ink = alt.condition(f"datum.value > {middle}", alt.value("white"), alt.value(theme.INK))
        text = alt.Text("value:Q", format=numbers)
        layers.append(cells.mark_text(fontSize=theme.SMALL - 1).encode(text=text, color=ink))
    return (
        alt.layer(*layers, data=alt.InlineData(values=values))
        .properties(width=width * cell[0], height=height * cell[1])
        .transform_flatten(["value"])
        .transform_window(number="row_number()", groupby=names)
        .transform_calculate(row=f"floor((datum.number - 1) / {width})", column=f"(datum.number - 1) % {width}")
    )


def panels(
    field: str, matrices: Mapping[str, np.ndarray], rows: Axis, columns: Axis, *, in_row: int, titles: str, **look: Any
) -> alt.FacetChart:
    """Returns a heat map of each matrix, `in_row` beside each other, without a theme.

    `field` has the names of the matrices, which the Vega expression `titles` of a panel's title calls `datum.value`.
    `look` are the options of `heat_map`.
    """
    chart = heat_map([({field: name}, matrix) for name, matrix in matrices.items()], rows, columns, **look)
    facet = alt.Facet(f"{field}:N", title=None, header=alt.Header(labelExpr=titles), sort=list(matrices))
    return chart.facet(facet=facet, columns=in_row)


def gradient(length: float) -> alt.Legend:
    """Returns the legend of a continuous scale, `length` points long."""
    return alt.Legend(type="gradient", gradientLength=length, tickCount=3)
