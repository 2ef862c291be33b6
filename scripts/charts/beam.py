"""The hypotheses of a beam search: a column for each step, the most probable hypothesis on top."""

from collections import Counter
from typing import Any

import altair as alt

from scripts.charts import theme
from transformer.decoding.beam_tree import DROPPED, ENDED, KEPT, BeamTree

STEP = 88  # width of a step, in points
ROW = 20  # height of a hypothesis, in points
HALF_TOKEN = 0.36  # in steps; lines end at this distance from a token, and longer tokens are cut
COLORS = {KEPT: "#1f86d1", ENDED: "#0f9d76", DROPPED: "#858585"}  # on white and on black paper


def tree(beam_tree: BeamTree) -> alt.LayerChart:
    """Returns the hypotheses of a search, without a theme.

    Lines lead from each hypothesis to its extensions. The fields are `step`, `rank`, `token`,
    `hypothesis`, `log-probability`, `score` and `outcome`.
    """
    records = _records(beam_tree)
    steps = max(record["step"] for record in records)
    ranks = max(record["rank"] for record in records)

    # Columns are steps. Ranks have no axis, and rank 1 is on top.
    x = {
        "title": "step",
        "axis": alt.Axis(grid=False, values=list(range(1, steps + 1)), format="d"),
        "scale": alt.Scale(domain=[-0.4, steps + 0.5], nice=False),
    }
    y = {"title": None, "axis": None, "scale": alt.Scale(domain=[ranks + 0.7, 0.3], nice=False)}
    legend = alt.Legend(title=None, orient="top", symbolOpacity=1)
    color = theme.categories(alt.Color, "outcome", COLORS, COLORS.values(), legend=legend)
    chart = theme.chart_of(records)

    # The root has no parent, and so no line.
    links = chart.transform_filter("isValid(datum.from_x)").mark_rule(opacity=0.5)
    links = links.encode(
        x=alt.X("from_x:Q", **x),
        y=alt.Y("from_rank:Q", **y),
        x2="to_x:Q",
        y2="rank:Q",
        color=color,
        strokeWidth=alt.condition("datum.is_best", alt.value(2.5), alt.value(0.7)),
    )

    # The hypotheses on the way to the translation are bold.
    weight = alt.expr("datum.is_best ? 'bold' : 'normal'")
    width = 2 * HALF_TOKEN * STEP
    tokens = chart.mark_text(fontSize=11, baseline="middle", fontWeight=weight, limit=width)
    tokens = tokens.encode(
        x=alt.X("step:Q", **x),
        y=alt.Y("rank:Q", **y),
        text="token:N",
        color=color,
        tooltip=["hypothesis:N", "score:Q", "log-probability:Q", "outcome:N"],
    )
    return alt.layer(links, tokens).properties(width=STEP * (steps + 1), height=ROW * ranks)


def _records(beam_tree: BeamTree) -> list[dict[str, Any]]:
    """Returns a record for each node. Ranks are by log-probability among the nodes of a step."""
    nodes = beam_tree.nodes
    steps = []
    for node in nodes:
        steps.append(0 if node.parent is None else steps[node.parent] + 1)

    # The most probable node of each step has rank 1.
    ranks = {}
    nodes_of_step = Counter()
    for i in sorted(range(len(nodes)), key=lambda i: -nodes[i].log_probability):
        nodes_of_step[steps[i]] += 1
        ranks[i] = nodes_of_step[steps[i]]

    records = []
    for i, node in enumerate(nodes):
        token = theme.visible(node.piece)
        record = {
            "step": steps[i],
            "rank": ranks[i],
            "from_x": None,
            "to_x": steps[i] - HALF_TOKEN,
            "from_rank": None,
            "token": token,
            "hypothesis": token,
            "log-probability": round(node.log_probability, 3),
            "score": round(node.score, 3),
            "outcome": node.outcome,
            "is_best": i in beam_tree.best,
        }
        if node.parent is not None:
            parent = records[node.parent]
            record["from_x"] = parent["step"] + HALF_TOKEN
            record["from_rank"] = parent["rank"]
            record["hypothesis"] = f"{parent['hypothesis']} {token}"
        records.append(record)
    return records
