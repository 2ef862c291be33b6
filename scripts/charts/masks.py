"""Attention masks (section 3.2.3): padding, later positions, other sentences of a packed row."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import jax.numpy as jnp
import numpy as np

from scripts.charts import heat_map, theme
from scripts.charts.heat_map import Axis
from transformer.model.masks import Mask

LABELS = 40  # width of the axis
# True for a causal mask, as in the decoder.
MASKS = {"padding": False, "causal": True, "packed": False, "packed_causal": True}


def draw(
    panels: Sequence[str] = ("padding", "causal", "packed", "packed_causal"),
    sentences: Sequence[int] = (4, 3),
    length: int = 9,
    columns: int = 2,
) -> Any:
    """Returns which keys each query may attend to, in a panel for each kind of mask.

    Args:
      panels: of "padding" and "causal", with one sentence, and "packed" and "packed_causal", the
        encoder's and the decoder's mask of a packed row.
      sentences: the number of tokens of each sentence of a packed row. The padded sentence has
        their sum.
      length: the number of positions of a row, with padding.
    """
    in_row = min(len(panels), 2 * columns)
    width = theme.COLUMN_WIDTHS[columns] - LABELS - 8 * in_row
    cell = min(width / in_row / length, 12)
    legend = alt.Legend(
        type="symbol",
        symbolType="square",
        orient="bottom",
        direction="horizontal",
        title=None,
        values=[1, 0],
        labelExpr="datum.value ? 'may attend' : 'masked'",
    )
    chart = heat_map.panels(
        {name.replace("_", ", "): mask(name, sentences, length) for name in panels},
        Axis("query position"),
        Axis("key position"),
        in_row=in_row,
        cell=(cell, cell),
        value="",
        domain=(0, 1),
        legend=legend,
        palette=(theme.MASKED, theme.SEQUENTIAL[6]),
        has_grid=True,
    )
    return theme.themed(chart)


def mask(name: str, sentences: Sequence[int], length: int) -> np.ndarray:
    """Returns the mask (length, length) of a row: True where a query may attend to a key."""
    lengths = {"padding": [sum(sentences)], "causal": [length]}.get(name, sentences)
    # Each position has the number of its sentence, from 1. Padding has 0.
    segments = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    segments = np.pad(segments, (0, length - len(segments)))
    segments = jnp.asarray(segments)[None]  # (1, length)
    return np.asarray(Mask(segments, segments, MASKS[name], is_packed=True).dense[0, 0])
