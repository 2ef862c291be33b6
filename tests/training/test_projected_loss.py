"""The loss of hidden vectors and a table equals that of their logits, for any chunks.

Meshes: tests/distributed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from tests.meshes import one_device
from tests.model.models import (
    LARGE,
    assert_gradients_close,
    batch_of,
    logits_of,
    loss_and_gradients,
    sentences,
    tiny_transformer,
)
from tests.training.tiny import set_chunk
from transformer.support.special_tokens import EOS, PAD
from transformer.training.columns import COLUMN_MULTIPLE, Columns
from transformer.training.loss import sum_losses, token_losses
from transformer.training.projected_loss import Output, projected_loss

# in multiples of 128 columns, the table gets 56 rows of padding
ROWS, LENGTH, VOCAB, D_MODEL = 10, 3, 200, 8
HIDDEN, TABLE = (
    np.random.default_rng(n).normal(size=(*size, D_MODEL))
    for n, size in enumerate([(10, 3), (200,)])
)
BIAS = np.random.default_rng(3).normal(size=VOCAB)
TARGETS = np.random.default_rng(2).integers(0, VOCAB, (ROWS, LENGTH))
TARGETS[1, 1:] = TARGETS[7] = PAD
TARGETS[2:6, 2] = EOS
ONE_SENTENCE = 4 * LENGTH * 256  # at least the bytes of float32 logits


def summed(smoothing: float = 0.1, r_drop: float = 0.0):
    """Returns the function from hidden vectors, table, bias, targets and weights to the criterion
    and the sums.
    """
    training = base.get_config().training
    training.update({"label_smoothing": smoothing, "r_drop": r_drop})
    passes = 2 if r_drop else 1
    losses = functools.partial(token_losses, training_config=training, passes=passes)

    def loss(hidden, table, bias, targets, weights=None):
        counted = jnp.float32(targets != PAD) / passes * (1.0 if weights is None else weights)
        return projected_loss(
            losses, passes, one_device(), Output(hidden, table, bias), targets, counted
        )

    return loss


@pytest.mark.first_case
@pytest.mark.parametrize("column_multiple", [1, 128])
@pytest.mark.parametrize("sentences", [1, 2, 3, 100])
@pytest.mark.parametrize(("r_drop", "has_bias"), [(0.0, True), (5.0, False)])
def test_chunks_of_any_size_give_the_same_sums_and_gradients(
    monkeypatch, r_drop, has_bias, sentences, column_multiple
):
    """Also if the last chunk is filled up, with padded columns, and with both passes of a sentence
    in one chunk.
    """
    monkeypatch.setitem(COLUMN_MULTIPLE, "cpu", column_multiple)
    passes = 2 if r_drop else 1
    set_chunk(monkeypatch, sentences * passes * ONE_SENTENCE)
    loss, targets = summed(r_drop=r_drop), jnp.asarray(TARGETS)
    arrays = jnp.float32(HIDDEN), jnp.float32(TABLE), jnp.float32(BIAS) if has_bias else None

    def scaled(*arrays):  # a cotangent other than 1
        value, sums = loss(*arrays, targets)
        return 3 * value, sums

    def plain(hidden, table, bias):
        logits = hidden @ table.T + (0.0 if bias is None else bias[None, None])
        columns = Columns.whole(VOCAB)
        training = base.get_config().training
        training.r_drop = r_drop
        losses = token_losses(logits, targets, columns, training_config=training, passes=passes)
        value, sums = sum_losses(losses, logits, targets, columns, (targets != PAD) / passes)
        return 3 * value, sums

    (value, sums), gradients = jax.jit(jax.value_and_grad(scaled, (0, 1, 2), has_aux=True))(*arrays)
    (expected, expected_sums), expected_gradients = jax.value_and_grad(
        plain, (0, 1, 2), has_aux=True
    )(*arrays)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(jax.tree.leaves(sums), jax.tree.leaves(expected_sums), rtol=1e-5)
    for gradient, exact in zip(
        jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True
    ):
        np.testing.assert_allclose(gradient, exact, rtol=1e-4, atol=1e-4)
    evaluated, evaluated_sums = jax.jit(loss)(*arrays, targets)
    assert 3 * float(evaluated) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(
        jax.tree.leaves(evaluated_sums), jax.tree.leaves(expected_sums), rtol=1e-5
    )


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_the_gradient_of_the_weights_is_the_criterion_of_each_token(monkeypatch, r_drop):
    passes = 2 if r_drop else 1
    set_chunk(monkeypatch, 2 * passes * ONE_SENTENCE)
    training = base.get_config().training
    training.r_drop = r_drop
    losses = functools.partial(token_losses, training_config=training, passes=passes)
    output = Output(jnp.float32(HIDDEN), jnp.float32(TABLE))
    targets = jnp.asarray(TARGETS)

    def loss(weights):
        return 3 * projected_loss(losses, passes, one_device(), output, targets, weights)[0]

    gradient = jax.jit(jax.grad(loss))(jnp.ones(targets.shape))
    criterion, _ = losses(output.hidden @ output.table.T, targets, Columns.whole(VOCAB))
    np.testing.assert_allclose(gradient, 3 * criterion, rtol=1e-5)


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_a_sentence_of_weight_2_counts_as_two_and_one_of_weight_0_not_at_all(r_drop):
    counts = np.repeat([2, 0, 1, 3, 1], 2)  # of the two rows that are R-Drop's passes of a sentence
    repeated = np.concatenate([np.tile([row, row + 1], counts[row]) for row in range(0, ROWS, 2)])

    def results(rows, weights):
        def loss(hidden, table):
            return summed(r_drop=r_drop)(hidden, table, None, jnp.asarray(TARGETS[rows]), weights)

        arrays = jnp.float32(HIDDEN[rows]), jnp.float32(TABLE)
        (value, sums), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(*arrays)
        return value, sums, gradients

    weights = jnp.asarray(np.repeat(counts[:, None], LENGTH, axis=1), jnp.float32)
    value, sums, (d_hidden, d_table) = results(np.arange(ROWS), weights)
    expected, expected_sums, (_, expected_d_table) = results(repeated, None)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(jax.tree.leaves(sums), jax.tree.leaves(expected_sums), rtol=1e-5)
    np.testing.assert_allclose(d_table, expected_d_table, rtol=1e-4, atol=1e-5)
    assert (np.asarray(d_hidden)[counts == 0] == 0).all()


@pytest.mark.slow
def test_the_gradient_of_a_models_output_bias_is_that_of_the_plain_loss():
    model = tiny_transformer(output_bias=True, share_embeddings="none")
    batch = batch_of(sentences([(7, 3), (4, 6), (8, 1)]), [0, 1, 2], LARGE)

    def plain(parameters):
        log_p = jax.nn.log_softmax(logits_of(model.graph, parameters, batch))
        targets = batch["target_output"]
        nll = -jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
        return jnp.sum((targets != PAD) * (0.9 * nll - 0.1 * jnp.mean(log_p, axis=-1)))

    expected = jax.jit(jax.grad(plain))(model.parameters)
    assert np.abs(expected["output_bias"]).max() > 0.1
    assert_gradients_close(loss_and_gradients(model, batch)[1], expected)


def test_the_tables_gradient_is_summed_in_float32():
    """3,000 equal rows: a sum in bfloat16 would stop growing at 256 of them."""
    loss = summed(smoothing=0.0)
    hidden, targets = jnp.ones((1000, 3, 1), jnp.bfloat16), jnp.ones((1000, 3), int)
    gradient = jax.jit(jax.grad(lambda table: loss(hidden, table, None, targets)[0]))(
        jnp.zeros((4, 1))
    )
    np.testing.assert_allclose(gradient[:, 0], [750.0, -2250.0, 750.0, 750.0], rtol=1e-6)
    assert gradient.dtype == jnp.float32


def test_no_array_has_the_logits_of_all_rows(monkeypatch):
    set_chunk(monkeypatch, ONE_SENTENCE)
    loss = summed()
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (
            ((ROWS, LENGTH, D_MODEL), jnp.float32),
            ((VOCAB, D_MODEL), jnp.float32),
            ((ROWS, LENGTH), jnp.int32),
        )
    ]
    gradient = jax.jit(
        jax.grad(lambda hidden, table, targets: loss(hidden, table, None, targets)[0], (0, 1))
    )
    text = gradient.lower(*shapes).compile().as_text()
    assert (
        "f32[3,200]" in text
        and f"[{ROWS * LENGTH},200]" not in text
        and f"[{ROWS},{LENGTH},200]" not in text
    )
