"""Encoder states and attention weights of texts, compared with the model's own on unpadded rows."""

import jax
import numpy as np
import pytest

from tests.decoding.models import tiny_model
from tests.decoding.test_scoring import VOCABULARY, make_decoder
from transformer.decoding import ensemble
from transformer.model.transformer import attention_weights
from transformer.special_tokens import BOS, EOS

GRAPH, PARAMETERS = tiny_model(12, seed=0, num_layers=2)
DECODER = make_decoder([GRAPH])
REPLICAS = DECODER.place([PARAMETERS])


def tokens(text: str) -> list[int]:
    return [*VOCABULARY.encode([text])[0], EOS]


def model():
    return ensemble.build_models([GRAPH], [PARAMETERS])[0]


def test_states_are_those_of_the_encoder_without_padding():
    texts = ["1 2 3", "", " ".join(["4"] * 19), "5"]
    encodings = DECODER.encode(REPLICAS, texts)
    for text, encoding in zip(texts, encodings, strict=True):
        assert encoding.tokens == tuple(tokens(text)) and encoding.pieces == (*text.split(), "</s>")
        (expected,) = jax.jit(lambda source: model().encoder(source))(np.array([tokens(text)]))
        np.testing.assert_allclose(encoding.states, expected, atol=1e-5)


def test_bertviz_gets_an_array_for_each_layer_and_the_tokens_of_both_axes():
    attention = DECODER.attention(REPLICAS, "1 2 3", "4")
    exported = attention.bertviz()
    layers, heads = attention.encoder.shape[:2]
    source, target = exported.pop("encoder_tokens"), exported.pop("decoder_tokens")
    assert (source, target) == (["1", "2", "3", "</s>"], ["<s>", "4"])
    sides = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}  # queries, keys
    for name, (queries, keys) in sides.items():
        arrays = exported.pop(f"{name}_attention")
        assert [array.shape for array in arrays] == [(1, heads, len(queries), len(keys))] * layers
        np.testing.assert_array_equal(np.concatenate(arrays), getattr(attention, name))
    assert not exported


@pytest.mark.parametrize(("source", "target"), [("1 2 3", "4"), ("", "5 6"), ("7", "")])
def test_weights_and_pieces_belong_together(source, target):
    attention = DECODER.attention(REPLICAS, source, target)
    assert attention.source_pieces == (*source.split(), "</s>")
    assert attention.target_input_pieces == ("<s>", *target.split())
    assert attention.target_output_pieces == (*target.split(), "</s>")
    target_input = [[BOS, *tokens(target)[:-1]]]
    expected = jax.jit(lambda *sides: attention_weights(model(), *sides))(
        np.array([tokens(source)]), np.array(target_input)
    )
    for name, weights in expected.items():
        np.testing.assert_allclose(getattr(attention, name), weights[:, 0], atol=1e-5)
        np.testing.assert_allclose(getattr(attention, name).sum(axis=-1), 1.0, rtol=1e-5)
