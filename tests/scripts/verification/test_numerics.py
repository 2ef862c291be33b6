"""Formulas on this machine agree with those in float64, and a wrong kernel does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts.verification import numerics


def test_gradients_of_the_formulas_are_those_of_finite_differences():
    random = np.random.default_rng(0)
    inputs = [random.normal(size=(1, 3, 2, 4)) for _ in range(3)]
    cotangent, mask = random.normal(size=(1, 3, 2, 4)), np.tri(3, dtype=bool)[None, None]
    _, *gradients = numerics.attention64(*inputs, cotangent, mask)
    for number, gradient in enumerate(gradients):
        direction, step = random.normal(size=gradient.shape), 1e-6
        values = []
        for sign in (1, -1):
            moved = [x + sign * step * direction * (i == number) for i, x in enumerate(inputs)]
            values.append(np.sum(numerics.attention64(*moved, cotangent, mask)[0] * cotangent))
        np.testing.assert_allclose(
            np.sum(gradient * direction), (values[0] - values[1]) / (2 * step), rtol=1e-6
        )


def test_a_softmax_that_ignores_its_mask_fails(monkeypatch):
    assert all(outcome.passed for outcome in numerics.check_softmax())
    monkeypatch.setattr(numerics, "masked_softmax", lambda scores, mask: jax.nn.softmax(scores))
    assert not any(outcome.passed for outcome in numerics.check_softmax())


def test_attention_that_reads_another_sentence_of_its_row_fails():
    case = next(case for case in numerics.attention_cases("float32") if case.name == "self, packed")
    right = numerics.compare_attention("right", numerics.plain_attention, "float32", case)

    def without_segments(queries, keys, values, mask):
        one_sentence = mask.replace(query_segments=jnp.minimum(mask.query_segments, 1))
        return numerics.plain_attention(queries, keys, values, one_sentence)

    wrong = numerics.compare_attention("wrong", without_segments, "float32", case)
    assert right.passed and not wrong.passed


def test_a_kernel_that_returns_nan_fails():
    case = next(numerics.attention_cases("float32"))
    outcome = numerics.compare_attention("NaN", lambda q, k, v, mask: v * jnp.nan, "float32", case)
    assert np.isnan(outcome.error) and not outcome.passed


@pytest.mark.slow  # 23 programs
def test_this_machine_computes_all_formulas():
    assert [outcome.name for outcome in numerics.check_all() if not outcome.passed] == []
