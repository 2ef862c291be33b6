"""The hypotheses of a beam search: a column for each step, the most probable hypothesis on top."""

import itertools
from typing import Any

import altair as alt

from scripts.charts import theme
from transformer.decoding.beam_tree import DROPPED, ENDED, KEPT, BeamTree

STEP = 88  # width of a step, in points
ROW = 20  # height of a hypothesis
HALF_TOKEN = 0.36  # of the width of a step, where lines end and longer tokens are cut
COLORS = {KEPT: "#1f86d1", ENDED: "#0f9d76", DROPPED: "#858585"}  # on white and on black paper


def tree(beam_tree: BeamTree) -> alt.LayerChart:
    """Returns the hypotheses of a search, with lines from each to those that extend it, without a
    theme.

    The fields are `step`, `rank`, `token`, `hypothesis`, `log-probability`, `score` and `outcome`.
    """
    records = _records(beam_tree)
    steps = max(record["step"] for record in records)
    ranks = max(record["rank"] for record in records)
    data = alt.Chart(alt.InlineData(values=records))
    axis = alt.Axis(grid=False, values=list(range(1, steps + 1)), format="d")
    across = {
        "title": "step",
        "axis": axis,
        "scale": alt.Scale(domain=[-0.4, steps + 0.5], nice=False),
    }
    down = {"title": None, "axis": None, "scale": alt.Scale(domain=[ranks + 0.7, 0.3], nice=False)}
    legend = alt.Legend(title=None, orient="top", symbolOpacity=1)
    color = theme.categories(alt.Color, "outcome", COLORS, COLORS.values(), legend=legend)
    links = data.transform_filter("isValid(datum.from_x)").mark_rule(opacity=0.5)
    links = links.encode(
        x=alt.X("from_x:Q", **across),
        y=alt.Y("from_rank:Q", **down),
        x2="to_x:Q",
        y2="rank:Q",
        color=color,
    )
    links = links.encode(strokeWidth=alt.condition("datum.is_best", alt.value(2.5), alt.value(0.7)))
    weight = alt.expr("datum.is_best ? 'bold' : 'normal'")
    tokens = data.mark_text(
        fontSize=11, baseline="middle", fontWeight=weight, limit=2 * HALF_TOKEN * STEP
    ).encode(x=alt.X("step:Q", **across), y=alt.Y("rank:Q", **down), text="token:N", color=color)
    tokens = tokens.encode(tooltip=["hypothesis:N", "score:Q", "log-probability:Q", "outcome:N"])
    return alt.layer(links, tokens).properties(width=STEP * (steps + 1), height=ROW * ranks)


def _records(beam_tree: BeamTree) -> list[dict[str, Any]]:
    """Returns a record for each node. Ranks are by log-probability among the nodes of a step."""
    nodes = beam_tree.nodes
    steps = []
    texts = []
    for node in nodes:
        steps.append(0 if node.parent is None else steps[node.parent] + 1)
        texts.append(
            theme.visible(
                node.piece if node.parent is None else f"{texts[node.parent]} {node.piece}"
            )
        )
    order = sorted(range(len(nodes)), key=lambda i: (steps[i], -nodes[i].log_probability))
    ranks = {
        i: rank
        for _, step in itertools.groupby(order, steps.__getitem__)
        for rank, i in enumerate(step, start=1)
    }
    best = set(beam_tree.best)
    return [
        {
            "step": steps[i],
            "rank": ranks[i],
            "from_x": None if node.parent is None else steps[node.parent] + HALF_TOKEN,
            "to_x": steps[i] - HALF_TOKEN,
            "from_rank": None if node.parent is None else ranks[node.parent],
            "token": theme.visible(node.piece),
            "hypothesis": texts[i],
            "log-probability": round(node.log_probability, 3),
            "score": round(node.score, 3),
            "outcome": node.outcome,
            "is_best": i in best,
        }
        for i, node in enumerate(nodes)
    ]
