"""Known texts: scores compared with sums by hand and with beam search, states and attention with
the model's own.
"""

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

from configs import base
from tests.decoding.models import TOLERANCE, teacher_forced, tiny_model
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding import ensemble
from transformer.decoding.batches import pad
from transformer.decoding.forced_decoding import encode_texts, read_pair, score_pairs
from transformer.decoding.text_decoder import TextDecoder
from transformer.model.transformer import attention_weights
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS

VOCABULARY = IdsVocabulary(12)
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY)
MODELS = [tiny_model(12, seed=0), tiny_model(12, seed=1, d_model=12)]
GRAPHS, PARAMETERS = zip(*MODELS, strict=True)
DEVICES = jax.local_devices()
SOURCES = ["1 2 3", "4", "5 6 7 0 1 2 3 4 5 6", ""]
TARGETS = ["3 2 1 0", "", "7 6 5", "1 1"]


def make_decoding_config(**changes):
    decoding_config = base.get_config().decoding
    decoding_config.update(
        {
            "beam_size": 3,
            "max_extra_length": 4,
            "max_source_length": 20,
            "batch_tokens": 64,
            **changes,
        }
    )
    return decoding_config


def make_decoder(graphs=GRAPHS, shortlist=None, **changes) -> TextDecoder:
    return TextDecoder(graphs, TOKENIZER, make_decoding_config(**changes), DEVICES, shortlist)


def encode(text: str) -> list[int]:
    return [*VOCABULARY.encode([text])[0], EOS]


DECODER = make_decoder()
REPLICAS = DECODER.place(PARAMETERS)


def test_scores_are_sums_of_the_models_log_probabilities():
    scores = score_pairs(DECODER, REPLICAS, list(zip(SOURCES, TARGETS, strict=True)))
    sources, outputs = (
        pad([encode(text) for text in SOURCES], 4, 16),
        [encode(text) for text in TARGETS],
    )
    log_p = [teacher_forced([model], sources, outputs).astype(np.float64) for model in MODELS]
    # The ensemble's probability is the mean of the models' probabilities.
    mean = logsumexp(log_p, axis=0) - np.log(2)
    for row, output, score in zip(mean, outputs, scores, strict=True):
        expected = row[np.arange(len(output)), output]
        np.testing.assert_allclose(score.token_log_probabilities, expected, rtol=1e-5, atol=1e-6)
        assert score.log_probability == pytest.approx(expected.sum(), rel=1e-5)
        assert score.score == pytest.approx(
            expected.sum() / ((5 + len(output)) / 6) ** 0.6, rel=1e-5
        )
        assert score.tokens == tuple(output) and score.pieces == tuple(
            VOCABULARY.pieces[token] for token in output
        )
    assert [score.text for score in scores] == TARGETS


@pytest.mark.first_case
@pytest.mark.parametrize(("count", "dtype"), [(1, "float32"), (2, "float32"), (1, "bfloat16")])
def test_scores_equal_those_of_beam_search(count, dtype):
    models = [tiny_model(12, seed=0, dtype=dtype), tiny_model(12, seed=1, d_model=12, dtype=dtype)][
        :count
    ]
    graphs, parameters = zip(*models, strict=True)
    decoder = make_decoder(graphs)
    replicas = decoder.place(parameters)
    hypotheses = decoder.translate(replicas, SOURCES[:3], n_best=3)
    pairs = [
        (source, best) for source, nbest in zip(SOURCES, hypotheses, strict=False) for best in nbest
    ]
    assert len(pairs) == 9
    scores = score_pairs(decoder, replicas, [(source, best.text) for source, best in pairs])
    for (_, best), score in zip(pairs, scores, strict=True):
        assert (score.text, score.tokens, score.pieces) == (best.text, best.tokens, best.pieces)
        assert score.log_probability == pytest.approx(best.log_probability, rel=TOLERANCE[dtype])
        assert score.score == pytest.approx(best.score, rel=TOLERANCE[dtype])
        tokens = best.token_log_probabilities
        np.testing.assert_allclose(
            score.token_log_probabilities, tokens, atol=10 * TOLERANCE[dtype]
        )


def test_a_text_that_is_too_long_is_refused_with_its_index():
    message = r"pairs\[1\]\[1\]: has 25 tokens including end-of-sentence, must have at most 24"
    with pytest.raises(UserError, match=message):
        score_pairs(DECODER, REPLICAS, [("1", "1"), ("2", " ".join(["1"] * 24))])


MODEL = tiny_model(12, seed=0, num_layers=2)
READER = make_decoder([MODEL.graph])
READER_REPLICAS = READER.place([MODEL.parameters])


def model():
    return ensemble.build_models([MODEL.graph], [MODEL.parameters])[0]


def test_states_are_those_of_the_encoder_without_padding():
    texts = ["1 2 3", "", " ".join(["4"] * 19), "5"]
    encodings = encode_texts(READER, READER_REPLICAS, texts)
    for text, encoding in zip(texts, encodings, strict=True):
        assert encoding.tokens == tuple(encode(text)) and encoding.pieces == (*text.split(), "</s>")
        (expected,) = jax.jit(lambda source: model().encoder(source))(np.array([encode(text)]))
        np.testing.assert_allclose(encoding.states, expected, atol=1e-5)


def test_a_recurrent_decoder_has_no_weights_of_self_attention():
    recurrent = tiny_model(12, seed=0, num_layers=2, decoder_self_attention="ssru")
    reader = make_decoder([recurrent.graph])
    attention = read_pair(reader, reader.place([recurrent.parameters]), "1 2 3", "4")
    assert attention.decoder is None
    assert attention.encoder.shape == (2, 2, 4, 4) and attention.cross.shape == (2, 2, 2, 4)


@pytest.mark.first_case
@pytest.mark.parametrize(("source", "target"), [("1 2 3", "4"), ("", "5 6"), ("7", "")])
def test_weights_and_pieces_belong_together(source, target):
    attention = read_pair(READER, READER_REPLICAS, source, target)
    assert attention.source_pieces == (*source.split(), "</s>")
    assert attention.target_input_pieces == ("<s>", *target.split())
    assert attention.target_output_pieces == (*target.split(), "</s>")
    target_input = [[BOS, *encode(target)[:-1]]]
    expected = jax.jit(lambda *sides: attention_weights(model(), *sides))(
        np.array([encode(source)]), np.array(target_input)
    )
    for name, weights in expected.items():
        np.testing.assert_allclose(getattr(attention, name), weights[:, 0], atol=1e-5)
        np.testing.assert_allclose(getattr(attention, name).sum(axis=-1), 1.0, rtol=1e-5)
