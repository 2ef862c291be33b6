"""Features of translations and probabilities of words, worked out by hand or by single passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.decoding.models import make_decoding_config, tiny_model
from tests.decoding.test_forced_decoding import TOKENIZER
from transformer.data.tokenizers.byte_vocabulary import ByteVocabulary
from transformer.decoding import ensemble
from transformer.decoding.confidence import compute_features, probabilities, split_words
from transformer.decoding.forced_decoding import score_pairs, score_tokens
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import EMPTY, Translation
from transformer.support.special_tokens import EOS, WORD_START

PASSES = 3
SOURCES = ["1 2 3", "4", "5 6 7 0 1 2 3 4 5 6", "2 2 2 2"]
TARGETS = ["3 2 1 0", "1", "7 6 5", "1 1"]


def make_decoder(*models, batch_tokens: int = 64):
    graphs, parameters = zip(*models, strict=True)
    config = make_decoding_config(batch_tokens=batch_tokens, max_source_length=20)
    decoder = TextDecoder(graphs, TOKENIZER, config, jax.local_devices())
    return decoder, decoder.place(parameters)


def scored_pairs(decoder, parameters):
    scored = score_pairs(decoder, parameters, list(zip(SOURCES, TARGETS, strict=True)))
    return list(zip(decoder.source_tokens(SOURCES, 1), scored, strict=True))


def make_translation(pieces: list[str], log_p: list[float]) -> Translation:
    tokens = (*range(5, 4 + len(pieces)), EOS)
    return Translation("", tokens, tuple(pieces), tuple(log_p), sum(log_p), 0.0)


def test_mean_and_lowest_are_those_of_the_tokens_with_eos():
    decoder, parameters = make_decoder(tiny_model(12, seed=0))
    one = make_translation(["1", "2", "</s>"], [-0.25, -1.5, -0.5])
    two = make_translation(["</s>"], [-2.0])
    features = compute_features(decoder, parameters, [([5, EOS], one), ([6, EOS], two)], 0)
    assert set(features) == {"mean", "lowest"}
    assert features["mean"].tolist() == [-0.75, -2.0]
    assert features["lowest"].tolist() == [-1.5, -2.0]


def test_passes_with_dropout_are_single_passes_with_their_keys():
    model = tiny_model(12, seed=0, dropout=0.3)
    decoder, parameters = make_decoder(model)
    pairs = scored_pairs(decoder, parameters)
    features = compute_features(decoder, parameters, pairs, PASSES)
    (module,) = ensemble.build_models([model.graph], jax.device_put([model.parameters]))
    for i, (source, one) in enumerate(pairs):
        # A row of the padded length that the decoder gives the pair.
        arrays = np.zeros((2, 1, 16), np.int32)
        arrays[0, 0, : len(source)] = source
        arrays[1, 0, : len(one.tokens)] = one.tokens
        means = [
            score_tokens(
                [module], *jnp.asarray(arrays), nnx.Rngs(dropout=jax.random.key(seed))
            ).sum()
            / len(one.tokens)
            for seed in range(PASSES)
        ]
        assert len(set(map(float, means))) == PASSES
        assert features["mean_of_passes"][i] == pytest.approx(np.mean(means), abs=1e-4)
        assert features["deviation_of_passes"][i] == pytest.approx(np.std(means), abs=1e-4)


@pytest.mark.first_case
@pytest.mark.parametrize("dropout_passes", [0, PASSES])
def test_features_do_not_depend_on_neighbours_or_batch_size(dropout_passes):
    models = [tiny_model(12, seed, dropout=0.3) for seed in (0, 1)]
    decoder, parameters = make_decoder(*models)
    pairs = scored_pairs(decoder, parameters)
    together = compute_features(decoder, parameters, pairs, dropout_passes)
    assert set(together) == {"mean", "lowest", "mean_of_passes", "deviation_of_passes"}
    single, single_parameters = make_decoder(*models, batch_tokens=1)
    for i, pair in enumerate(pairs):
        alone = compute_features(single, single_parameters, [pair], dropout_passes)
        for name, values in alone.items():
            assert values[0] == pytest.approx(together[name][i], abs=1e-4)


def test_the_deviation_of_an_ensemble_is_over_its_models():
    models = [tiny_model(12, seed) for seed in (0, 1, 2)]
    decoder, parameters = make_decoder(*models)
    pairs = scored_pairs(decoder, parameters)
    features = compute_features(decoder, parameters, pairs, 0)
    means = []
    for model in models:
        scored = scored_pairs(*make_decoder(model))
        means.append([one.log_probability / len(one.tokens) for _, one in scored])
    assert features["mean_of_passes"] == pytest.approx(np.mean(means, axis=0), abs=1e-4)
    assert features["deviation_of_passes"] == pytest.approx(np.std(means, axis=0), abs=1e-4)


def test_equal_models_agree():
    model = tiny_model(12, seed=0)
    decoder, parameters = make_decoder(model, model)
    features = compute_features(decoder, parameters, scored_pairs(decoder, parameters), 0)
    assert features["deviation_of_passes"] == pytest.approx(0, abs=1e-5)
    assert features["mean_of_passes"] == pytest.approx(features["mean"], abs=1e-4)


def test_no_translations_have_no_features():
    decoder, parameters = make_decoder(tiny_model(12, seed=0, dropout=0.3))
    features = compute_features(decoder, parameters, [], PASSES)
    assert all(values.shape == (0,) for values in features.values())


def test_probabilities_are_logistic_and_never_overflow():
    weights = {"intercept": 1.0, "mean": 2.0}
    means = np.array([-1.0, 0.0, -1e6, 1e6])
    expected = [1 / (1 + np.exp(1.0)), 1 / (1 + np.exp(-1.0)), 0.0, 1.0]
    assert probabilities(weights, {"mean": means}) == pytest.approx(expected)


def test_the_probability_of_a_word_is_the_product_over_its_tokens():
    vocabulary = ByteVocabulary()
    text = "ab \u00fc c"
    tokens = vocabulary.encode([text])[0]
    pieces = [vocabulary.pieces[token] for token in tokens]
    assert pieces.count(WORD_START) == 2
    log_p = -np.arange(1, len(tokens) + 1) / 8
    one = Translation(
        text, (*tokens, EOS), (*pieces, "</s>"), (*log_p.tolist(), -9.0), log_p.sum() - 9, 0.0
    )
    words, values = split_words(one, vocabulary)
    assert words == ["ab", "\u00fc", "c"]
    # "ab", then the space with both bytes of the second word, then a space and "c"
    sums = [log_p[:2].sum(), log_p[2:5].sum(), log_p[5:].sum()]
    assert values == pytest.approx(np.exp(sums))


def test_a_word_of_several_bytes_alone_is_one_word():
    vocabulary = ByteVocabulary()
    (tokens,) = vocabulary.encode(["f\u00fcr"])
    pieces = [vocabulary.pieces[token] for token in tokens]
    one = Translation("", (*tokens, EOS), (*pieces, "</s>"), (-0.5,) * 5, -2.5, 0.0)
    words, values = split_words(one, vocabulary)
    assert words == ["f\u00fcr"] and values == pytest.approx([np.exp(-2.0)])


def test_end_of_sentence_and_empty_translations_have_no_words():
    vocabulary = TOKENIZER.target
    assert split_words(make_translation(["</s>"], [-1.0]), vocabulary) == ([], [])
    assert split_words(EMPTY, vocabulary) == ([], [])
