"""Positional encodings (section 3.5): the vectors as a heat map, and dot products between them."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import jax.numpy as jnp
import numpy as np

from scripts.charts import theme
from scripts.charts.heat_map import Axis, gradient, heat_map
from scripts.interop.portable import sinusoids
from transformer.model.positions import POSITIONS
from transformer.model.relative_positions import Rotary
from transformer.support.errors import UserError

HEIGHT = 150  # of a panel, in points
LABELS = 105  # width of a panel's axis and legend, and of the space between panels


def draw(
    length: int = 50,
    d_model: int = 128,
    kind: str = "sinusoidal",
    panels: Sequence[str] = ("heat_map", "products"),
    columns: int = 2,
) -> Any:
    """Returns the positional encodings as one or more panels.

    Args:
      length: number of positions, from 0.
      d_model: width of the encodings.
      kind: a value of `config.model.positions`.
      panels: of "heat_map" and "products" (dot products of some positions with all).
      columns: 1 or 2 columns of a paper. With 2, two panels are beside each other.

    Raises:
      UserError: an argument is not allowed.
    """
    for name in panels:
        if name not in PANELS:
            raise UserError(f"panels={name}: must be of {', '.join(PANELS)}")
    if length < 2:
        raise UserError(f"length={length}: must be at least 2")
    # Panels are beside each other if the figure has the width of two columns.
    vectors = encodings(length, d_model, kind)
    in_row = min(columns, len(panels))
    width = theme.COLUMN_WIDTHS[columns] / in_row - LABELS
    charts = [PANELS[name](vectors, width) for name in panels]
    chart = alt.concat(*charts, columns=in_row, spacing=16)
    # Each panel has its own legend.
    return theme.themed(
        chart.resolve_scale(color="independent", stroke="independent", strokeDash="independent")
    )


def encodings(length: int, d_model: int, kind: str) -> np.ndarray:
    """Returns the vectors (length, d_model) that are added to the embeddings at positions 0, 1, ...

    "rotary" adds no vectors. Its result is a vector rotated as queries and keys are. Before the
    rotation, the first element of each plane is 1 and the second is 0. `d_model` is then the width
    of a head. Raises UserError if `kind` has no formula, or the width is odd.
    """
    formulas = [name for name in POSITIONS if name.startswith("sinusoidal") or name == "rotary"]
    if kind not in formulas:
        raise UserError(f"kind={kind}: must be one of {', '.join(formulas)}")
    if d_model < 2 or d_model % 2:
        raise UserError(f"d_model={d_model}: must be even, at least 2")
    if kind == "rotary":
        # The first half of a head's elements are the first elements of its planes.
        vector = jnp.repeat(jnp.array([1.0, 0.0]), d_model // 2)
        vectors = jnp.broadcast_to(vector, (1, length, 1, d_model))
        return np.asarray(Rotary().rotate(vectors, jnp.arange(length)[None])[0, :, 0])
    return sinusoids(kind, d_model, np.arange(length))


def encoding_panel(vectors: np.ndarray, width: float) -> alt.Chart:
    """Returns the vectors (L, D) as a heat map with a row for each position."""
    length, d_model = vectors.shape
    return heat_map(
        [({}, vectors)],
        Axis("position"),
        Axis("dimension"),
        cell=(width / d_model, HEIGHT / length),
        value="value",
        domain=(-1, 1),
        legend=gradient(HEIGHT * 0.6),
    )


def product_panel(vectors: np.ndarray, width: float) -> alt.LayerChart:
    """Returns the dot products (L, L) of four positions with all positions, as curves."""
    length = len(vectors)
    # From the beginning, a quarter, the middle and three quarters of the positions.
    marked = sorted({0, length // 4, length // 2, length - max(length // 4, 1)})
    products = vectors @ vectors[marked].T  # (L, number of curves)
    x = np.arange(length)
    curves = {str(position): (x, y) for position, y in zip(marked, products.T, strict=True)}
    return theme.lines(curves, "position", "dot product", "with position", width, HEIGHT)


PANELS = {"heat_map": encoding_panel, "products": product_panel}
