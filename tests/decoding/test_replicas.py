"""Parameters with weights in the dtype of their products: the same results as with float32
parameters, bit by bit.
"""

import jax
import numpy as np
import pytest

from tests.decoding.models import random_sources, tiny_model
from tests.decoding.test_forced_decoding import make_decoder
from tests.model.models import flat
from transformer.decoding import ensemble
from transformer.decoding.forced_decoding import score_tokens

VARIANTS = {
    "published": {},
    "unshared, learned positions": {
        "share_embeddings": "none",
        "positions": "learned",
        "max_positions": 16,
    },
    "gated, pre-norm, rotary": {
        "activation": "swiglu",
        "norm_position": "pre",
        "positions": "rotary",
    },
    "additive": {"attention": "additive"},
}


@pytest.mark.first_case
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_log_probabilities_are_those_of_the_float32_parameters(variant):
    model = tiny_model(12, seed=0, dtype="bfloat16", d_model=12, **VARIANTS[variant])
    sides, device = [random_sources(8, 12, 12, seed) for seed in (0, 1)], jax.local_devices()[0]
    score = jax.jit(
        lambda parameters, *sides: score_tokens(
            ensemble.build_models([model.graph], parameters), *sides
        )
    )
    replica = make_decoder([model.graph]).place([model.parameters])[device]
    np.testing.assert_array_equal(score(replica, *sides), score((model.parameters,), *sides))


@pytest.mark.parametrize("array_type", [np.asarray, jax.numpy.asarray])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_the_kernels_of_products_change_their_dtype(dtype, array_type):
    model = tiny_model(12, seed=0, dtype=dtype, share_embeddings="none")
    device = jax.local_devices()[0]
    parameters = jax.tree.map(array_type, model.parameters)
    (replica,) = make_decoder([model.graph]).place([parameters])[device]
    expected = dict(flat(model.parameters))
    assert {placed for leaf in jax.tree.leaves(replica) for placed in leaf.devices()} == {device}
    for path, array in flat(replica):
        is_kernel, is_transposed = "kernel" in path, path.endswith("kernel/transpose")
        assert array.dtype == (dtype if is_kernel else "float32"), path
        assert is_transposed == (is_kernel and jax.default_backend() == "cpu"), path
        array = array.T if is_transposed else array
        np.testing.assert_array_equal(
            array, expected[path.removesuffix("/transpose")].astype(array.dtype)
        )
