"""Parameterizations: factors by hand, updates against the paper's form with multipliers, and the
coordinate check.
"""

import functools

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from scripts.charts import coordinates
from transformer.training.optimizer import make_optimizer
from transformer.training.parameterization import (
    PARAMETERIZATIONS,
    Factors,
    initial_values,
    make_run_optimizer,
    parameter_factors,
)
from transformer.training.state import abstract_init, init_model

BASE, WIDE = coordinates.WIDTHS[0], coordinates.WIDTHS[-1]
M = WIDE / BASE  # heads are wider by the same factor
UNCHANGED = Factors(1.0, 1.0, 1.0)
RATE = optax.constant_schedule(0.1)


def mup_config(width: int = WIDE, optimizer: str = "adam", **model) -> ml_collections.ConfigDict:
    config = coordinates.make_config("mup", width)
    config.model.update(model)
    config.optimizer.name = optimizer
    return config


def factors_by_name(config: ml_collections.ConfigDict) -> dict[str, Factors]:
    parameters = abstract_init(config, 9, 9)[1]
    factors = parameter_factors(config, parameters)
    leaves = jax.tree_util.tree_leaves_with_path(factors, is_leaf=lambda x: isinstance(x, Factors))
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): factors for path, factors in leaves
    }


def test_a_tied_model_has_the_factors_of_table_8():
    factors = factors_by_name(mup_config(attention_bias=True, output_bias=True))
    root = M**-0.5
    for name, expected in {
        # The model multiplies the table by sqrt(d_model), which is an update too large by sqrt(M).
        "decoder.embedding.table": Factors(1.0, root, 1.0),
        "output_bias": UNCHANGED,
        # The table gives logits a factor M^-0.5 and the norm another one.
        "decoder.final_norm.scale": Factors(root, root, 1.0),
        "decoder.final_norm.bias": Factors(root, root, 1.0),
        "encoder.final_norm.scale": UNCHANGED,
        "decoder.layers.0.feed_forward_connection.norm.scale": UNCHANGED,
        "encoder.layers.0.feed_forward.inner.kernel": Factors(1.0, 1.0, 1 / M),
        "encoder.layers.0.feed_forward.inner.bias": UNCHANGED,
        "decoder.layers.0.cross_attention.key.kernel": Factors(1.0, 1.0, 1 / M),
        "decoder.layers.0.cross_attention.query.kernel": Factors(root, root, 1 / M),
        "decoder.layers.0.cross_attention.query.bias": Factors(root, root, 1.0),
    }.items():
        assert factors[name] == pytest.approx(expected), name


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"share_embeddings": "none"},
            {
                "projection.kernel": Factors(1 / M, 1 / M, 1.0),
                "decoder.final_norm.scale": UNCHANGED,
                "encoder.embedding.table": Factors(1.0, M**-0.5, 1.0),
            },
        ),
        (
            {"norm_position": "post", "num_layers": 2},
            {
                "decoder.layers.1.feed_forward_connection.norm.scale": Factors(
                    M**-0.5, M**-0.5, 1.0
                ),
                "decoder.layers.0.feed_forward_connection.norm.scale": UNCHANGED,
                "encoder.layers.1.feed_forward_connection.norm.scale": UNCHANGED,
            },
        ),
        # More heads of the same width
        (
            {"num_heads": WIDE // 8},
            {"encoder.layers.0.self_attention.query.kernel": Factors(1.0, 1.0, 1 / M)},
        ),
        ({"positions": "shaw"}, {"encoder.relations.0.vectors": UNCHANGED}),
        ({"positions": "t5"}, {"decoder.relations.0.table": UNCHANGED}),
        ({"positions": "learned"}, {"encoder.positions.table": UNCHANGED}),
        (
            {"decoder_self_attention": "average"},
            {"decoder.layers.0.self_attention.forget.kernel": Factors(1.0, 1.0, 1 / M)},
        ),
    ],
)
def test_variants_of_the_model_have_their_factors(changes, expected):
    factors = factors_by_name(mup_config(**changes))
    for name, values in expected.items():
        assert factors[name] == pytest.approx(values), name


def test_muon_needs_a_smaller_factor_on_matrices_only():
    adam = factors_by_name(mup_config())
    muon = factors_by_name(mup_config(optimizer="muon"))
    changed = {name for name in adam if adam[name] != muon[name]}
    assert changed == {name for name in adam if name.endswith("kernel")}
    assert {muon[name].rate for name in changed} == {M**-0.5}


