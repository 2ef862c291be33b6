"""Attention weights over the tokens of a sentence pair: a panel for each layer and head."""

import os
from collections.abc import Sequence
from typing import Any

import altair as alt

import transformer
from scripts.charts import theme
from scripts.charts.heat_map import Axis, gradient, heat_map
from transformer.decoding.control.arguments import check_text
from transformer.decoding.forced_decoding import Attention
from transformer.support.cache import enable_compilation_cache
from transformer.support.errors import UserError

LAYERS = (2, 4, 6)  # those that the Annotated Transformer draws, of which a model may lack some
HEADS = 4  # as many as it draws, the first ones
MAX_TOKENS = 60
SMALLEST_CELL = 6  # points
LARGEST_CELL = 14
# width of the row labels, the legend and the gaps, by columns of the paper
LABELS = {1: 110, 2: 135}


def draw(
    attention: Attention,
    part: str = "encoder",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    columns: int = 2,
) -> Any:
    """Returns the heat maps of attention weights, with a row of panels for each layer and a column
    for each head.

    Args:
      attention: what `transformer.load(WORKDIR).attention(source, target)` returns.
      part: "encoder", "decoder" or "cross". layers, heads: numbers from 1. None: of the layers 2, 4
      and 6 those that there are, and the first four heads.
      columns: 1 or 2 columns of a paper. A long sentence is wider.

    Raises:
      UserError: the model has no such part, layer or head, or the sentence has more than 60 tokens.
    """
    weights, (rows, keys) = getattr(attention, part), axes(attention, part)
    if weights is None:
        raise UserError(f"part={part}: the decoder has no self-attention; choose encoder or cross")
    if (tokens := max(len(rows.labels), len(keys.labels))) > MAX_TOKENS:
        raise UserError(
            f"the sentence has {tokens} tokens, and at most {MAX_TOKENS} can be drawn; choose a shorter one"
        )
    num_layers, num_heads = weights.shape[:2]
    default_layers = [layer for layer in LAYERS if layer <= num_layers] or range(1, num_layers + 1)
    layers = chosen("layers", layers or default_layers, num_layers, part)
    heads = chosen("heads", heads or range(1, min(HEADS, num_heads) + 1), num_heads, part)
    width = theme.COLUMN_WIDTHS[columns] - LABELS[columns]
    side = min(max(width / (len(heads) * len(keys.labels)), SMALLEST_CELL), LARGEST_CELL)
    panels = [({"layer": i, "head": j}, weights[i - 1, j - 1]) for i in layers for j in heads]
    chart = heat_map(
        panels, rows, keys, cell=(side, side), value="weight", domain=(0, 1), legend=gradient(60)
    )
    chart = chart.facet(
        row=alt.Row(
            "layer:O",
            title=None,
            header=alt.Header(labelExpr="'Layer ' + datum.value", labelAngle=-90),
        ),
        column=alt.Column(
            "head:O", title=None, header=alt.Header(labelExpr="'Head ' + datum.value")
        ),
    )
    return theme.themed(chart)


def draw_run(
    workdir: str | os.PathLike,
    source: str,
    target: str | None = None,
    checkpoint: str = "best",
    average: int = 1,
    **options: Any,
) -> Any:
    """Returns the attention of a run over a sentence pair; None: its own translation.

    `options`: see `draw`.
    """
    for name, text in (("--source", source), ("--target", target or "")):
        check_text(text, name)
    enable_compilation_cache()
    model = transformer.load(workdir, checkpoint, average)
    if target is None:
        target = model.translate([source])[0][0].text
    return draw(model.attention(source, target), **options)


def axes(attention: Attention, part: str) -> tuple[Axis, Axis]:
    """Returns the rows (queries) and columns (keys) of the weights of a part.

    Rows of cross-attention have the tokens that they predict, so that a heat map shows which source
    tokens an output comes from. The decoder's self-attention has the tokens that it reads, of which
    the first is BOS.
    """
    source = attention.source_pieces
    read = attention.target_input_pieces
    predicted = attention.target_output_pieces
    if part == "encoder":
        return Axis("query", source), Axis("key", source)
    if part == "decoder":
        return Axis("query", read), Axis("key", read)
    return Axis("predicted token", predicted), Axis("source token", source)


def chosen(name: str, numbers: Sequence[int], count: int, part: str) -> list[int]:
    """Returns the numbers in ascending order.

    Raises UserError, listing 1 to `count`, if one of them is another.
    """
    numbers = sorted(set(numbers))
    if missing := [number for number in numbers if not 1 <= number <= count]:
        given = ",".join(map(str, missing))
        raise UserError(
            f"{name}={given}: the part {part} has the {name} {', '.join(map(str, range(1, count + 1)))}"
        )
    return numbers
