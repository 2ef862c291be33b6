"""Outputs do not depend on later tokens, and each stack can be used by itself."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.model.models import (
    LARGE,
    VOCAB,
    Model,
    batch_of,
    random_model,
    sentences,
    tiny_config,
    tiny_transformer,
)
from transformer.model.embedding import Embedding
from transformer.model.single_stack import LanguageModel
from transformer.model.stacks import Encoder
from transformer.support.special_tokens import EOS, PAD

ROWS, SOURCE, TARGET = LARGE
# No row has padding. The test reads another output position in each row.
FULL, LOOKED_AT = [(SOURCE, TARGET)] * ROWS, np.array([0, 3, 5, 8, 11])


def tiny_language_model(**changes) -> Model:
    config = tiny_config(**changes)
    return random_model(lambda: LanguageModel(config, VOCAB, rngs=nnx.Rngs(0)))


def apart(length: int) -> jax.Array:
    """Returns positions for all rows, all different."""
    return jnp.arange(ROWS * length).reshape(ROWS, length)


def input_gradients(
    model: Model, logits_of: Callable[[nnx.Module], jax.Array]
) -> dict[str, np.ndarray]:
    """Returns max |d logits[row, LOOKED_AT[row]] / d input p| for each position p, by stack, for a
    random sum over V.

    The gradient of a learned position equals the gradient of the input that it is added to.
    """
    weights = np.zeros((ROWS, TARGET, VOCAB), np.float32)
    weights[np.arange(ROWS), LOOKED_AT] = np.random.default_rng(1).normal(size=(ROWS, VOCAB))

    def weighted_sum(parameters: dict) -> jax.Array:
        return jnp.sum(logits_of(Model(model.graph, parameters).module) * weights)

    gradients = jax.jit(jax.grad(weighted_sum))(model.parameters)
    return {name: np.abs(stack["positions"]["table"]).max(-1) for name, stack in gradients.items()}


CHANGES = [
    {"attention": "dot_product"},
    {"attention": "additive", "norm_position": "pre"},
    {"attention": "dot_product", "dtype": "bfloat16"},
    {"decoder_self_attention": "ssru"},
    {"decoder_self_attention": "average"},
]
EARLIER = np.arange(TARGET) <= LOOKED_AT[:, None]


@pytest.mark.first_case
@pytest.mark.parametrize("change", CHANGES)
def test_logits_depend_on_the_whole_source_and_no_later_target(change):
    model = tiny_transformer(positions="learned", max_positions=ROWS * SOURCE, **change)
    batch = batch_of(sentences(FULL), list(range(ROWS)), LARGE)
    positions = {"source_positions": apart(SOURCE), "target_positions": apart(TARGET)}
    sizes = input_gradients(
        model, lambda model: model(batch["source"], batch["target_input"], **positions)
    )
    decoder_sizes = sizes["decoder"][apart(TARGET)]
    assert (decoder_sizes[~EARLIER] == 0).all() and (decoder_sizes[EARLIER] > 0).all()
    assert (sizes["encoder"] > 0).all()


@pytest.mark.first_case
@pytest.mark.parametrize("change", CHANGES)
def test_a_language_models_logits_depend_on_no_later_token(change):
    model = tiny_language_model(positions="learned", max_positions=ROWS * TARGET, **change)
    tokens = batch_of(sentences(FULL), list(range(ROWS)), LARGE)["target_input"]

    def logits(model: LanguageModel) -> jax.Array:
        return model.decoder.embedding.logits(model.decoder(tokens, positions=apart(TARGET)))

    sizes = input_gradients(model, logits)["decoder"][apart(TARGET)]
    assert (sizes[~EARLIER] == 0).all() and (sizes[EARLIER] > 0).all()


@pytest.mark.slow
def test_a_language_model_has_no_cross_attention_and_ties_its_embedding():
    model = tiny_language_model()
    assert set(model.parameters["decoder"]["layers"][0]) == {
        "self_attention", "self_attention_connection", "feed_forward", "feed_forward_connection",
    }  # fmt: skip
    assert set(model.parameters) == {"decoder"}
    tokens = batch_of(sentences(FULL), list(range(ROWS)), LARGE)["target_input"]
    hidden = model.module.decoder(tokens)
    expected = np.asarray(hidden) @ np.asarray(model.parameters["decoder"]["embedding"]["table"]).T
    np.testing.assert_allclose(model.module(tokens), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_an_encoder_alone_is_the_encoder_of_the_whole_model():
    config = tiny_config()
    rngs = nnx.Rngs(0)
    encoder = Encoder(
        config, Embedding(VOCAB, config.d_model, dtype="float32", rngs=rngs), rngs=rngs
    )
    whole = tiny_transformer()
    embedding = whole.parameters["decoder"]["embedding"]
    nnx.update(encoder, nnx.State({**whole.parameters["encoder"], "embedding": embedding}))

    source = batch_of(sentences([(7, 3), (4, 6), (8, 1)]), [0, 1, 2], LARGE)["source"]
    memory = encoder(source)
    assert memory.shape == (ROWS, SOURCE, config.d_model)
    np.testing.assert_array_equal(memory, whole.module.encoder(source))


def test_without_source_eos_the_end_of_a_source_is_padding():
    model = tiny_transformer(source_eos=False).module
    batch = batch_of(sentences([(4, 3), (7, 5)]), [0, 1], LARGE)
    source = batch["source"]
    without = jnp.where(source == EOS, PAD, source)
    assert (without != source).sum() == 2
    logits = model(source, batch["target_input"])
    np.testing.assert_allclose(model(without, batch["target_input"]), logits, rtol=1e-5, atol=1e-6)
    assert np.abs(tiny_transformer().module(without, batch["target_input"]) - logits).max() < 1e-5
