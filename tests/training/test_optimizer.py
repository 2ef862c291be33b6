"""Schedules and the updates of every optimizer, compared with their formulas in NumPy."""

import functools

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from configs import base
from tests.training.tiny import VOCAB_SIZE, tiny_config
from transformer.support.errors import UserError
from transformer.training.optimizer import (
    OPTIMIZERS,
    SCHEDULES,
    count_updates,
    make_optimizer,
    make_schedule,
    restart_schedule,
)
from transformer.training.state import init_model


def optimizer_config(**changes) -> ml_collections.ConfigDict:
    config = base.get_config().optimizer
    config.update(changes)
    return config


def rate(schedule: optax.Schedule, step: int) -> float:
    """Returns the rate of the step-th update, counted from 1."""
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
    ("name", "middle", "last"),
    [("constant", 3e-4, 3e-4), ("linear", 1.5e-4, 0.0), ("cosine", 1.5e-4, 0.0)],
)
def test_other_schedules_warm_up_to_the_peak_and_reach_their_end(name, middle, last):
    config = optimizer_config(schedule=name, learning_rate=3e-4, warmup_steps=10)
    schedule = make_schedule(config, d_model=512, steps=110)
    values = [rate(schedule, step) for step in (1, 5, 10, 11, 61, 111)]
    assert values == pytest.approx([3e-5, 1.5e-4, 3e-4, 3e-4, middle, last], abs=1e-9)

    without = make_schedule(
        optimizer_config(schedule=name, learning_rate=3e-4, warmup_steps=0), 512, steps=100
    )
    assert [rate(without, step) for step in (1, 51, 101)] == pytest.approx(
        [3e-4, middle, last], abs=1e-9
    )


PARAMETERS = {
    "inner": {
        "kernel": jnp.asarray([[1.0, -2.0, 0.5], [0.5, 4.0, -1.0]]),
        "bias": jnp.asarray([1.0, -1.0, 2.0]),
    },
    "embedding": {"table": jnp.asarray([[0.5, -1.0], [2.0, 0.25]])},
}
GRADIENTS = {
    "inner": {
        "kernel": jnp.asarray([[3.0, -1.0, 0.2], [2.0, 0.5, -0.4]]),
        "bias": jnp.asarray([-4.0, 0.25, 1.0]),
    },
    "embedding": {"table": jnp.asarray([[0.3, -2.0], [1.0, 0.5]])},
}
AGAIN = jax.tree.map(lambda array: array[..., ::-1] * jnp.asarray(-0.3), GRADIENTS)
RATES = jnp.asarray([0.1, 0.05])


def updates(gradients: list[dict], **changes) -> dict[str, dict[str, np.ndarray]]:
    """Returns the last of one or two updates by these gradients, at rates 0.1 and 0.05."""
    optimizer = make_optimizer(optimizer_config(**changes), lambda count: RATES[count])
    state = optimizer.init(PARAMETERS)
    for gradient in gradients:
        update, state = optimizer.update(gradient, state, PARAMETERS)
    return jax.device_get(update)


def assert_trees_close(actual: dict, expected: dict, rtol: float) -> None:
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=rtol), actual, expected)


def adam(first_gradient: np.ndarray, second_gradient: np.ndarray) -> np.ndarray:
    """Returns the second update by the formula of Kingma and Ba, with the paper's constants."""
    first = second = 0.0
    for gradient in (
        np.asarray(first_gradient, np.float64),
        np.asarray(second_gradient, np.float64),
    ):
        first, second = 0.9 * first + 0.1 * gradient, 0.98 * second + 0.02 * gradient**2
    return -0.05 * (first / (1 - 0.9**2)) / (np.sqrt(second / (1 - 0.98**2)) + 1e-9)


def test_adam_follows_its_formula():
    update = updates([GRADIENTS, AGAIN], name="adam")
    assert_trees_close(update, jax.tree.map(adam, GRADIENTS, AGAIN), rtol=1e-5)


