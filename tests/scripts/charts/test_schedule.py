"""Learning-rate curves: the numbers of equation 3."""

import pytest

from scripts.charts import schedule
from tests.scripts.charts.drawn import data
from transformer.support.errors import UserError


def test_the_curves_are_equation_3():
    points = {(record["name"], record["x"]): record["y"] for record in data(schedule.draw())}
    sizes = {
        f"d_model {d}, warm-up {w:,}": (d, w) for d, w in ((512, 4000), (512, 8000), (256, 4000))
    }
    assert {name for name, _ in points} == set(sizes)
    for (name, step), rate in points.items():
        d_model, warmup = sizes[name]
        assert rate == pytest.approx(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5), rel=1e-5)
    # from the first update to the last, and exactly at the peak
    for name, (_, warmup) in sizes.items():
        assert {1.0, float(warmup), 20_000.0} <= {
            step for of_name, step in points if of_name == name
        }


def test_numbers_that_are_not_positive_and_a_single_step_are_refused():
    for curve in ((512, 0), (0, 4000)):
        with pytest.raises(
            UserError, match=f"curves={curve[0]}:{curve[1]}: d_model and warm-up must be at least 1"
        ):
            schedule.draw([curve])
    with pytest.raises(UserError, match="steps=1: must be at least 2"):
        schedule.draw(steps=1)
