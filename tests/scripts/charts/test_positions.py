"""Positional encodings in figures: the formula of section 3.5, and dot products."""

import numpy as np
import pytest

from scripts.charts import positions
from scripts.charts.positions import draw, encodings
from tests.scripts.charts.drawn import data
from transformer.support.errors import UserError


def formula(length: int, width: int) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i / width)), PE(pos, 2i + 1) = cos of the same, element by
    element.
    """
    angle = lambda pos, i: pos / 10_000 ** (2 * (i // 2) / width)  # noqa: E731
    return np.array(
        [[(np.cos if i % 2 else np.sin)(angle(p, i)) for i in range(width)] for p in range(length)]
    )


def test_the_heat_map_has_the_paper_s_formula_and_the_curves_its_dot_products():
    records = data(draw(length=20, d_model=8))
    cells = [record["value"] for record in records if "row" in record]
    expected = formula(20, 8)
    np.testing.assert_allclose(np.reshape(cells, (20, 8)), expected, atol=1e-6)
    curves = {(record["name"], record["x"]): record["y"] for record in records if "y" in record}
    assert {name for name, _ in curves} == {"0", "5", "10", "15"}
    for (name, x), y in curves.items():
        assert y == pytest.approx(float(expected[int(name)] @ expected[int(x)]), abs=1e-5)


def test_other_kinds_have_the_same_planes():
    first, second = np.split(encodings(7, 8, "sinusoidal_concatenated"), 2, axis=1)
    expected = formula(7, 8)
    np.testing.assert_allclose(np.stack([first, second], axis=2).reshape(7, 8), expected, atol=1e-6)
    # A rotated (1, 0) is (cos, sin), so rotations have the dot products of sinusoids.
    rotated = encodings(7, 8, "rotary")
    np.testing.assert_allclose(rotated @ rotated.T, expected @ expected.T, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"panels": ("heat",)}, "panels=heat: must be of heat_map, products"),
        ({"length": 1}, "length=1: must be at least 2"),
        ({"d_model": 7}, "d_model=7: must be even"),
        ({"d_model": 0}, "d_model=0: must be even, at least 2"),
        (
            {"kind": "learned"},
            "kind=learned: must be one of sinusoidal, .*, sinusoidal_marian, rotary$",
        ),
    ],
)
def test_impossible_arguments_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        positions.draw(**options)
