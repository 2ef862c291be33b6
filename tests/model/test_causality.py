"""No output sees a later token, and each stack is a model by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.model.models import SMALL, VOCAB, Model, batch_of, random_model, sentences, tiny_config, tiny_transformer
from transformer.model.embedding import Embedding
from transformer.model.stacks import Encoder
from transformer.model.transformer import LanguageModel
from transformer.training.step import merge

ROWS, SOURCE, TARGET = SMALL
# Every row as long as its shape, so that every position is a real one.
FULL = [(SOURCE, TARGET)] * ROWS


def tiny_language_model(**changes) -> Model:
    config = tiny_config(**changes)
    return random_model(lambda: LanguageModel(config, VOCAB, rngs=nnx.Rngs(0)))


def dependence(model: Model, stack: str, inputs: tuple[jax.Array, ...]) -> np.ndarray:
    """Entry (t, u): the largest |d logits[t] / d input u| of a stack, summed over the batch and randomly over V.

    Learned positions stand for the inputs: a position's row is added to the embedding of the token that stands there.
    """
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, 1, VOCAB)).astype(np.float32))

    def outputs(table):
        parameters = {**model.parameters, stack: {**model.parameters[stack], "positions": {"table": table}}}
        return jnp.sum(merge(model.graph, parameters)(*inputs) * weights, axis=(0, 2))

    jacobian = jax.jacrev(outputs)(model.parameters[stack]["positions"]["table"])
    return np.abs(jacobian).max(-1)


@pytest.mark.parametrize("change", [{"attention": "dot_product"}, {"attention": "additive", "norm_position": "pre"}])
def test_logits_depend_on_no_later_input_and_on_every_earlier_one(change):
    batch = batch_of(sentences(FULL), [0, 1, 2], SMALL)
    inputs = (batch["source"], batch["target_input"])
    earlier = np.tri(TARGET, dtype=bool)

    model = tiny_transformer(positions="learned", **change)
    on_target = dependence(model, "decoder", inputs)[:, :TARGET]
    assert (on_target[~earlier] == 0).all() and (on_target[earlier] > 0).all()
    assert (dependence(model, "encoder", inputs)[:, :SOURCE] > 0).all()

    on_own = dependence(tiny_language_model(positions="learned", **change), "decoder", inputs[1:])[:, :TARGET]
    assert (on_own[~earlier] == 0).all() and (on_own[earlier] > 0).all()


def test_a_language_model_has_no_cross_attention_and_ties_its_embedding():
    model = tiny_language_model()
    assert set(model.parameters["decoder"]["layers"][0]) == {
        "self_attention", "self_attention_connection", "feed_forward", "feed_forward_connection",
    }  # fmt: skip
    assert set(model.parameters) == {"decoder"}
    tokens = batch_of(sentences(FULL), [0, 1, 2], SMALL)["target_input"]
    hidden = model.module.decoder(tokens)
    expected = np.asarray(hidden) @ np.asarray(model.parameters["decoder"]["embedding"]["table"]).T
    np.testing.assert_allclose(model.module(tokens), expected, rtol=1e-5, atol=1e-5)


def test_an_encoder_alone_is_the_encoder_of_the_whole_model():
    config = tiny_config()
    rngs = nnx.Rngs(0)
    encoder = Encoder(config, Embedding(VOCAB, config.d_model, dtype=jnp.dtype("float32"), rngs=rngs), rngs=rngs)
    whole = tiny_transformer()
    embedding = whole.parameters["decoder"]["embedding"]
    nnx.update(encoder, nnx.State({**whole.parameters["encoder"], "embedding": embedding}))

    source = batch_of(sentences([(7, 3), (4, 6), (8, 1)]), [0, 1, 2], SMALL)["source"]
    memory = encoder(source)
    assert memory.shape == (ROWS, SOURCE, config.d_model)
    np.testing.assert_array_equal(memory, whole.module.encoder(source))
