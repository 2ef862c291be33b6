"""Reductions over the vocabulary equal JAX's own. tests/distributed splits the columns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.training.columns import LOWEST, Columns

VOCAB_SIZE = 7
LOGITS = np.random.default_rng(0).normal(size=(2, 3, VOCAB_SIZE)).astype(np.float32)
LOGITS[0, 0] += 100.0  # exp overflows
LOGITS[1] *= 100.0
PADDED = np.concatenate([LOGITS, np.full((2, 3, 2), LOWEST, np.float32)], axis=-1)


@pytest.fixture(params=["cpu", "gpu"])
def platform(request, monkeypatch):
    """The platform whose form of a reduction is used. All run on CPUs."""
    monkeypatch.setattr("transformer.training.columns.target_platform", lambda: request.param)


@pytest.mark.parametrize(("logits", "is_padded"), [(LOGITS, False), (PADDED, True)])
def test_logsumexp_and_its_gradient_are_those_of_jax(platform, logits, is_padded):
    columns = Columns(jnp.arange(logits.shape[-1])[None, None], VOCAB_SIZE, is_padded=is_padded)
    weights = np.random.default_rng(1).normal(size=logits.shape[:2]).astype(np.float32)

    def weighted(logsumexp):
        return jax.value_and_grad(lambda x: jnp.sum(weights * logsumexp(x)))(jnp.asarray(logits))

    actual = weighted(columns.logsumexp)
    expected = weighted(lambda x: jax.nn.logsumexp(x[..., :VOCAB_SIZE], axis=-1))
    for value, exact in zip(actual, expected, strict=True):
        np.testing.assert_allclose(value, exact, rtol=2e-5, atol=1e-6)


def test_padded_columns_are_in_no_sum():
    columns = Columns(jnp.arange(9)[None, None], VOCAB_SIZE, is_padded=True)
    assert jnp.all(columns.sum(jnp.ones((1, 1, 9))) == VOCAB_SIZE)


def test_the_maximum_is_exact_and_has_no_gradient(platform):
    columns = Columns.whole(VOCAB_SIZE)
    np.testing.assert_array_equal(columns.max(jnp.asarray(LOGITS)), LOGITS.max(axis=-1))
    assert not jax.grad(lambda x: columns.max(x).sum())(jnp.asarray(LOGITS)).any()


def test_taken_values_have_the_gradient_of_indexing():
    tokens = jnp.array([[1, 0, 6], [2, 2, 5]])

    def squares(take):
        return jax.value_and_grad(lambda x: (take(x) ** 2).sum())(jnp.asarray(LOGITS))

    value, gradient = squares(lambda x: Columns.whole(VOCAB_SIZE).take(x, tokens))
    expected_value, expected = squares(lambda x: jnp.take_along_axis(x, tokens[..., None], axis=-1))
    assert value == expected_value
    np.testing.assert_array_equal(gradient, expected)
