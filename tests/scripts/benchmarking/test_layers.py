"""The layers of Table 1: what each computes, and how far apart positions are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts.benchmarking import layers
from transformer.model.attention import dot_product_score, masked_softmax

N, D = 40, 8
X = jax.random.normal(jax.random.key(2), (3, N, D))


def test_restricted_attention_is_attention_under_a_band(monkeypatch):
    monkeypatch.setattr(layers, "NEIGHBOURS", 6)
    distance = jnp.arange(N)[None] - jnp.arange(N)[:, None]
    band = ((distance >= -3) & (distance < 3))[None, None]
    weights = masked_softmax(dot_product_score(X[:, :, None], X[:, :, None]), band)
    expected = jnp.einsum("bhts,bsd->btd", weights, X)
    np.testing.assert_allclose(layers.restricted_self_attention(X), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("self-attention", 1),
        ("recurrent", N),
        ("convolutional", N - 1),  # three positions: one step to the right a layer
        ("self-attention (restricted)", 5),  # eight steps to the right a layer
    ],
)
def test_paths_from_the_first_to_the_last_position(name, path):
    assert layers.longest_path(layers.KINDS[name], N, 4) == path


def test_exponents_are_those_of_a_power_law():
    sizes = [64, 128, 512]
    assert layers.fitted_exponent(sizes, [3e-9 * size**1.7 for size in sizes]) == pytest.approx(1.7)


def test_the_memory_of_self_attention_grows_with_the_square_of_the_length():
    (_, short), (_, long) = (
        layers.cost_of(layers.KINDS["self-attention"], n, 4, 1) for n in (512, 1024)
    )
    assert long / short == pytest.approx(4, rel=0.05)