def nadam(first_gradient: np.ndarray, second_gradient: np.ndarray) -> np.ndarray:
    """Returns the second update by Algorithm 2 of Dozat 2016, with a constant decay of momentum."""
    first, second = (
        np.asarray(gradient, np.float64) for gradient in (first_gradient, second_gradient)
    )
    momentum = 0.9 * 0.1 * first + 0.1 * second
    variance = 0.98 * 0.02 * first**2 + 0.02 * second**2
    ahead = 0.9 * momentum / (1 - 0.9**3) + 0.1 * second / (1 - 0.9**2)
    return -0.05 * ahead / (np.sqrt(variance / (1 - 0.98**2)) + 1e-9)


def test_nadamw_follows_its_formula():
    by_hand = jax.tree.map(nadam, GRADIENTS, AGAIN)
    assert_trees_close(updates([GRADIENTS, AGAIN], name="nadamw"), by_hand, rtol=1e-5)


HALF_LIVES = np.log(0.5) / np.log([0.9, 0.999])  # of averages with these decays, in updates


@pytest.mark.parametrize(
    ("warmup_steps", "alpha", "half_lives"),
    [(0, 6.0, HALF_LIVES[[1, 1]]), (4, 3.0, HALF_LIVES @ [[0.75, 0.5], [0.25, 0.5]])],
)
def test_ademamix_follows_its_formula(warmup_steps, alpha, half_lives):
    """The slow average is not corrected for its bias (Pagliardini et al. 2024, Algorithm 1).

    In a warm-up of four updates its half-life grows linearly, from that of the fast average on.
    """
    decays = 0.5 ** (1 / half_lives)

    def by_hand(first_gradient, second_gradient):
        fast = slow = variance = 0.0
        for gradient, decay in zip((first_gradient, second_gradient), decays, strict=True):
            gradient = np.asarray(gradient, np.float64)
            fast = 0.9 * fast + 0.1 * gradient
            slow = decay * slow + (1 - decay) * gradient
            variance = 0.98 * variance + 0.02 * gradient**2
        direction = fast / (1 - 0.9**2) + alpha * slow
        return -0.05 * direction / (np.sqrt(variance / (1 - 0.98**2)) + 1e-9)

    update = updates(
        [GRADIENTS, AGAIN],
        name="ademamix",
        beta3=0.999,
        alpha=6.0,
        alpha_warmup_steps=warmup_steps,
    )
    assert_trees_close(update, jax.tree.map(by_hand, GRADIENTS, AGAIN), rtol=1e-3)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon", "nadamw", "ademamix"])
def test_only_matrices_decay_at_the_schedules_rate(name):
    plain = updates([GRADIENTS, AGAIN], name="adam" if name == "adamw" else name)
    decayed = updates([GRADIENTS, AGAIN], name=name, weight_decay=0.5)
    by_hand = jax.tree.map(
        lambda update, x: update - 0.05 * 0.5 * x if x.ndim > 1 else update, plain, PARAMETERS
    )
    assert_trees_close(decayed, by_hand, rtol=1e-5)


def adafactor(
    first_gradient: np.ndarray, second_gradient: np.ndarray, parameter: np.ndarray
) -> np.ndarray:
    """Returns the second update by Algorithm 4 of Shazeer and Stern 2018, for matrices too small to
    be factored.
    """
    first, second = (
        np.square(np.asarray(gradient, np.float64))
        for gradient in (first_gradient, second_gradient)
    )
    decay = 1 - 2**-0.8
    direction = np.asarray(second_gradient) / np.sqrt(decay * first + (1 - decay) * second)
    direction /= max(1.0, np.sqrt(np.mean(np.square(direction))))
    return -0.05 * np.sqrt(np.mean(np.square(parameter))) * direction


def test_adafactor_follows_its_formula():
    by_hand = jax.tree.map(adafactor, GRADIENTS, AGAIN, PARAMETERS)
    assert_trees_close(updates([GRADIENTS, AGAIN], name="adafactor"), by_hand, rtol=1e-5)


