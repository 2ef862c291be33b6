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

# The Annotated Transformer draws these layers and the first four heads.
LAYERS = (2, 4, 6)
HEADS = 4
MAX_TOKENS = 60
SMALLEST_CELL = 6  # points
LARGEST_CELL = 14
LABELS = {1: 110, 2: 135}  # width of the row labels, the legend and the gaps


def draw(
    attention: Attention,
    part: str = "encoder",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    columns: int = 2,
) -> Any:
    """Returns heat maps of attention weights, with a row for each layer and a column for each head.

    Args:
      attention: the result of `transformer.load(WORKDIR).attention(source, target)`.
      part: "encoder", "decoder" or "cross".
      layers: numbers from 1. None: the layers 2, 4 and 6 that the model has, or else all layers.
      heads: numbers from 1. None: the first four heads.
      columns: 1 or 2 columns of a paper. A long sentence is wider.

    Raises:
      UserError: the model has no such part, layer or head, or the sentence has more than 60 tokens.
    """
    weights = getattr(attention, part)  # (layers, heads, queries, keys)
    if weights is None:
        raise UserError(f"part={part}: the decoder has no self-attention; choose encoder or cross")
    rows, keys = axes(attention, part)
    num_layers, num_heads, *num_tokens = weights.shape
    if max(num_tokens) > MAX_TOKENS:
        raise UserError(
            f"the sentence has {max(num_tokens)} tokens, and at most {MAX_TOKENS} can be drawn; "
            "choose a shorter one"
        )
    default_layers = [layer for layer in LAYERS if layer <= num_layers] or range(1, num_layers + 1)
    layers = check_numbers("layers", layers or default_layers, num_layers, part)
    heads = check_numbers("heads", heads or range(1, min(HEADS, num_heads) + 1), num_heads, part)
    # Cells are square, and as large as the columns of the paper allow.
    width = theme.COLUMN_WIDTHS[columns] - LABELS[columns]
    side = min(max(width / (len(heads) * len(keys.labels)), SMALLEST_CELL), LARGEST_CELL)

    panels = []
    for layer in layers:
        for head in heads:
            panels.append(({"layer": layer, "head": head}, weights[layer - 1, head - 1]))
    chart = heat_map(
        panels, rows, keys, cell=(side, side), value="weight", domain=(0, 1), legend=gradient(60)
    )
    row = alt.Row("layer:O").title(None)
    column = alt.Column("head:O").title(None)
    chart = chart.facet(
        row=row.header(labelExpr="'Layer ' + datum.value", labelAngle=-90),
        column=column.header(labelExpr="'Head ' + datum.value"),
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
    """Returns the attention of a run's model over a sentence pair.

    Without `target`, it is the model's translation. `options` are arguments of `draw`.
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
    tokens an output comes from. The decoder's self-attention has the input tokens, which begin with
    BOS.
    """
    source = attention.source_pieces
    target_input = attention.target_input_pieces
    if part == "encoder":
        return Axis("query", source), Axis("key", source)
    if part == "decoder":
        return Axis("query", target_input), Axis("key", target_input)
    predicted = Axis("predicted token", attention.target_output_pieces)
    return predicted, Axis("source token", source)


def check_numbers(name: str, numbers: Sequence[int], count: int, part: str) -> list[int]:
    """Returns the numbers in ascending order.

    Raises UserError if one of them is not in 1 ... `count`.
    """
    numbers = sorted(set(numbers))
    valid = range(1, count + 1)
    wrong = ",".join(str(number) for number in numbers if number not in valid)
    if wrong:
        raise UserError(
            f"{name}={wrong}: the part {part} has the {name} {', '.join(map(str, valid))}"
        )
    return numbers
