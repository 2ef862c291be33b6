"""Heat maps: the colour of each cell is where its row and column are."""

import altair as alt
import numpy as np
import pytest
import vl_convert

from scripts.charts import theme
from scripts.charts.heat_map import Axis, heat_map
from transformer.support.errors import UserError

MATRIX = np.array([[0.0, 0.125, 0.25], [0.5, 0.75, 1.0]])


def rectangles(node: dict) -> list[dict]:
    """Returns the items of all marks that are rectangles of a scene graph."""
    items = node["items"] if node.get("marktype") == "rect" else []
    return items + [item for child in node.get("items", []) for item in rectangles(child)]


def draw(matrix: np.ndarray, **options) -> alt.LayerChart:
    settings = {"cell": (10, 20), "value": "weight", "domain": (0, 1), "legend": None} | options
    return heat_map([({"panel": 1}, matrix)], Axis("row"), Axis("column"), **settings)


def test_each_cell_has_the_colour_of_its_value_at_its_row_and_column():
    scene = vl_convert.vegalite_to_scenegraph(draw(MATRIX, has_grid=True).to_dict())
    drawn = {
        (round(item["x"] / 10), round(item["y"] / 20)): item["fill"]
        for item in rectangles(scene["scenegraph"])
    }
    expected = {
        (column, row): theme.SEQUENTIAL[int(8 * MATRIX[row, column])]
        for row in range(2)
        for column in range(3)
    }
    rgb = {
        place: f"rgb({', '.join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5))})"
        for place, c in expected.items()
    }
    assert drawn == rgb


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="weight: has numbers that are not finite"):
        draw(np.array([[0.5, np.nan]]))


def test_axes_have_round_numbers_or_every_label():
    assert [Axis("x").make(count, 5).to_dict()["values"] for count in (3, 20)] == [
        [0, 1, 2],
        [0, 5, 10, 15],
    ]
    named = Axis("x", ["a", "b"]).make(2, 3).to_dict()
    assert "values" not in named and not named["labelOverlap"]
    assert (
        named["labelFontSize"] == 5.5
        and Axis("x", ["a"]).make(1, 30).to_dict()["labelFontSize"] == theme.SMALL
    )
