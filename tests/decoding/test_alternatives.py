"""Alternatives at a position against the uncached model, and against forced prefixes."""

import numpy as np
import pytest

from tests.decoding.models import teacher_forced
from tests.decoding.test_text_decoder import MODEL, VOCABULARY, make_decoder, random_texts, translate
from transformer.decoding.alternatives import alternatives
from transformer.decoding.translation import EMPTY
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS, PAD, SPECIAL, UNK

COUNT = 9  # tokens that may be generated


@pytest.mark.first_case
@pytest.mark.parametrize("prefix", ["", "3", "2 2 5"])
def test_each_of_the_likeliest_tokens_after_the_prefix_is_completed(prefix):
    decoder = make_decoder(beam_size=5, max_extra_length=6)
    tokens = VOCABULARY.encode([prefix])[0]
    for text in (text for text in random_texts(4, longest=9, seed=2) if text):
        found = alternatives(decoder, decoder.place([MODEL.parameters]), text, prefix, COUNT)
        source = np.array([*VOCABULARY.encode([text])[0], EOS], np.int32)
        log_p = teacher_forced([MODEL], source, [[*tokens, EOS]])[0, len(tokens)]
        log_p[[PAD, BOS, UNK]] = -np.inf
        best = np.argsort(-log_p)[:COUNT].tolist()
        assert [translation.tokens[len(tokens)] for translation in found] == best
        chosen = [translation.token_log_probabilities[len(tokens)] for translation in found]
        np.testing.assert_allclose(chosen, log_p[best], atol=1e-4)
        for token, translation in zip(best, found, strict=True):
            ((forced,),) = translate(decoder, [text], constraints={"prefix": [[*tokens, token]]})
            assert forced.tokens == translation.tokens
        assert set(best) == {EOS, *range(SPECIAL, VOCABULARY.size)}
        assert alternatives(decoder, decoder.place([MODEL.parameters]), text, prefix, 3) == found[:3]


@pytest.mark.slow
def test_keys_forbid_tokens_and_the_limit_leaves_only_the_end():
    parameters = make_decoder().place([MODEL.parameters])
    decoders = make_decoder(beam_size=5), make_decoder(beam_size=5, min_length=3)
    free, short = (alternatives(decoder, parameters, "1", "3", COUNT) for decoder in decoders)
    assert len(free) == COUNT and any(translation.text == "3" for translation in free)
    assert len(short) == COUNT - 1 and all(len(translation.tokens) > 3 for translation in short)
    (only,) = alternatives(make_decoder(max_extra_length=2, max_length_factor=0.0), parameters, "1", "3 3", 4)
    assert only.text == "3 3"
    assert alternatives(make_decoder(), parameters, " ", "3", 4) == [EMPTY]


@pytest.mark.parametrize(
    ("prefix", "count", "message"),
    [
        ("1", 5, "^count=5: must be at most 4, twice decoding.beam_size; raise that"),
        ("99", 4, "^prefix: '99' has characters that the vocabulary lacks"),
        ("1 1 1 1 1 1", 4, "^line 1: prefix and required phrases have 6 tokens, an output may have 5; shorten"),
    ],
)
def test_what_cannot_be_completed_is_refused(prefix, count, message):
    decoder = make_decoder()
    with pytest.raises(UserError, match=message):
        alternatives(decoder, decoder.place([MODEL.parameters]), "1", prefix, count)
