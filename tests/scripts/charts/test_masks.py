"""The masks in figures, written out by hand."""

import numpy as np

from scripts.charts import masks
from tests.scripts.charts.drawn import matrices

EXPECTED = {
    "padding": ["1110", "1110", "1110", "0000"],
    "causal": ["1000", "1100", "1110", "1111"],
    "packed": ["1100", "1100", "0010", "0000"],
    "packed, causal": ["1000", "1100", "0010", "0000"],
}


def test_the_panels_show_who_may_attend_to_whom():
    drawn = matrices(masks.draw(sentences=(2, 1), length=4), (4, 4), "panel")
    assert list(drawn) == list(EXPECTED)
    for name, rows in EXPECTED.items():
        np.testing.assert_array_equal(
            drawn[name], [[int(cell) for cell in row] for row in rows], err_msg=name
        )
