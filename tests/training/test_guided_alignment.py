"""Guided alignment: its loss by hand, and the gradient of a step with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.training.tiny import distance, make_batch, setup, tiny_config
from transformer.model.transformer import attention_weights
from transformer.training.guided_alignment import alignment_loss

HEADS = {
    "training__guided_heads": "1.2,1.1",
    "model__dropout": 0.0,
    "model__attention_implementation": "plain",
}


def guided_batch():
    batch = make_batch([(5, 4), (3, 5), (2, 2)], rows=8, width=6, seed=0)
    links = np.random.default_rng(1).random((8, 6, 6)) < 0.3
    has_token = (batch["target_output"] != 0)[:, :, None] & (batch["source"] != 0)[:, None]
    return batch | {"links": links & has_token}


def test_the_loss_is_the_mean_of_minus_the_log_of_linked_weights():
    attention = jnp.array([[[0.5, 0.25, 0.25], [0.0, 0.9, 0.1], [0.2, 0.3, 0.5]]])
    links = jnp.array([[[True, True, False], [False, False, False], [False, False, True]]])
    expected = [-(np.log(0.5) + np.log(0.25)) / 2, 0.0, -np.log(0.5)]
    np.testing.assert_allclose(alignment_loss(attention, links)[0], expected, rtol=1e-6)
    # finite
    assert float(alignment_loss(jnp.array([[[0.0, 1.0]]]), jnp.array([[[True, False]]]))[0, 0]) < 14


def reported(config, batch):
    parts = setup(config)  # on all devices
    state = parts.initializer.create()
    return parts, state, *parts.step.gradients(state, batch, 0, np.uint32(0))


@pytest.mark.first_case
@pytest.mark.parametrize("r_drop", [1.0, 0.0])  # without dropout both passes of R-Drop are equal
@pytest.mark.parametrize("weights", [[2.0, 0.5, 1.0, *[0.0] * 5], None])
def test_the_gradient_is_that_of_the_weighted_sum_of_both_losses(weights, r_drop):
    batch = guided_batch()
    if weights is not None:
        batch["target_weights"] = np.array(weights, np.float32)[:, None] * (
            batch["target_output"] != 0
        )
    parts, state, gradients, sums = reported(
        tiny_config(**HEADS, training__guided_weight=0.7, training__r_drop=r_drop), batch
    )
    plain = {name: array for name, array in batch.items() if name != "links"}
    _, _, others, other_sums = reported(tiny_config(model__dropout=0.0), plain)

    def guided(parameters):
        model = nnx.merge(parts.step.graph, nnx.State(parameters))
        cross = attention_weights(
            model, *map(jnp.asarray, (batch["source"], batch["target_input"]))
        )["cross"][0]
        losses = (alignment_loss(cross[:, head], jnp.asarray(batch["links"])) for head in (0, 1))
        losses = sum(losses) / 2
        return jnp.sum(losses * batch.get("target_weights", 1.0))

    expected = jax.tree.map(lambda a, b: a + 0.7 * b, others, jax.grad(guided)(state.parameters))
    assert distance(gradients, expected) < 1e-5 and distance(gradients, others) > 1e-3
    # The reported loss leaves it out.
    np.testing.assert_allclose(jax.tree.leaves(sums), jax.tree.leaves(other_sums), rtol=1e-6)
