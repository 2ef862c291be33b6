"""Learning-rate curves: the numbers of equation 3, and of the schedules of runs."""

import pytest

from scripts.charts import schedule
from tests.checkpoints.workdirs import make_workdir
from tests.scripts.charts.drawn import data
from transformer.errors import UserError


def test_the_curves_are_equation_3():
    points = {(record["name"], record["x"]): record["y"] for record in data(schedule.draw())}
    sizes = {f"d_model {d}, warm-up {w:,}": (d, w) for d, w in ((512, 4000), (512, 8000), (256, 4000))}
    assert {name for name, _ in points} == set(sizes)
    for (name, step), rate in points.items():
        d_model, warmup = sizes[name]
        assert rate == pytest.approx(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5), rel=1e-5)
    for name, (_, warmup) in sizes.items():  # from the first update to the last, and exactly at the peak
        assert {1.0, float(warmup), 20_000.0} <= {step for of_name, step in points if of_name == name}


def test_a_run_has_its_own_schedule(tmp_path):
    changes = {"optimizer.schedule": "linear", "optimizer.learning_rate": "0.5", "optimizer.warmup_steps": "10"}
    run = make_workdir(tmp_path / "run", steps=(), **changes | {"training.steps": "30", "training.eval_every": "30"})
    points = {record["x"]: record["y"] for record in data(schedule.draw_runs([run]))}
    assert len(points) == 30
    # Up by 0.05 an update, then down to 0 over the 20 that are left.
    assert [points[step] for step in (1, 10, 11, 21)] == pytest.approx([0.05, 0.5, 0.5, 0.25])


def test_numbers_that_are_not_positive_are_refused():
    with pytest.raises(UserError, match="curves=512:0: d_model and warm-up must be at least 1"):
        schedule.draw([(512, 0)])
    with pytest.raises(UserError, match="steps=1: must be in 2"):
        schedule.draw(steps=1)
