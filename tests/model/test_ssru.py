"""The recurrent unit against a loop in NumPy.

Its gradients: test_packed.py and test_causality.py.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.model.models import Model, random_model, tiny_config
from transformer.model.masks import Mask
from transformer.model.recurrent import Ssru

ROWS, LENGTH, D_MODEL = 3, 7, 16
SEGMENTS = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 2, 3, 0], [1, 1, 1, 0, 0, 0, 0]])


def in_numpy(parameters: dict, x: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Returns relu(c_t), one position after another in float64."""
    kernel, gate = parameters["input"]["kernel"], parameters["forget"]
    out, state = np.zeros(x.shape), np.zeros(x.shape[-1])
    for row in range(len(x)):
        for t in range(x.shape[1]):
            if t == 0 or segments[row, t] != segments[row, t - 1]:
                state = np.zeros(x.shape[-1])
            forget = 1 / (1 + np.exp(-(x[row, t] @ np.float64(gate["kernel"]) + gate["bias"])))
            state = forget * state + (1 - forget) * (x[row, t] @ np.float64(kernel))
            out[row, t] = np.maximum(state, 0)
    return out


def check_against_loop(
    unit: type[nnx.Module], loop: Callable, dtype: str, tolerance: float
) -> Model:
    """Compares a unit with a loop of (parameters, x, segments) on rows of several sentences.

    Returns the unit.
    """
    config = tiny_config(d_model=D_MODEL, dtype=dtype)
    model = random_model(lambda: unit(config, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, LENGTH, D_MODEL)), dtype)
    segments = jnp.asarray(SEGMENTS)
    out = model.module(x, x, Mask(segments, segments, is_causal=True, is_packed=True))
    assert out.dtype == dtype
    expected, is_token = loop(model.parameters, np.float64(x), SEGMENTS), SEGMENTS > 0
    np.testing.assert_allclose(
        np.float32(out)[is_token], expected[is_token], rtol=tolerance, atol=tolerance
    )
    return model


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_it_equals_a_loop_over_positions_that_starts_again_in_each_segment(dtype, tolerance):
    model = check_against_loop(Ssru, in_numpy, dtype, tolerance)
    assert (
        model.parameters.keys() == {"input", "forget"} and "bias" not in model.parameters["input"]
    )


@pytest.mark.slow
def test_the_state_is_float32_in_bfloat16():
    """2,000 equal inputs with a forget gate near 1: increments of a state in bfloat16 would soon
    round to nothing.
    """
    model = random_model(lambda: Ssru(tiny_config(d_model=1, dtype="bfloat16"), rngs=nnx.Rngs(0)))
    parameters = {
        "input": {"kernel": jnp.ones((1, 1))},
        "forget": {"kernel": jnp.zeros((1, 1)), "bias": jnp.full(1, np.log(999.0))},
    }
    unit = nnx.merge(model.graph, nnx.State(parameters))
    segments = jnp.ones((1, 2000), int)
    ones = jnp.ones((1, 2000, 1), jnp.bfloat16)
    out = unit(ones, ones, Mask(segments, segments, is_causal=True, is_packed=False))
    assert float(out[0, -1, 0]) == pytest.approx(1 - 0.999**2000, rel=2**-8)
