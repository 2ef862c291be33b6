"""Forced decoding against sums by hand, the beam's own scores, and single sentences."""

import numpy as np
import pytest
from scipy.special import logsumexp

from configs import base
from tests.decoding.models import teacher_forced, tiny_model
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding import batches
from transformer.decoding.scoring import Scorer
from transformer.decoding.translator import Translator
from transformer.distributed.sharding import one_device
from transformer.errors import UserError
from transformer.special_tokens import EOS

VOCABULARY = IdsVocabulary(12)
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY, 0.0)
MODELS = [tiny_model(12, seed=0), tiny_model(12, seed=1, d_model=12)]
GRAPHS, PARAMETERS = zip(*MODELS, strict=True)
SOURCES = ["1 2 3", "4", "5 6 7 0 1 2 3 4 5 6", ""]
TARGETS = ["3 2 1 0", "", "7 6 5", "1 1"]


def decoding_config(**changes):
    config = base.get_config().decoding
    config.update({"beam_size": 3, "max_extra_length": 4, "max_source_length": 20, "batch_tokens": 64, **changes})
    return config


def ids(text: str) -> list[int]:
    return [*VOCABULARY.encode([text])[0], EOS]


def test_scores_are_sums_of_what_the_models_say():
    scores = Scorer(GRAPHS, TOKENIZER, decoding_config()).score(PARAMETERS, SOURCES, TARGETS)
    sources, outputs = batches.pad([ids(text) for text in SOURCES], 4, 16), [ids(text) for text in TARGETS]
    each = [teacher_forced([model], sources, outputs).astype(np.float64) for model in MODELS]
    # The ensemble's probability is the mean of the models' probabilities.
    mean = logsumexp(each, axis=0) - np.log(2)
    for row, output, score in zip(mean, outputs, scores, strict=True):
        expected = row[np.arange(len(output)), output]
        np.testing.assert_allclose(score.token_log_probabilities, expected, rtol=1e-5, atol=1e-6)
        assert score.log_probability == pytest.approx(expected.sum(), rel=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_a_translation_found_by_the_beam_has_the_score_it_was_found_with(count):
    config = decoding_config()
    translator = Translator(GRAPHS[:count], TOKENIZER, config, n_best=3, mesh=one_device())
    found = translator.translate(PARAMETERS[:count], SOURCES[:3], 1, lambda number: None)
    pairs = [(source, each) for source, nbest in zip(SOURCES, found, strict=False) for each in nbest]
    assert len(pairs) == 9
    scores = Scorer(GRAPHS[:count], TOKENIZER, config).score(
        PARAMETERS[:count], [source for source, _ in pairs], [each.text for _, each in pairs]
    )
    for (_, each), score in zip(pairs, scores, strict=True):
        assert "<unk>" in each.text or score.log_probability == pytest.approx(each.log_probability, rel=1e-5)


def test_too_long_a_line_is_refused_by_its_number():
    scorer = Scorer(GRAPHS, TOKENIZER, decoding_config())
    with pytest.raises(UserError, match="target line 2: 25 pieces with its end, at most 24"):
        scorer.score(PARAMETERS, ["1", "2"], ["1", " ".join(["1"] * 24)])
