"""Dropout: the rate, the scale, and random bits without pattern in a mask and between masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.model.models import SMALL, batch_of, sentences, tiny_transformer
from transformer.model.dropout import dropout, is_kept, random_bits

SHAPE = (64, 32, 64)
SIZE = 64 * 32 * 64
PLACE = jnp.uint32(3)
SIGMAS = 5.0  # of the distribution of chance that a statistic may be away from its mean
GOLDEN = [[342797696, 148780441, 2840067589], [4239822206, 792639312, 1415154470]]


def bits(seed: int) -> np.ndarray:
    return np.asarray(random_bits(jax.random.key(seed), PLACE, SHAPE))


def test_nothing_is_dropped_in_evaluation_or_at_rate_zero():
    x = jnp.ones((2, 3))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, nnx.Rngs(dropout=0)) is x


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_elements_are_dropped_at_the_rate_and_the_others_scaled(rate, dtype):
    x = jnp.linspace(1, 2, SIZE, dtype=dtype).reshape(SHAPE)
    out = dropout(x, rate, nnx.Rngs(dropout=0))
    assert out.dtype == x.dtype
    x, out = (np.asarray(array, np.float64) for array in (x, out))
    kept = out != 0
    assert abs(kept.mean() - (1 - rate)) < SIGMAS * np.sqrt(rate * (1 - rate) / SIZE)
    # The scale is right on average too: a rounded one would be wrong for all elements alike.
    np.testing.assert_allclose(out[kept], x[kept] / (1 - rate), rtol=jnp.finfo(dtype).eps)
    assert (out[kept] / x[kept]).mean() == pytest.approx(1 / (1 - rate), rel=1e-4)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5, 0.6, 0.75, 0.9, 0.999])
def test_a_traced_rate_drops_and_scales_like_a_constant(rate):
    """Trials that train together have traced rates."""
    x = jnp.ones(SHAPE)
    traced = jax.jit(jax.vmap(lambda rate: dropout(x, rate, nnx.Rngs(dropout=0))))(
        jnp.float32([rate])
    )[0]
    expected = dropout(x, rate, nnx.Rngs(dropout=0))
    np.testing.assert_array_equal(traced != 0, expected != 0)
    np.testing.assert_allclose(traced, expected, rtol=2e-5)  # 1 - 0.999 in float32


@pytest.mark.parametrize("rate", [0.1, 0.6, 0.75, 0.9, 0.9999999])
def test_the_threshold_of_a_constant_rate_is_exact(rate, monkeypatch):
    """Runs that resume draw the masks that they drew before."""
    below, above = (np.array([round(rate * 2**32) + step], np.uint32) for step in (-1, 0))
    for bits, expected in ((below, False), (above, True)):
        monkeypatch.setattr(
            "transformer.model.dropout.random_bits", lambda *_, bits=bits: jnp.asarray(bits)
        )
        assert bool(is_kept((1,), rate, nnx.Rngs(dropout=0))[0]) is expected


def test_masks_of_other_sites_and_other_keys_are_independent():
    x, rate = jnp.ones(SHAPE), 0.3

    def masks(seed: int) -> list[np.ndarray]:
        rngs = nnx.Rngs(dropout=seed)
        return [np.asarray(dropout(x, rate, rngs)) != 0 for _ in range(3)]

    first, again, later = masks(0), masks(0), masks(1)
    np.testing.assert_array_equal(first, again)
    agreement = rate**2 + (1 - rate) ** 2
    tolerance = SIGMAS * np.sqrt(agreement * (1 - agreement) / SIZE)
    every = [*first, *later]
    for i, mask in enumerate(every):
        for later in every[i + 1 :]:
            assert abs((mask == later).mean() - agreement) < tolerance


@pytest.mark.parametrize("seed", range(3))
def test_every_bit_is_fair_and_no_two_bits_go_together(seed):
    signs = 1.0 - 2.0 * np.unpackbits(bits(seed).reshape(-1, 1).view(np.uint8), axis=1).astype(
        np.float32
    )
    assert signs.shape == (SIZE, 32)
    products = signs.T @ signs / SIZE
    assert np.abs(signs.mean(0)).max() < SIGMAS / np.sqrt(SIZE)
    assert np.abs(products - np.eye(32)).max() < SIGMAS / np.sqrt(SIZE)


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_spread_evenly(shift):
    counts = np.bincount((bits(0).ravel() >> shift) & 255, minlength=256)
    expected = SIZE / 256
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 255) < SIGMAS * np.sqrt(2 * 255)


def test_neighbours_along_every_axis_are_uncorrelated():
    uniform = bits(0) / 2**32 - 0.5
    for axis in range(3):
        for lag in (1, 2, 16):
            left, right = np.split(uniform, [lag], axis)[1], np.split(uniform, [-lag], axis)[0]
            correlation = 12 * (left * right).mean()
            assert abs(correlation) < SIGMAS / np.sqrt(left.size), (axis, lag)


def test_keys_that_follow_each_other_give_uncorrelated_bits():
    streams = np.stack(
        [np.asarray(random_bits(jax.random.key(seed), PLACE, (4096,))) for seed in range(24)]
    )
    correlations = np.corrcoef(streams / 2**32 - 0.5) - np.eye(len(streams))
    assert np.abs(correlations).max() < SIGMAS / np.sqrt(4096)


def test_places_that_follow_each_other_have_uncorrelated_bits():
    key = jax.random.key(0)
    streams = np.stack(
        [np.asarray(random_bits(key, jnp.uint32(place), (4096,))) for place in range(64)]
    )
    correlations = np.corrcoef(streams / 2**32 - 0.5) - np.eye(len(streams))
    assert np.abs(correlations).max() < SIGMAS / np.sqrt(4096)
    # Nor is one place a permutation of another.
    assert len(np.unique(streams)) > 0.999 * streams.size


def test_bits_of_a_threefry_key_never_change():
    """A resumed run draws the same masks."""
    assert random_bits(jax.random.key(7), PLACE, (2, 3)).tolist() == GOLDEN


def test_every_word_of_an_rbg_key_counts():
    keys = [jax.random.key(0, impl="rbg"), jax.random.fold_in(jax.random.key(0, impl="rbg"), 1)]
    words = jax.random.key_data(keys[1])
    assert words.shape == (4,)
    keys += [jax.random.wrap_key_data(words.at[word].add(1), impl="rbg") for word in range(4)]
    streams = np.stack([np.asarray(random_bits(key, PLACE, (4096,))) for key in keys]) / 2**32 - 0.5
    assert np.abs(np.corrcoef(streams) - np.eye(len(keys))).max() < SIGMAS / np.sqrt(4096)
    assert np.abs(streams.mean(axis=1)).max() < SIGMAS / np.sqrt(12 * 4096)


@pytest.mark.slow
@pytest.mark.parametrize(
    "site", ["dropout", "attention_dropout", "activation_dropout", "final_dropout"]
)
def test_each_rate_acts_only_in_training(site):
    rates = {"dropout": 0.0, site: 0.5}
    model, certain = tiny_transformer(**rates).module, tiny_transformer(dropout=0.0).module
    batch = batch_of(sentences([(7, 3), (4, 6), (8, 1)]), [0, 1, 2], SMALL)
    inputs = batch["source"], batch["target_input"]

    def logits(seed: int) -> np.ndarray:
        return np.asarray(model(*inputs, rngs=nnx.Rngs(dropout=seed)))

    evaluation = np.asarray(certain(*inputs))
    np.testing.assert_array_equal(model(*inputs), evaluation)
    np.testing.assert_array_equal(logits(0), logits(0))
    assert not np.allclose(logits(0), logits(1))
    assert not np.allclose(logits(0), evaluation)


def test_final_dropout_is_after_the_last_norm_of_each_stack():
    plain, dropping = (
        tiny_transformer(norm_position="pre", dropout=0.0, final_dropout=rate).module.encoder
        for rate in (0.0, 0.25)
    )
    tokens = jnp.arange(4, 10)[None]
    expected = np.asarray(plain(tokens))
    np.testing.assert_array_equal(dropping(tokens), expected)
    dropped = np.asarray(dropping(tokens, rngs=nnx.Rngs(dropout=0)))
    kept = dropped != 0
    assert 0.5 < kept.mean() < 1
    np.testing.assert_allclose(dropped[kept], expected[kept] / 0.75, rtol=1e-6)


def test_layer_drop_leaves_out_whole_layers_in_training_only(monkeypatch):
    batch = batch_of(sentences([(7, 3), (4, 6), (8, 1)]), [0, 1, 2], SMALL)
    inputs = batch["source"], batch["target_input"]
    whole, dropping = (
        tiny_transformer(dropout=0.0).module,
        tiny_transformer(dropout=0.0, layer_drop=0.3).module,
    )
    expected = whole(*inputs)
    np.testing.assert_array_equal(dropping(*inputs), expected)
    kept = iter([True, False, True, True])  # of the encoder and of the decoder
    monkeypatch.setattr("transformer.model.stacks.is_kept", lambda *_: jnp.asarray(next(kept)))
    dropped = dropping(*inputs, rngs=nnx.Rngs(dropout=0))
    assert not np.allclose(dropped, expected)
    smaller = tiny_transformer(dropout=0.0).module
    smaller.encoder.layers, smaller.encoder.relations = (
        smaller.encoder.layers[:1],
        smaller.encoder.relations[:1],
    )
    np.testing.assert_allclose(dropped, smaller(*inputs), rtol=1e-5, atol=1e-6)


def test_layers_are_left_out_with_the_probability_of_the_key():
    keys = jax.random.split(jax.random.key(0), 2000)
    kept = jax.vmap(lambda key: is_kept((1, 1, 1), 0.3, nnx.Rngs(dropout=key)))(keys)
    assert float(kept.mean()) == pytest.approx(0.7, abs=0.04)
