"""The masks in figures, written out by hand."""

import numpy as np
import pytest

from scripts.charts import masks
from tests.scripts.charts.drawn import data, matrices
from transformer.errors import UserError

EXPECTED = {
    "padding": ["1110", "1110", "1110", "0000"],
    "causal": ["1000", "1100", "1110", "1111"],
    "packed": ["1100", "1100", "0010", "0000"],
    "packed_causal": ["1000", "1100", "0010", "0000"],
}


def test_the_panels_show_who_may_attend_to_whom():
    drawn = matrices(masks.draw(sentences=(2, 1), length=4), (4, 4), "mask")
    assert list(drawn) == list(EXPECTED)
    for name, rows in EXPECTED.items():
        np.testing.assert_array_equal(drawn[name], [[int(cell) for cell in row] for row in rows], err_msg=name)


def test_a_panel_that_is_named_twice_is_drawn_once():
    assert len(data(masks.draw(panels=("causal", "causal")))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"panels": ("full",)}, "panels=full: must be of padding, causal, packed, packed_causal"),
        ({"sentences": (3, 0)}, "sentences=3,0: must have 1 token or more each"),
        ({"sentences": (6, 4)}, "sentences=6,4: .* at most length=9 together"),
        ({"length": 65}, "length=65: must be in 1 ... 64"),
    ],
)
def test_impossible_arguments_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        masks.draw(**options)