def test_muon_equalizes_singular_values_and_matches_the_size_of_adams_updates():
    """The update keeps the singular vectors of Nesterov's momentum and maps the values through the
    quintic.
    """
    first, second = (
        np.asarray(gradients["inner"]["kernel"], np.float64) for gradients in (GRADIENTS, AGAIN)
    )
    momentum = 0.95 * 0.05 * first + 0.05 * second
    ahead = 0.95 * momentum / (1 - 0.95**3) + 0.05 * second / (1 - 0.95**2)
    left, values, right = np.linalg.svd(ahead, full_matrices=False)
    values /= np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    assert ((values > 0.6) & (values < 1.3)).all()
    by_hand = -0.05 * 0.2 * np.sqrt(3) * (left * values) @ right
    update = updates([GRADIENTS, AGAIN], name="muon")["inner"]["kernel"]
    is_exact = jax.default_backend() == "cpu"  # elsewhere Muon iterates in bfloat16
    np.testing.assert_allclose(
        update, by_hand, rtol=1e-4, atol=0 if is_exact else 0.1 * np.abs(by_hand).max()
    )


def test_muons_epsilon_is_the_configured_one():
    """An epsilon much larger than the gradient makes Adam's part of the update small."""
    update = updates([GRADIENTS], name="muon", epsilon=1e6)
    assert np.abs(update["embedding"]["table"]).max() < 1e-5
    assert np.abs(updates([GRADIENTS], name="muon")["embedding"]["table"]).max() > 1e-2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_counts_its_updates(name):
    optimizer = make_optimizer(
        optimizer_config(name=name, weight_decay=0.1, clip_norm=1.0), lambda count: RATES[count]
    )
    state = optimizer.init(PARAMETERS)
    for number in range(3):
        assert count_updates(state) == number
        _, state = optimizer.update(GRADIENTS, state, PARAMETERS)


def test_an_optimizer_or_schedule_is_used_once_it_is_in_its_table(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "sgd", lambda config, schedule: optax.sgd(schedule))
    monkeypatch.setitem(
        SCHEDULES, "halving", lambda config, d_model, steps: lambda count: 0.5**count
    )
    config = optimizer_config(name="sgd", schedule="halving")
    optimizer = make_optimizer(config, make_schedule(config, d_model=8, steps=10))
    state = optimizer.init(PARAMETERS)
    for rate in (1.0, 0.5):
        update, state = optimizer.update(GRADIENTS, state, PARAMETERS)
        assert_trees_close(
            update, jax.tree.map(lambda gradient, rate=rate: -rate * gradient, GRADIENTS), rtol=1e-6
        )


def test_an_unknown_name_is_an_error_and_not_another_optimizer_or_schedule():
    with pytest.raises(KeyError, match="lion"):
        make_optimizer(optimizer_config(name="lion"), optax.constant_schedule(1.0))
    with pytest.raises(KeyError, match="exponential"):
        make_schedule(optimizer_config(schedule="exponential"), d_model=8, steps=10)


@pytest.mark.parametrize("share", ["all", "none"])
def test_muon_updates_the_matrices_between_activations_and_adam_all_others(share):
    changes = {
        "model__share_embeddings": share,
        "model__positions": "learned",
        "model__attention": "additive",
    }
    parameters = jax.eval_shape(
        lambda: init_model(tiny_config(model__activation="glu", **changes), VOCAB_SIZE, VOCAB_SIZE)[
            1
        ]
    )
    state = jax.eval_shape(
        make_optimizer(optimizer_config(name="muon"), lambda _: 0.1).init, parameters
    )
    taken = jax.tree_util.tree_leaves_with_path(state.inner_states["muon"].inner_state[0].mu)
    names = {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in taken}
    attention = ("query", "key", "value", "output")
    modules = [f"encoder/layers/0/self_attention/{name}" for name in attention]
    modules += [
        f"decoder/layers/0/{kind}_attention/{name}"
        for kind in ("self", "cross")
        for name in attention
    ]
    modules += [
        f"{s}/layers/0/feed_forward/{name}"
        for s in ("encoder", "decoder")
        for name in ("inner", "outer", "gate")
    ]
    assert names == {f"{module}/kernel" for module in modules}


