"""The pairs that a validation shows: the first short ones, with their own translations."""

import dataclasses

import jax

from tests.decoding.models import make_decoding_config, tiny_model
from tests.training.tiny import tiny_config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import EMPTY
from transformer.training.held_out import ValidationTexts
from transformer.training.samples import MAX_TOKENS, SampledPairs


def test_samples_are_the_first_short_pairs():
    config = tiny_config(training__samples=2, training__objective="causal_lm")
    vocabulary = IdsVocabulary(12)
    model = tiny_model(12, seed=0)
    decoder = TextDecoder(
        [model.graph],
        Tokenizer(vocabulary, vocabulary),
        make_decoding_config(),
        jax.local_devices(),
    )
    # With EOS, the third source has one token too many and the fourth fits.
    texts = ["", "1", "2 " * MAX_TOKENS, "3 " * (MAX_TOKENS - 1), "4"]
    references = ["5", "6", "7", "8", "9"]
    pairs = SampledPairs(config.training, ValidationTexts(texts, references, decoder, config.data))

    translations = [dataclasses.replace(EMPTY, text=f"translation {i}") for i in range(5)]
    samples = pairs.read(decoder.place([model.parameters]), translations)
    assert samples == [
        (texts[1], "6", "translation 1", None),
        (texts[3], "8", "translation 3", None),
    ]
    # Language models have no attention to show.
    assert pairs.compilations(()) == []
