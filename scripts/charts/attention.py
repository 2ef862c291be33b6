"""Attention weights over the tokens of a sentence pair: a panel for each layer and head."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from scripts.charts import theme
from scripts.charts.heat_map import Axis, heat_map
from transformer.errors import UserError

if TYPE_CHECKING:
    from transformer.decoding.activations import Attention

PARTS = ("encoder", "decoder", "cross")
LAYERS = (2, 4, 6)  # those that the Annotated Transformer draws, of which a model may lack some
HEADS = 4  # as many as it draws, the first ones
MAX_TOKENS = 60
SMALLEST_CELL, LARGEST_CELL = 6, 14  # points
LABELS = {1: 110, 2: 135}  # width of the row labels, the legend and the gaps, by columns of the paper


def draw(
    attention: "Attention",
    part: str = "encoder",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    columns: int = 2,
) -> Any:
    """Returns the heat maps of attention weights, with a row of panels for each layer and a column for each head.

    Args:
      attention: what `transformer.load(WORKDIR).attention(source, target)` returns.
      part: "encoder", "decoder" or "cross".
      layers, heads: numbers from 1. None: of the layers 2, 4 and 6 those that there are, and the first four heads.
      columns: 1 or 2 columns of a paper. A long sentence is wider.

    Raises:
      UserError: there is no such part, layer or head, or the sentence has more than 60 tokens.
    """
    return theme.themed(maps(attention, part, layers, heads, theme.COLUMN_WIDTHS[columns] - LABELS[columns]))


def maps(
    attention: "Attention", part: str, layers: Sequence[int] | None, heads: Sequence[int] | None, width: float
) -> alt.FacetChart:
    """Returns the panels of `draw`, which together are about `width` points wide, without a theme."""
    if part not in PARTS:
        raise UserError(f"part={part}: must be one of {', '.join(PARTS)}")
    weights, (rows, keys) = getattr(attention, part), axes(attention, part)
    _check_length(len(rows.labels), len(keys.labels))
    found_layers, found_heads = weights.shape[:2]
    layers = chosen("layers", layers, default_layers(found_layers), found_layers, part)
    heads = chosen("heads", heads, range(1, min(HEADS, found_heads) + 1), found_heads, part)
    side = min(max(width / (len(heads) * len(keys.labels)), SMALLEST_CELL), LARGEST_CELL)
    panels = [({"layer": i, "head": j}, weights[i - 1, j - 1]) for i in layers for j in heads]
    legend = alt.Legend(type="gradient", gradientLength=60, tickCount=3)
    chart = heat_map(panels, rows, keys, cell=(side, side), value="weight", domain=(0, 1), legend=legend)
    return chart.facet(
        row=alt.Row("layer:O", title=None, header=alt.Header(labelExpr="'Layer ' + datum.value", labelAngle=-90)),
        column=alt.Column("head:O", title=None, header=alt.Header(labelExpr="'Head ' + datum.value")),
    )


def axes(attention: "Attention", part: str) -> tuple[Axis, Axis]:
    """Returns the rows (queries) and columns (keys) of the weights of a part.

    Rows of cross-attention have the tokens that they predict, so that a heat map shows which source tokens an output
    comes from. The decoder's self-attention has the tokens that it reads, of which the first is BOS.
    """
    source, read, predicted = attention.source_pieces, attention.target_input_pieces, attention.target_output_pieces
    if part == "encoder":
        return Axis("query", source), Axis("key", source)
    if part == "decoder":
        return Axis("query", read), Axis("key", read)
    return Axis("predicted token", predicted), Axis("source token", source)


def default_layers(count: int) -> list[int]:
    """Returns the layers to draw of a model that has `count`: all if there is no second one."""
    return [layer for layer in LAYERS if layer <= count] or list(range(1, count + 1))


def chosen(name: str, numbers: Sequence[int] | None, default: Sequence[int], count: int, part: str) -> list[int]:
    """Returns the numbers in ascending order. Raises UserError, listing 1 to `count`, if one of them is not there."""
    numbers = sorted(set(default if numbers is None else numbers))
    missing = [number for number in numbers if not 1 <= number <= count]
    if missing or not numbers:
        given = ",".join(map(str, missing))
        raise UserError(f"{name}={given}: the part {part} has the {name} {', '.join(map(str, range(1, count + 1)))}")
    return numbers


def _check_length(*lengths: int) -> None:
    if max(lengths) > MAX_TOKENS:
        raise UserError(
            f"the sentence has {max(lengths)} tokens, and at most {MAX_TOKENS} can be drawn; choose a shorter one"
        )