def test_gradients_above_the_clipping_norm_are_scaled_down():
    """With a huge epsilon, Adam's update is proportional to the gradient and shows the clipping."""
    norm = float(optax.tree.norm(GRADIENTS))
    changes = {"name": "adam", "epsilon": 1e6}
    free, above = (
        updates([GRADIENTS], **changes),
        updates([GRADIENTS], clip_norm=2 * norm, **changes),
    )
    assert_trees_close(above, free, rtol=1e-6)
    clipped = updates([GRADIENTS], clip_norm=norm / 4, **changes)
    assert_trees_close(clipped, jax.tree.map(lambda x: x / 4, free), rtol=1e-4)


@pytest.mark.parametrize("name", ["adam", "adamw", "adafactor", "muon", "nadamw", "ademamix"])
def test_rate_factors_multiply_updates_and_frozen_parameters_have_none(name):
    plain = updates([GRADIENTS, AGAIN], name=name)
    scaled = updates([GRADIENTS, AGAIN], name=name, rate_factors="inner:0.5, inner.bias:3")
    assert_trees_close(scaled["embedding"], plain["embedding"], rtol=1e-6)
    inner = {"kernel": 0.5 * plain["inner"]["kernel"], "bias": 3 * plain["inner"]["bias"]}
    assert_trees_close(scaled["inner"], inner, rtol=1e-6)
    config = optimizer_config(name=name, rate_factors="inner:0.5", clip_norm=1.0)
    optimizer = make_optimizer(config, lambda count: RATES[count], "inner, embedding.tab")
    update, _ = optimizer.update(GRADIENTS, optimizer.init(PARAMETERS), PARAMETERS)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(update["inner"]))
    assert (update["embedding"]["table"] != 0).all()  # a name is whole up to a dot


def test_frozen_parameters_do_not_count_in_the_norm_that_is_clipped():
    """Adafactor's update does not depend on the size of gradients; that of plain descent does."""
    small = {
        "inner": jax.tree.map(lambda x: 1e3 * x, GRADIENTS["inner"]),
        "embedding": GRADIENTS["embedding"],
    }
    config = optimizer_config(name="adam", clip_norm=1.0, epsilon=1.0)

    def update_of(gradients):
        optimizer = make_optimizer(config, lambda count: RATES[count], "inner")
        return optimizer.update(gradients, optimizer.init(PARAMETERS), PARAMETERS)[0]["embedding"][
            "table"
        ]

    np.testing.assert_array_equal(update_of(small), update_of(GRADIENTS))


@pytest.mark.parametrize(
    "text", ["encoder", "encoder:", ":2", "encoder:-1", "encoder:inf", "a:1,b:x"]
)
def test_a_wrong_factor_is_refused(text):
    with pytest.raises(UserError, match=r"rate_factors: .* must be NAME:FACTOR"):
        make_optimizer(optimizer_config(rate_factors=text), optax.constant_schedule(1.0))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_that_restarts_keeps_the_moments_and_their_counts(name):
    parameters = {"encoder": {"kernel": jnp.ones((8, 8)), "bias": jnp.ones(8)}}
    config = optimizer_config(
        name=name, weight_decay=0.0 if name == "adam" else 0.1, warmup_steps=0
    )
    optimizer = make_optimizer(config, optax.constant_schedule(0.1))
    _, state = optimizer.update(parameters, optimizer.init(parameters), parameters)
    restarted = jax.device_put(restart_schedule(state))
    assert count_updates(state) == 1 and count_updates(restarted) == 0
    counts = optax.tree.get_all_with_path(restarted, "count")
    kept = {path[-1].tuple_name for path, count in counts if count == 1}
    assert not kept & {"ScaleByScheduleState", "WeightDecaySchedule"} and kept
    is_schedule = [path[-1].tuple_name not in kept for path, _ in counts]
    changed = sum(
        not np.array_equal(*leaves)
        for leaves in zip(*map(jax.tree.leaves, (state, restarted)), strict=True)
    )
    assert changed == sum(is_schedule)
