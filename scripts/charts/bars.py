"""Bars of several systems side by side: scores of sentences by their length, and of words by their frequency."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from scripts.charts import theme


def by_length(result: Mapping[str, Any], names: Mapping[str, str]) -> alt.Chart:
    """Returns BLEU by the length of the reference, for a result of `make_result` and the systems' names by label."""
    rows = [
        {"group": span(group["shortest"], group["longest"]), "count": group["sentences"]}
        | {"system": names[label], "score": score}
        for group in result["bleu_by_length"]
        for label, score in group["bleu"].items()
    ]
    return grouped_bars(rows, "tokens of the reference", "BLEU", "sentences")


def by_frequency(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """Returns the F1 score of words by their frequency. `rows` are records for `grouped_bars`."""
    return grouped_bars(rows, "occurrences of the word in the references", "F1 (%)", "words")


def grouped_bars(rows: Sequence[Mapping[str, Any]], x: str, y: str, count: str) -> alt.Chart:
    """Returns a bar for each system in each group, the mean over its rows.

    Args:
      rows: records with the fields `group`, `system`, `score` and `count`.
      x, y, count: the titles of groups, scores and counts.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    legend = alt.Legend(title=None, orient="top") if len(systems) > 1 else None
    tips = ["system:N", alt.Tooltip("group:N", title=x), alt.Tooltip("mean(score):Q", title=y, format=".2f")]
    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_bar()
        .encode(
            x=alt.X("group:N", sort=groups, title=x, axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("system:N", sort=systems),
            y=alt.Y("mean(score):Q", title=y),
            color=theme.color("system", systems, legend),
            tooltip=[*tips, alt.Tooltip("count:Q", title=count)],
        )
    )


def span(least: int, most: int | None) -> str:
    """Returns the name of a group; `most` of None has no limit."""
    if most is None:
        return f"{least}+"
    return str(least) if least == most else f"{least}\N{EN DASH}{most}"
