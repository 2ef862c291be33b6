"""Average attention against a loop in NumPy. Its gradients: test_packed.py and test_causality.py."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.model.models import flat, random_model, tiny_config
from tests.model.test_ssru import D_MODEL, LENGTH, ROWS, SEGMENTS
from transformer.model.average_attention import AverageAttention
from transformer.model.masks import Mask


def in_numpy(parameters: dict, x: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Returns the gated averages, one position after another in float64."""
    weights = {path: array.astype(np.float64) for path, array in flat(parameters)}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    out = np.zeros(x.shape)
    for row, t in np.ndindex(x.shape[:2]):
        seen = x[row, : t + 1][segments[row, : t + 1] == segments[row, t]]
        average = linear("feed_forward/outer", np.maximum(linear("feed_forward/inner", seen.mean(0)), 0))
        both = np.concatenate([x[row, t], average])
        gates = [1 / (1 + np.exp(-linear(name, both))) for name in ("input", "forget")]
        out[row, t] = gates[0] * x[row, t] + gates[1] * average
    return out


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_it_equals_a_loop_over_positions_that_starts_again_in_each_segment(dtype, tolerance):
    config = tiny_config(d_model=D_MODEL, dtype=dtype)
    model = random_model(lambda: AverageAttention(config, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, LENGTH, D_MODEL)), dtype)
    segments = jnp.asarray(SEGMENTS)
    out = model.module(x, x, Mask(segments, segments, is_causal=True, is_packed=True))
    assert out.dtype == dtype
    expected, is_token = in_numpy(model.parameters, np.float64(x), SEGMENTS), SEGMENTS > 0
    np.testing.assert_allclose(np.float32(out)[is_token], expected[is_token], rtol=tolerance, atol=tolerance)
