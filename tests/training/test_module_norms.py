"""The norms of gradients and weights, of all compared with Optax's, and by module."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.meshes import one_device
from tests.training.tiny import make_batch, setup, tiny_config
from transformer.training.module_norms import global_norm, norms_by_module

TREE = {
    "inner": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.array([1.0, -2.0, 3.0])},
    "embedding": {"table": -jnp.arange(20.0).reshape(5, 4)},
}


def test_the_norm_is_that_of_all_leaves_together():
    norm = jax.jit(lambda tree: global_norm(one_device(), tree))(TREE)
    assert float(norm) == pytest.approx(float(optax.tree.norm(TREE)), rel=1e-6)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_value_that_is_not_finite_shows(value):
    tree = {"kernel": jnp.ones((2, 2)).at[1, 0].set(value)}
    assert not jnp.isfinite(global_norm(one_device(), tree))


def test_a_module_has_the_parameters_below_its_name():
    layers = {
        0: {
            "self_attention": {
                "query": {"kernel": jnp.full((2, 2), 2.0)},
                "value": {"bias": jnp.full(4, 3.0)},
            }
        }
    }
    norms = norms_by_module(
        {"encoder": {"layers": layers}, "decoder": {"embedding": TREE["embedding"]}}
    )
    table = np.sqrt(sum(number**2 for number in range(20)))
    assert {name: float(norm) for name, norm in norms.items()} == pytest.approx(
        {"encoder.layers.0.self_attention": (4 * 4 + 4 * 9) ** 0.5, "decoder.embedding": table}
    )


@pytest.mark.first_case
@pytest.mark.parametrize("parts", [2, 1])
def test_a_step_reports_norms_by_module_and_computes_the_same(parts):
    batches = [make_batch([(5, 6), (6, 4)], 4, 7, seed) for seed in range(parts)]
    plain, plain_metrics = setup(tiny_config()).after(batches)
    state, metrics = setup(tiny_config(training__module_norms=True)).after(batches)
    jax.tree.map(np.testing.assert_array_equal, state, plain)
    assert plain_metrics["module_norms"] == {}
    norms = metrics["module_norms"]
    squares = [norm**2 for name, norm in norms.items() if name.startswith("gradient_norm/")]
    assert sum(squares) == pytest.approx(metrics["gradient_norm"] ** 2, rel=1e-5)
    weights = {name: float(norm) for name, norm in norms_by_module(state.parameters).items()}
    expected = {
        f"weight_norm/{name}": pytest.approx(norm, rel=1e-6) for name, norm in weights.items()
    }
    assert expected == {
        name: norm for name, norm in norms.items() if name.startswith("weight_norm/")
    }
    assert (
        len(norms) == 2 * len(weights) and "gradient_norm/decoder.layers.0.cross_attention" in norms
    )


@pytest.mark.slow
def test_after_a_skipped_update_the_norms_are_those_of_the_weights_that_stay():
    here, batch = (
        setup(tiny_config(training__module_norms=True)),
        make_batch([(5, 6), (6, 4)], 4, 7, 0),
    )
    expected = {
        name: float(norm)
        for name, norm in norms_by_module(here.initializer.create().parameters).items()
    }
    batch["target_weights"] = np.full(batch["target_output"].shape, np.inf, np.float32)
    _, metrics = here.after([batch])
    assert metrics["skipped"]
    norms = {
        name.removeprefix("weight_norm/"): norm for name, norm in metrics["module_norms"].items()
    }
    assert {name: norms[name] for name in expected} == pytest.approx(expected, rel=1e-6)
