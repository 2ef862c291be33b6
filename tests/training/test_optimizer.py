"""Schedules against the formula by hand, and the updates of every optimizer that has a name."""

import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from configs import base
from transformer.training.optimizer import make_optimizer, make_schedule


def optimizer_config(**changes) -> ml_collections.ConfigDict:
    config = base.get_config().optimizer
    config.update(changes)
    return config


def rate(schedule: optax.Schedule, step: int) -> float:
    """Of the step-th update, counted from 1."""
    return float(schedule(jnp.asarray(step - 1)))


@pytest.mark.parametrize("step", [1, 100, 3999, 4000, 4001, 100_000])
def test_the_papers_schedule_equals_its_formula(step):
    schedule = make_schedule(optimizer_config(learning_rate=2.0), d_model=512, steps=100_000)
    by_hand = 2.0 * 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert rate(schedule, step) == pytest.approx(by_hand, rel=1e-6)


def test_the_papers_rate_peaks_at_7e_4():
    schedule = make_schedule(optimizer_config(), d_model=512, steps=100_000)
    assert rate(schedule, 4000) == pytest.approx(6.98771e-4, rel=1e-5)
    assert rate(schedule, 1) == pytest.approx(1.74693e-7, rel=1e-5)


def test_the_papers_schedule_without_warmup_falls_from_the_first_step():
    schedule = make_schedule(optimizer_config(warmup_steps=0), d_model=16, steps=100)
    assert [rate(schedule, step) for step in (1, 4, 100)] == pytest.approx([0.25, 0.125, 0.025])


@pytest.mark.parametrize(
    ("name", "middle", "last"), [("constant", 3e-4, 3e-4), ("linear", 1.5e-4, 0.0), ("cosine", 1.5e-4, 0.0)]
)
def test_other_schedules_warm_up_to_the_peak_and_reach_their_end(name, middle, last):
    config = optimizer_config(schedule=name, learning_rate=3e-4, warmup_steps=10)
    schedule = make_schedule(config, d_model=512, steps=110)
    values = [rate(schedule, step) for step in (1, 5, 10, 11, 61, 111)]
    assert values == pytest.approx([3e-5, 1.5e-4, 3e-4, 3e-4, middle, last], abs=1e-9)

    without = make_schedule(optimizer_config(schedule=name, learning_rate=3e-4, warmup_steps=0), 512, steps=100)
    assert [rate(without, step) for step in (1, 51, 101)] == pytest.approx([3e-4, middle, last], abs=1e-9)


PARAMETERS = {"kernel": jnp.asarray([[1.0, -2.0], [0.5, 4.0]]), "bias": jnp.asarray([1.0, -1.0])}
GRADIENTS = {"kernel": jnp.asarray([[3.0, -1.0], [2.0, 0.5]]), "bias": jnp.asarray([-4.0, 0.25])}


def updates(gradients: list[dict], **changes) -> dict[str, np.ndarray]:
    """The last of the updates that these gradients make, at a rate of 0.1."""
    optimizer = make_optimizer(optimizer_config(**changes), optax.constant_schedule(0.1))
    state = optimizer.init(PARAMETERS)
    for gradient in gradients:
        update, state = optimizer.update(gradient, state, PARAMETERS)
    return {name: np.asarray(array) for name, array in update.items()}


def adam(gradients: list[np.ndarray]) -> np.ndarray:
    """The last update, by the formula of Kingma and Ba with the paper's constants."""
    first = second = 0.0
    for gradient in gradients:
        first, second = 0.9 * first + 0.1 * gradient, 0.98 * second + 0.02 * gradient**2
    count = len(gradients)
    return -0.1 * (first / (1 - 0.9**count)) / (np.sqrt(second / (1 - 0.98**count)) + 1e-9)


def test_adam_follows_its_formula():
    second = {name: array * jnp.asarray(-0.3) for name, array in GRADIENTS.items()}
    update = updates([GRADIENTS, second], name="adam")
    for name in PARAMETERS:
        by_hand = adam([np.asarray(GRADIENTS[name], np.float64), np.asarray(second[name], np.float64)])
        np.testing.assert_allclose(update[name], by_hand, rtol=1e-5)


def test_adamw_decays_matrices_and_nothing_else():
    plain, decayed = updates([GRADIENTS], name="adam"), updates([GRADIENTS], name="adamw", weight_decay=0.01)
    np.testing.assert_allclose(decayed["kernel"], plain["kernel"] - 0.1 * 0.01 * PARAMETERS["kernel"], rtol=1e-5)
    np.testing.assert_allclose(decayed["bias"], plain["bias"], rtol=1e-6)


def test_adafactor_moves_against_the_gradient_and_decays_matrices_alone():
    plain, decayed = updates([GRADIENTS], name="adafactor"), updates([GRADIENTS], name="adafactor", weight_decay=0.01)
    for name in PARAMETERS:
        assert (np.sign(plain[name]) == -np.sign(GRADIENTS[name])).all()
    assert not np.allclose(decayed["kernel"], plain["kernel"])
    np.testing.assert_array_equal(decayed["bias"], plain["bias"])


def test_gradients_beyond_the_norm_are_scaled_down_together():
    """Seen through Adam's epsilon: with a huge one an update is proportional to the gradient."""
    norm = float(np.sqrt(sum(np.sum(np.square(array)) for array in GRADIENTS.values())))
    changes = {"name": "adam", "epsilon": 1e6}
    free, above = updates([GRADIENTS], **changes), updates([GRADIENTS], clip_norm=2 * norm, **changes)
    clipped = updates([GRADIENTS], clip_norm=norm / 4, **changes)
    for name in PARAMETERS:
        np.testing.assert_allclose(above[name], free[name], rtol=1e-6)
        np.testing.assert_allclose(clipped[name], free[name] / 4, rtol=1e-4)
