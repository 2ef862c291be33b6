"""Schedule-Free AdamW, compared with its three sequences of parameters in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from configs import base
from transformer.training.optimizer import make_optimizer, make_schedule, restart_schedule

STEPS = 50
WARMUP_STEPS = 20
RATE = 0.01
DECAY = 0.5
SHAPES = {"encoder": {"kernel": (4, 3), "bias": (3,)}, "decoder": {"kernel": (3, 2)}}


def draw(seed: int) -> dict:
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: random.normal(size=shape), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
    )


START = draw(0)
NOISE = [draw(1 + step) for step in range(STEPS)]


def gradients(parameters: dict, step: int) -> dict:
    """Returns the gradients of 0.5 |parameters|^2, with noise."""
    return jax.tree.map(lambda y, noise: y + 2 * noise, parameters, NOISE[step])


def by_hand(factors: dict[str, float]) -> tuple[list[dict], list[dict]]:
    """Returns y and x after each update, in float64, by the paper's Algorithm 1.

    `factors` multiply the rates of encoder and decoder. Only matrices decay, at y.
    """
    x = z = START
    variance = jax.tree.map(np.zeros_like, START)
    total = 0.0
    ys = []
    xs = []

    def mix(first, second, weight):
        return jax.tree.map(lambda a, b: (1 - weight) * a + weight * b, first, second)

    for step in range(STEPS):
        y = mix(z, x, 0.9)
        gradient = gradients(y, step)
        variance = jax.tree.map(lambda v, g: 0.98 * v + 0.02 * g**2, variance, gradient)
        rate = RATE * min((step + 1) / WARMUP_STEPS, 1)
        correction = 1 - 0.98 ** (step + 1)
        z = {
            name: jax.tree.map(
                lambda z, g, v, y, rate=rate * factors[name], correction=correction: (
                    z
                    - rate * g / (np.sqrt(v / correction) + 1e-9)
                    - (rate * DECAY * y if y.ndim > 1 else 0)
                ),
                z[name],
                gradient[name],
                variance[name],
                y[name],
            )
            for name in z
        }
        total += rate**2
        x = mix(x, z, rate**2 / total)
        ys.append(mix(z, x, 0.9))
        xs.append(x)
    return ys, xs


def config_of(**changes):
    config = base.get_config().optimizer
    config.update(
        {
            "name": "schedule_free_adamw",
            "schedule": "constant",
            "learning_rate": RATE,
            "warmup_steps": WARMUP_STEPS,
            "weight_decay": DECAY,
        }
        | changes
    )
    return config


def run(optimizer, average, steps=STEPS, **arguments) -> tuple[list[dict], list[dict]]:
    """Returns y, and x by the function `average` of state and y, after each update."""
    y = jax.tree.map(jnp.float32, START)
    state = optimizer.init(y)

    @jax.jit
    def update(state, y, gradient):
        changes, state = optimizer.update(gradient, state, y, **arguments)
        return state, optax.apply_updates(y, changes)

    ys = []
    xs = []
    for step in range(steps):
        state, y = update(state, y, jax.tree.map(jnp.float32, gradients(y, step)))
        ys.append(y)
        xs.append(average(state, y))
    return ys, xs


def run_ours(config, frozen: str = "", **arguments):
    optimizer = make_optimizer(config, make_schedule(config, 8, STEPS), frozen)
    return run(optimizer, lambda state, y: state.averaged_parameters(y), **arguments)


def assert_close(actual, expected, atol: float = 1e-5) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), actual, expected)


@pytest.mark.parametrize("factors", ["", "encoder:0.5"])
def test_fifty_updates_follow_the_papers_sequences(factors):
    """Factors and decay belong to the steps of z, and so to the mean."""
    expected = by_hand({"encoder": 0.5 if factors else 1.0, "decoder": 1.0})
    assert_close(run_ours(config_of(rate_factors=factors)), expected)
    # The sequences differ by much more than rounding.
    y, x = (np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(e[-1])]) for e in expected)
    assert np.abs(y - x).max() > 1e-3


def test_optax_differs_only_in_the_warm_up_of_the_weights_of_the_mean():
    """Optax takes the weight of an update from the rate of the next one.

    With a schedule for the weights that is one update late, it follows the same sequences.
    """
    config = config_of()
    schedule = make_schedule(config, 8, STEPS)
    inner = optax.chain(
        optax.scale_by_rms(0.98, 1e-9, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(DECAY, lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)),
        optax.scale_by_learning_rate(schedule),
    )

    def run_optax(weights):
        optimizer = optax.contrib.schedule_free(inner, weights, b1=0.9)
        return run(optimizer, optax.contrib.schedule_free_eval_params)

    ours = run_ours(config)
    assert_close(run_optax(lambda count: schedule(count - 1)), ours)
    x, expected = (jax.tree.leaves(sequence[-1]) for sequence in (run_optax(schedule)[1], ours[1]))
    moved = max(np.abs(x - y).max() for x, y in zip(expected, jax.tree.leaves(START), strict=True))
    difference = max(np.abs(x - y).max() for x, y in zip(x, expected, strict=True)) / moved
    assert 0.001 < difference < 0.05


def test_a_rate_from_outside_reaches_the_steps_and_the_weights():
    config = config_of(warmup_steps=0)
    other = config_of(warmup_steps=0, learning_rate=7.0)
    assert_close(run_ours(other, learning_rate=jnp.float32(RATE)), run_ours(config), atol=0)
    assert_close(
        run_ours(config_of(warmup_steps=0, weight_decay=1.0), weight_decay=jnp.float32(DECAY)),
        run_ours(config),
        atol=1e-6,
    )


def test_frozen_parameters_keep_their_values_exactly_in_both_sequences():
    for sequence in run_ours(config_of(), "encoder"):
        assert_close(sequence[-1]["encoder"], jax.tree.map(jnp.float32, START["encoder"]), atol=0)
        assert np.abs(sequence[-1]["decoder"]["kernel"] - START["decoder"]["kernel"]).max() > 0.01


def test_gradients_are_clipped_before_the_second_moment():
    """With a huge epsilon, steps are proportional to gradients."""
    changes = {"epsilon": 1e6, "warmup_steps": 0, "weight_decay": 0.0, "learning_rate": 1e5}
    norm = float(optax.tree.norm(gradients(START, 0)))
    free = run_ours(config_of(**changes), steps=1)[1][0]
    clipped = run_ours(config_of(**changes, clip_norm=norm / 4), steps=1)[1][0]
    assert_close(
        jax.tree.map(lambda x, start: 4 * (x - start), clipped, START),
        jax.tree.map(lambda x, start: x - start, free, START),
        atol=1e-3,
    )


def test_a_schedule_that_restarts_keeps_the_mean_and_its_weights():
    config = config_of()
    optimizer = make_optimizer(config, make_schedule(config, 8, STEPS))
    y = jax.tree.map(jnp.float32, START)
    _, state = optimizer.update(gradients(y, 0), optimizer.init(y), y)
    restarted = restart_schedule(state)
    assert restarted.weight_sum == state.weight_sum > 0 and restarted.max_rate == state.max_rate
    assert_close(restarted.z, state.z, atol=0)


def test_the_state_is_float32_and_has_two_arrays_for_each_parameter():
    config = config_of()
    state = make_optimizer(config, lambda _: 0.1).init(jax.tree.map(jnp.float32, START))
    leaves = jax.tree.leaves(state)
    arrays = [leaf for leaf in leaves if leaf.ndim]
    assert {leaf.dtype for leaf in arrays} == {jnp.dtype("float32")}
    size = sum(leaf.size for leaf in jax.tree.leaves(START))
    assert sum(leaf.size for leaf in arrays) == 2 * size
