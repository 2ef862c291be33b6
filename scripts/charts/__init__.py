"""Charts of the model, its training and its results, as Altair draws them.

    from scripts import charts
    charts.positions.draw(length=50, d_model=128).save("positions.svg")

Each module has `draw`, which returns a finished chart for one or two columns of a paper. Its other
functions compute plain arrays, or turn arrays into charts without a theme, which can be combined
with others. Errors that flags of `scripts.figures` can cause are UserError, and name the argument.
"""

from scripts.charts import (
    attention,
    coordinates,
    curves,
    masks,
    mup,
    positions,
    schedule,
    smoothing,
    table3,
)

__all__ = [
    "attention",
    "coordinates",
    "curves",
    "masks",
    "mup",
    "positions",
    "schedule",
    "smoothing",
    "table3",
]
