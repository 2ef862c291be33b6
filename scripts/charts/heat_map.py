"""Heat maps of matrices: one, or a grid of panels that share their axes and colours."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from scripts.charts import theme
from transformer.support.errors import UserError

OVERLAP = 0.04  # of neighbouring cells, as a fraction of their size
TICK_LABELS = 8  # numbers on an axis, at most
SMALLEST_FONT = 5.5  # of the labels of small cells
TICK_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)

Matrices = Sequence[tuple[Mapping[str, Any], np.ndarray]]  # with the values of a panel's fields


class Axis(NamedTuple):
    """The rows or columns of matrices. `labels` are their names; None: numbers from 0."""

    title: str | None
    labels: Sequence[str] | None = None

    def make(self, count: int, cell: float) -> alt.Axis:
        """Returns the Altair axis of `count` rows or columns of size `cell`."""
        look = {"title": self.title, "domain": False, "ticks": False, "labelPadding": 3}
        if self.labels is not None:
            look["labelFontSize"] = min(max(cell - 0.5, SMALLEST_FONT), theme.SMALL)
            labels = theme.label_expression(self.labels)
            return alt.Axis(labelExpr=labels, labelOverlap=False, **look)

        # The smallest round step with few enough labels.
        few_labels = (step for step in TICK_STEPS if count <= step * TICK_LABELS)
        step = next(few_labels, TICK_STEPS[-1])
        return alt.Axis(values=list(range(0, count, step)), labelAngle=0, **look)


def heat_map(
    matrices: Matrices,
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
    """Returns a heat map of matrices (R, C).

    Its fields are `row`, `column`, `value` and the fields of the panels.

    Args:
      matrices: pairs of the values of the fields of a panel, such as {"layer": 2, "head": 1}, and
        its matrix.
      cell: width and height of a cell, in points.
      value: title of the legend.
      domain: values of the lightest and the darkest colour.
      numbers: d3's format of the number in each cell; None: cells show only colours.
      palette: colours of equal steps over the domain.
      has_grid: draws white lines between cells.

    Raises:
      UserError: a number is not finite.
    """
    if not all(np.isfinite(matrix).all() for _, matrix in matrices):
        raise UserError(
            f"{value}: has numbers that are not finite, which cannot be drawn; "
            "choose another checkpoint"
        )
    height, width = matrices[0][1].shape

    # Colours between the steps of the palette are interpolated in CIELAB, where steps look equal.
    color = alt.Color("value:Q", title=value, legend=legend)
    cells = alt.Chart().encode(
        x=alt.X("column:O", axis=columns.make(width, cell[0])),
        y=alt.Y("row:O", axis=rows.make(height, cell[1])),
        color=color.scale(domain=domain, range=list(palette), interpolate="lab"),
    )
    if has_grid:
        layers = [cells.mark_rect(stroke="white", strokeWidth=0.5)]
        frame = None
    else:
        # Rectangles overlap a little to close the seams that PDF viewers show between neighbours.
        size = alt.RelativeBandSize(band=1.0 + OVERLAP)
        layers = [cells.mark_rect(width=size, height=size)]
        frame = theme.FRAME
    if numbers is not None:
        # White numbers on dark cells.
        middle = 0.45 * domain[0] + 0.55 * domain[1]
        ink = alt.condition(f"datum.value > {middle}", alt.value("white"), alt.value(theme.INK))
        text = alt.Text("value:Q", format=numbers)
        layers.append(cells.mark_text(fontSize=theme.SMALL - 1).encode(text=text, color=ink))
    chart = alt.layer(*layers, data=alt.InlineData(values=_records(matrices)))
    view = alt.ViewBackground(stroke=frame)
    return chart.properties(width=width * cell[0], height=height * cell[1], view=view)


def _records(matrices: Matrices) -> list[dict[str, Any]]:
    """Returns a record for each cell of each panel."""
    records = []
    for panel, matrix in matrices:
        for (row, column), number in np.ndenumerate(matrix):
            records.append({**panel, "row": row, "column": column, "value": float(number)})
    return records


def panels(
    matrices: Mapping[str, np.ndarray], rows: Axis, columns: Axis, *, in_row: int, **options: Any
) -> alt.FacetChart:
    """Returns a heat map of each matrix under its name, with `in_row` heat maps in a row.

    `options` are arguments of `heat_map`.
    """
    pairs = [({"panel": name}, matrix) for name, matrix in matrices.items()]
    facet = alt.Facet("panel:N", title=None, sort=list(matrices))
    return heat_map(pairs, rows, columns, **options).facet(facet=facet, columns=in_row)


def gradient(length: float) -> alt.Legend:
    """Returns the legend of a continuous scale, `length` points long."""
    return alt.Legend(type="gradient", gradientLength=length, tickCount=3)