@pytest.mark.parametrize("config", [mup_config(BASE), coordinates.make_config("standard", WIDE)])
def test_the_base_model_and_the_standard_have_the_programs_of_the_optimizer(config):
    parameters = {"decoder": {"layers": {0: {"x": {"kernel": jnp.ones((2, 2))}}}}}
    assert (
        initial_values(config, parameters)["decoder"]["layers"][0]["x"]["kernel"]
        is (parameters["decoder"]["layers"][0]["x"]["kernel"])
    )
    optimizers = make_run_optimizer(config, RATE), make_optimizer(config.optimizer, RATE)
    state = optimizers[1].init(parameters)
    ours, plain = (
        jax.make_jaxpr(optimizer.update)(parameters, state, parameters) for optimizer in optimizers
    )
    assert str(ours) == str(plain)


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_updates_are_those_of_parameters_with_multipliers(name):
    """The reference trains the parameters of the paper's form, each kind with its own rate."""
    config = mup_config(optimizer=name)
    config.optimizer.update(
        schedule="constant", weight_decay=0.5, clip_norm=1.0, epsilon=1e-2, learning_rate=0.1
    )
    random = np.random.default_rng(0)
    shapes = {
        ("projection", "kernel"): (4, 3),
        ("decoder", "embedding", "table"): (3, 4),
        ("decoder", "final_norm", "scale"): (4,),
        ("decoder", "layers", 0, "self_attention", "query", "kernel"): (4, 4),
        ("decoder", "layers", 0, "feed_forward", "inner", "kernel"): (4, 6),
    }
    multipliers = dict(zip(shapes, [1 / M, M**-0.5, 1.0, M**-0.5, 1.0], strict=True))
    hidden_rate = M**-0.5 if name == "muon" else 1 / M
    rates = dict(zip(shapes, [1.0, 1.0, 1.0, hidden_rate, hidden_rate], strict=True))

    def tree(values: dict) -> dict:
        nested: dict = {}
        for path, value in values.items():
            inner = nested
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = jnp.asarray(value, jnp.float32)
        return nested

    def draw():
        return {path: random.standard_normal(shape) for path, shape in shapes.items()}

    stored = draw()
    parameters = tree(stored)
    weights = {path: x / multipliers[path] for path, x in stored.items()}
    optimizer = make_run_optimizer(config, RATE)
    state = optimizer.init(parameters)

    # The reference: no decay inside, the epsilon of the width, updates with the rates.
    plain = ml_collections.ConfigDict(config.optimizer)
    plain.update(weight_decay=0.0, epsilon=1e-2 / M)
    reference = make_optimizer(plain, RATE)
    reference_state = reference.init(tree(weights))
    for _ in range(3):
        gradients = draw()
        updates, state = optimizer.update(tree(gradients), state, parameters)
        parameters = optax.apply_updates(parameters, updates)

        of_weights = {path: gradients[path] * multipliers[path] for path in shapes}
        updates, reference_state = reference.update(
            tree(of_weights), reference_state, tree(weights)
        )
        for path, update in zip(tree_paths(updates), jax.tree.leaves(updates), strict=True):
            decay = 0.1 * 0.5 * weights[path] if weights[path].ndim > 1 else 0.0
            weights[path] = weights[path] + rates[path] * np.asarray(update) - decay

    for path, value in zip(tree_paths(parameters), jax.tree.leaves(parameters), strict=True):
        expected = weights[path] * multipliers[path]
        np.testing.assert_allclose(value, expected, rtol=2e-4, atol=2e-5, err_msg=str(path))


def tree_paths(tree: dict) -> list[tuple]:
    return [tuple(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def test_initial_values_have_the_sizes_of_table_8():
    config = mup_config(share_embeddings="none")
    parameters = jax.jit(lambda: init_model(config, 64, 64)[1])()
    table = parameters["decoder"]["embedding"]["table"]
    assert jnp.std(table) * WIDE**0.5 == pytest.approx(1.0, rel=0.05)  # times sqrt(d_model): 1
    kernel = parameters["projection"]["kernel"]
    assert jnp.std(kernel) == pytest.approx((2 / (WIDE + 64)) ** 0.5 / M, rel=0.05)
    query = parameters["encoder"]["layers"][0]["self_attention"]["query"]["kernel"]
    assert jnp.std(query) == pytest.approx((1 / WIDE) ** 0.5 * M**-0.5, rel=0.05)


@functools.cache
def base_sizes() -> dict[str, np.ndarray]:
    # At the base width all parameterizations are the same.
    return coordinates.measure(coordinates.make_config("standard", BASE))


def growth(name: str) -> dict[str, np.ndarray]:
    """Returns the exponents with which activations grow with the width, before each update."""
    wide = coordinates.measure(coordinates.make_config(name, WIDE))
    return {path: np.log(wide[path] / sizes) / np.log(M) for path, sizes in base_sizes().items()}


def check_coordinates(exponents: dict[str, np.ndarray]) -> None:
    """Raises AssertionError unless all activations keep their sizes."""
    assert len(exponents) > 25
    for path, values in exponents.items():
        least = -0.25
        if path.endswith(("scores", "logits")):
            # Sums of random products of initial values fall as m^-0.5, and learned ones do not.
            assert values[0] == pytest.approx(-0.5, abs=0.1), path
            least = -0.6
        assert least < values.min() and values.max() < 0.2, path


@pytest.mark.slow
def test_activations_keep_their_sizes_under_mup_and_grow_under_standard():
    check_coordinates(growth("mup"))
    assert max(values.max() for values in growth("standard").values()) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("embedding", {"multiplier": 0.5}),
        ("hidden", {"variance": 0}),
        ("hidden", {"rate": -0.5}),
        ("output", {"multiplier": 0}),
        ("vector", {"rate": 1}),
        ("score", -0.5),
    ],
)
def test_the_coordinate_check_finds_a_wrong_exponent(field, value, monkeypatch):
    right = PARAMETERIZATIONS["mup"]
    if isinstance(value, dict):
        value = getattr(right, field)._replace(**value)
    monkeypatch.setitem(PARAMETERIZATIONS, "mup", right._replace(**{field: value}))
    exponents = growth("mup")
    with pytest.raises(AssertionError):
        check_coordinates(exponents)
