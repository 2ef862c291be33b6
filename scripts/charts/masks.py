"""Attention masks (section 3.2.3): padding, later positions, and the other sentences of a packed row."""

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import jax.numpy as jnp
import numpy as np

from scripts.charts import theme
from scripts.charts.heat_map import Axis, heat_map
from transformer.errors import UserError
from transformer.model.masks import attention_mask, segments_of
from transformer.special_tokens import PAD

PACKED = (4, 3)  # tokens of the sentences of a packed row
LENGTH = 9
MAX_LENGTH = 64
LABELS = 40  # width of the axis
TOKEN = PAD + 1  # any that is not padding


def draw(
    panels: Sequence[str] = ("padding", "causal", "packed", "packed_causal"),
    sentences: Sequence[int] = PACKED,
    length: int = LENGTH,
    columns: int = 2,
) -> Any:
    """Returns which keys each query may attend to, in a panel for each kind of mask.

    Args:
      panels: of "padding", "causal", "packed" and "packed_causal". "packed" is the encoder's mask of a packed row,
        "packed_causal" the decoder's. The first two have one sentence.
      sentences: number of tokens of each sentence of a packed row; the padded sentence has as many as all of them.
      length: positions of a row; the rest is padding.

    Raises:
      UserError: an argument is not allowed.
    """
    for name in panels:
        if name not in MASKS:
            raise UserError(f"panels={name}: must be of {', '.join(MASKS)}")
    if not 1 <= length <= MAX_LENGTH:
        raise UserError(f"length={length}: must be in 1 ... {MAX_LENGTH}")
    if min(sentences, default=0) < 1 or sum(sentences) > length:
        given = ",".join(map(str, sentences))
        raise UserError(f"sentences={given}: must have 1 token or more each, and at most length={length} together")
    in_row = min(len(set(panels)), 2 * columns)
    cell = (theme.COLUMN_WIDTHS[columns] - LABELS - 8 * in_row) / in_row / length
    matrices = [({"mask": name}, MASKS[name](sentences, length)) for name in dict.fromkeys(panels)]
    return theme.themed(maps(matrices, min(cell, 12), in_row))


def padding(sentences: Sequence[int], length: int) -> np.ndarray:
    """Returns the mask (length, length) of a sentence followed by padding."""
    tokens = jnp.where(jnp.arange(length) < sum(sentences), TOKEN, PAD)[None]
    return _dense(segments_of(tokens), causal=False)


def causal(sentences: Sequence[int], length: int) -> np.ndarray:
    """Returns the mask (length, length) of a decoder whose row is one sentence."""
    return _dense(segments_of(jnp.full((1, length), TOKEN)), causal=True)


def packed(sentences: Sequence[int], length: int, *, is_causal: bool = False) -> np.ndarray:
    """Returns the mask (length, length) of a row with several sentences, followed by padding."""
    segments = np.repeat(np.arange(1, len(sentences) + 1), sentences)
    return _dense(jnp.asarray(np.pad(segments, (0, length - len(segments))))[None], is_causal)


def packed_causal(sentences: Sequence[int], length: int) -> np.ndarray:
    """Returns the mask of a decoder whose row has several sentences."""
    return packed(sentences, length, is_causal=True)


MASKS: dict[str, Callable[[Sequence[int], int], np.ndarray]] = {
    "padding": padding,
    "causal": causal,
    "packed": packed,
    "packed_causal": packed_causal,
}


def maps(matrices: Sequence[tuple[dict[str, str], np.ndarray]], cell: float, in_row: int) -> alt.FacetChart:
    """Returns the masks (Q, K) as panels, `in_row` beside each other, without a theme."""
    legend = alt.Legend(
        **{"type": "symbol", "symbolType": "square", "orient": "bottom", "direction": "horizontal"},
        **{"title": None, "values": [1, 0], "labelExpr": "datum.value ? 'may attend' : 'masked'"},
    )
    chart = heat_map(
        *(matrices, Axis("query position"), Axis("key position")),
        **{"cell": (cell, cell), "value": "", "domain": (0, 1), "legend": legend},
        **{"palette": (theme.MASKED, theme.SEQUENTIAL[6]), "has_grid": True},
    )
    header = alt.Header(labelExpr="replace(datum.value, '_', ', ')")
    order = [panel["mask"] for panel, _ in matrices]
    return chart.facet(facet=alt.Facet("mask:N", title=None, header=header, sort=order), columns=in_row)


def _dense(segments: Any, causal: bool) -> np.ndarray:
    return np.asarray(attention_mask(segments, segments, causal)[0, 0])
