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
      columns: 1 or 2 columns of a paper. Two panels stand beside each other in 2, one above the
          other in 1.

    Raises:
      UserError: an argument is not allowed.
    """
    for name in panels:
        if name not in PANELS:
            raise UserError(f"panels={name}: must be of {', '.join(PANELS)}")
    if length < 2:
        raise UserError(f"length={length}: must be at least 2")
    vectors = encodings(length, d_model, kind)
    in_row = min(columns, len(panels))
    width = theme.COLUMN_WIDTHS[columns] / in_row - LABELS
    charts = [PANELS[name](vectors, width) for name in panels]
    own = {"color": "independent", "stroke": "independent", "strokeDash": "independent"}
    return theme.themed(alt.concat(*charts, columns=in_row, spacing=16).resolve_scale(**own))


def encodings(length: int, d_model: int, kind: str) -> np.ndarray:
    """Returns the vectors (length, d_model) that the model adds to the embeddings at positions 0,
    1, ...

    "rotary" adds none. Its result is the vector with 1 in the first element of each plane and 0 in
    the second, rotated as queries and keys are. `d_model` is then the width of a head. Raises
    UserError if `kind` has no formula, or the width is odd.
    """
    formulas = [name for name in POSITIONS if name.startswith("sinusoidal") or name == "rotary"]
    if kind not in formulas:
        raise UserError(f"kind={kind}: must be one of {', '.join(formulas)}")
    if d_model < 2 or d_model % 2:
        raise UserError(f"d_model={d_model}: must be even, at least 2")
    if kind == "rotary":
        vector = jnp.repeat(jnp.array([1.0, 0.0]), d_model // 2)
        vectors = jnp.broadcast_to(vector, (1, length, 1, d_model))
        return np.asarray(Rotary().rotate(vectors, jnp.arange(length)[None])[0, :, 0])
    return sinusoids(kind, d_model, np.arange(length))


def heat_map_of(vectors: np.ndarray, width: float) -> alt.Chart:
    """Returns the vectors (L, D) as a heat map with a row for each position."""
    cell = (width / vectors.shape[1], HEIGHT / vectors.shape[0])
    look = {"cell": cell, "value": "value", "domain": (-1, 1), "legend": gradient(HEIGHT * 0.6)}
    return heat_map([({}, vectors)], Axis("position"), Axis("dimension"), **look)


def products_of(vectors: np.ndarray, width: float) -> alt.LayerChart:
    """Returns the dot products (L, L) of four positions with all positions, as curves."""
    length = len(vectors)
    chosen = sorted({0, length // 4, length // 2, length - max(length // 4, 1)})
    products = vectors @ vectors[chosen].T
    curves = {str(p): (np.arange(length), products[:, i]) for i, p in enumerate(chosen)}
    return theme.lines(curves, "position", "dot product", "with position", width, HEIGHT)


PANELS = {"heat_map": heat_map_of, "products": products_of}
