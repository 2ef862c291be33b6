"""Average attention against a loop in NumPy.

Its gradients: test_packed.py and test_causality.py.
"""

import numpy as np
import pytest

from tests.model.models import flat
from tests.model.test_ssru import check_against_loop
from transformer.model.recurrent import AverageAttention


def in_numpy(parameters: dict, x: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Returns the gated averages, one position after another in float64."""
    weights = {path: array.astype(np.float64) for path, array in flat(parameters)}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    out = np.zeros(x.shape)
    for row, t in np.ndindex(x.shape[:2]):
        seen = x[row, : t + 1][segments[row, : t + 1] == segments[row, t]]
        average = linear(
            "feed_forward/outer", np.maximum(linear("feed_forward/inner", seen.mean(0)), 0)
        )
        both = np.concatenate([x[row, t], average])
        gates = [1 / (1 + np.exp(-linear(name, both))) for name in ("input", "forget")]
        out[row, t] = gates[0] * x[row, t] + gates[1] * average
    return out


@pytest.mark.first_case
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_it_equals_a_loop_over_positions_that_starts_again_in_each_segment(dtype, tolerance):
    check_against_loop(AverageAttention, in_numpy, dtype, tolerance)
