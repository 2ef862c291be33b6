"""Results for a sentence do not depend on padding, filler rows or other sentences in the batch."""

import jax
import numpy as np
import pytest

from tests.model.models import (
    LARGE,
    ROUNDING,
    SMALL,
    batch_of,
    cross_entropy,
    sentences,
    tiny_transformer,
)

LENGTHS = [(7, 3), (4, 6), (8, 1)]
CHANGES = [
    {"attention": "dot_product"},
    {"attention": "additive", "norm_position": "pre", "positions": "learned"},
]


@pytest.mark.first_case
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("change", CHANGES)
def test_padding_and_filler_rows_change_neither_logits_nor_loss(change, dtype):
    """The parity test covers gradients: it adds padding and filler rows to PyTorch's inputs."""
    model = jax.jit(tiny_transformer(dtype=dtype, **change).module)
    results = []
    for shape in (SMALL, LARGE):
        batch = batch_of(sentences(LENGTHS), [0, 1, 2], shape)
        logits = model(batch["source"], batch["target_input"])
        assert np.isfinite(logits).all()
        results.append((logits, cross_entropy(logits, batch["target_output"])))
    (logits, sums), (padded_logits, padded_sums) = results
    for row, (_, length) in enumerate(LENGTHS):
        np.testing.assert_allclose(
            padded_logits[row, :length],
            logits[row, :length],
            rtol=ROUNDING[dtype],
            atol=ROUNDING[dtype],
        )
    for name in ("loss", "nll", "correct", "tokens"):
        assert float(getattr(padded_sums, name)) == pytest.approx(
            float(getattr(sums, name)), rel=ROUNDING[dtype]
        )


@pytest.mark.first_case
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("change", CHANGES)
def test_neighbours_change_no_logits_and_losses_add_up(change, dtype):
    model = jax.jit(tiny_transformer(dtype=dtype, **change).module)
    batch = batch_of(sentences(LENGTHS), [0, 1, 2], SMALL)
    others = batch_of(sentences([(8, 6), (1, 1), (5, 4)], seed=1), [0, 1, 2], SMALL)
    logits = model(batch["source"], batch["target_input"])
    losses = []
    for row, (_, length) in enumerate(LENGTHS):
        # The sentence moves to another row, among other sentences.
        place = (row + 1) % 3
        source, target = (
            others[name].at[place].set(batch[name][row]) for name in ("source", "target_input")
        )
        moved = model(source, target)
        np.testing.assert_allclose(
            moved[place, :length], logits[row, :length], rtol=ROUNDING[dtype], atol=ROUNDING[dtype]
        )
        alone = cross_entropy(moved[place][None], batch["target_output"][row][None])
        losses.append(float(alone.loss))
    together = cross_entropy(logits, batch["target_output"])
    assert sum(losses) == pytest.approx(float(together.loss), rel=ROUNDING[dtype])
