"""Rematerialization: the same gradients from less memory, dropout included."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.model.models import LARGE, LOSS, ROUNDING, batch_of, sentences, tiny_transformer
from tests.training.tiny import distance
from transformer.model.transformer import attention_weights

DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2, "activation_dropout": 0.2}
BATCH = batch_of(sentences([(16, 12), (3, 5), (9, 12), (1, 1), (14, 7)]), list(range(5)), LARGE)


def differentiate(remat: str, dtype: str) -> tuple[jax.Array, dict, int]:
    """Returns the loss of a batch, its gradient, and the bytes that the forward pass stores for the
    backward pass.
    """
    model = tiny_transformer(num_layers=1, remat=remat, dtype=dtype, **DROPOUT)

    def loss(parameters: dict) -> jax.Array:
        return LOSS(
            nnx.merge(model.graph, nnx.State(parameters)),
            BATCH,
            nnx.Rngs(dropout=jax.random.key(0)),
        )[0]

    value, backward = jax.vjp(jax.jit(loss), model.parameters)
    return value, backward(jnp.ones(()))[0], sum(leaf.nbytes for leaf in jax.tree.leaves(backward))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ROUNDING)
def test_rematerialized_layers_give_the_same_gradients_from_less_memory(dtype):
    (loss, stored, bytes_stored), (again, recomputed, bytes_left) = (
        differentiate(r, dtype) for r in ("none", "layers")
    )
    assert float(loss) == pytest.approx(float(again), rel=ROUNDING[dtype])
    assert distance(stored, recomputed) < ROUNDING[dtype]
    assert bytes_left < bytes_stored / 2


@pytest.mark.slow
def test_attention_weights_are_those_of_stored_layers():
    expected, rematerialized = (
        attention_weights(
            tiny_transformer(remat=remat).module, BATCH["source"], BATCH["target_input"]
        )
        for remat in ("none", "layers")
    )
    assert expected.keys() == rematerialized.keys() == {"encoder", "decoder", "cross"}
    assert distance(expected, rematerialized) < 1e-6
