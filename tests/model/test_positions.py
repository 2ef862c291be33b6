"""Positional encodings: golden values, the rotation property, learned ones, and rotated queries and
keys.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.model.models import tiny_config
from transformer.model.positions import POSITIONS, LearnedPositions, SinusoidalPositions
from transformer.model.relative_positions import Rotary

INTERLEAVED_BASE_100 = [
    [0, 1, 0, 1],
    [0.84147098, 0.54030231, 0.09983342, 0.99500417],
    [0.90929743, -0.41614684, 0.19866933, 0.98006658],
    [0.14112001, -0.9899925, 0.29552021, 0.95533649],
]
CONCATENATED_ROW_1 = [
    0.84147096, 0.38767424, 0.15782665, 0.063053876, 0.025116222, 0.0099998331, 0.0039810613,
    0.0015848925, 0.00063095731, 0.00025118864, 0.54030228, 0.92179644, 0.98746681, 0.99801010,
    0.99968451, 0.99994999, 0.99999207, 0.99999875, 0.99999982, 0.99999994,
]  # fmt: skip


def first_rows(positions: nnx.Module, count: int) -> np.ndarray:
    return np.asarray(positions(jnp.arange(count)[None]))[0]


def test_interleaved_sinusoids_have_the_golden_values(monkeypatch):
    monkeypatch.setattr("transformer.model.relative_positions.BASE", 100.0)
    positions = SinusoidalPositions(4, concatenated=False)
    np.testing.assert_allclose(first_rows(positions, 4), INTERLEAVED_BASE_100, atol=1e-6)


def test_concatenated_sinusoids_have_the_golden_values():
    positions = POSITIONS["sinusoidal_concatenated"](tiny_config(d_model=20), False, nnx.Rngs(0))
    np.testing.assert_allclose(first_rows(positions, 10)[1], CONCATENATED_ROW_1, rtol=1e-5)


def test_marians_sinusoids_have_wavelengths_from_1_to_the_base_times_two_pi():
    """v = p exp(-i ln(10000) / (d / 2 - 1)), then all sin(v) and all cos(v), as in its source."""
    rows = first_rows(
        POSITIONS["sinusoidal_marian"](tiny_config(d_model=12), False, nnx.Rngs(0)), 30
    )
    for position, row in enumerate(rows):
        angles = [position * math.exp(i * -(math.log(10_000.0) / (12 / 2 - 1))) for i in range(6)]
        np.testing.assert_allclose(row, [*map(math.sin, angles), *map(math.cos, angles)], atol=1e-5)
    assert np.isfinite(
        first_rows(POSITIONS["sinusoidal_marian"](tiny_config(d_model=2), False, nnx.Rngs(0)), 3)
    ).all()


@pytest.mark.parametrize("shift", [1, 7, 100])
def test_a_shift_rotates_each_plane_by_an_angle_of_its_own(shift):
    """PE(pos + k) = R(k) PE(pos): what lets a product of two encodings depend on their distance
    (section 3.5).
    """
    positions = POSITIONS["sinusoidal"](tiny_config(d_model=16), False, nnx.Rngs(0))
    encoding = first_rows(positions, 200 + shift).reshape(-1, 8, 2)
    angles = shift / 10_000 ** (np.arange(0, 16, 2) / 16)
    cos, sin = np.cos(angles), np.sin(angles)
    rotations = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], -2)
    expected = np.einsum("pij,tpj->tpi", rotations, encoding[:200])
    # a float32 angle near 300 is 3e-5 off
    np.testing.assert_allclose(encoding[shift:], expected, atol=1e-4)


def test_learned_positions_are_rows_of_a_trained_table():
    positions = LearnedPositions(8, max_positions=6, rngs=nnx.Rngs(0))
    table = np.asarray(positions.table[...])
    rows = np.array([[0, 1, 2, 0], [5, 4, 3, 5]])
    np.testing.assert_array_equal(positions(jnp.asarray(rows)), table[rows])

    graph, state = nnx.split(positions)
    gradient = jax.grad(lambda state: nnx.merge(graph, state)(jnp.asarray(rows[:1])).sum())(state)
    np.testing.assert_array_equal(gradient["table"][...][:, 0], [2, 1, 1, 0, 0, 0])


def test_rotation_is_by_an_angle_in_each_plane():
    x = np.random.default_rng(0).normal(size=(1, 300, 2, 8)).astype(np.float32)
    # As complex numbers: elements i and 4 + i are one, multiplied by e^(i pos / 10000^(2i / 8)).
    angles = np.arange(300)[:, None] / 10_000 ** (np.arange(0, 8, 2) / 8)
    expected = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)[None, :, None]
    rotated = np.asarray(Rotary().rotate(jnp.asarray(x), jnp.arange(300)[None]))
    np.testing.assert_allclose(rotated[..., :4] + 1j * rotated[..., 4:], expected, atol=1e-4)


def test_products_of_rotated_queries_and_keys_depend_only_on_distances():
    queries, keys = np.random.default_rng(0).normal(size=(2, 1, 6, 2, 8)).astype(np.float32)

    def products(first: int) -> np.ndarray:
        positions = first + jnp.arange(6)[None]
        rotated = [Rotary().rotate(jnp.asarray(x), positions) for x in (queries, keys)]
        return np.einsum("bthd,bshd->bhts", *rotated)

    np.testing.assert_allclose(products(100), products(0), atol=1e-4)
    assert not np.allclose(products(0), np.einsum("bthd,bshd->bhts", queries, keys), atol=0.1)


def test_rotation_keeps_the_dtype():
    x = jnp.ones((1, 3, 1, 4), jnp.bfloat16)
    assert Rotary().rotate(x, jnp.arange(3)[None]).dtype == jnp.bfloat16
