"""Segmentations compared with probabilities computed by hand, and with SentencePiece where they are
deterministic.
"""

import io
import math
import random
from collections import Counter

import pytest
import sentencepiece

from tests.data.files import text_config
from transformer.data.sources import source as sources
from transformer.data.tokenizers import subword_sampling
from transformer.data.tokenizers.subword_sampling import BpeDropout, UnigramSampler
from transformer.data.tokenizers.vocabulary import SentencePieceVocabulary
from transformer.support.special_tokens import BOS, EOS, PAD, UNK

DRAWS = 20_000


def frequencies(sampler, word):
    generator = random.Random(0)
    counts = Counter(" ".join(sampler.segment(word, generator)) for _ in range(DRAWS))
    return {segmentation: count / DRAWS for segmentation, count in counts.items()}


def test_bpe_dropout_of_a_chain_of_merges():
    drawn = frequencies(
        BpeDropout({"ab": 0.0, "abc": -1.0, "a": -2.0, "b": -3.0, "c": -4.0}, 0.3), "abc"
    )
    assert drawn == pytest.approx({"a b c": 0.3, "ab c": 0.7 * 0.3, "abc": 0.7 * 0.7}, abs=0.01)


def test_bpe_dropout_of_merges_that_exclude_each_other():
    drawn = frequencies(BpeDropout({"ab": 0.0, "bc": -1.0}, 0.3), "abc")
    # The better merge unless it is skipped, then the other one unless it is skipped too.
    assert drawn == pytest.approx({"ab c": 0.7, "a bc": 0.3 * 0.7, "a b c": 0.3 * 0.3}, abs=0.01)


def test_bpe_dropout_draws_again_on_cached_paths():
    scores = {"ab": 0.0, "cd": -1.0, "bc": -2.0, "abcd": -3.0}
    rate, kept = 0.4, 0.6
    expected = {
        "abcd": kept * kept * kept + rate * kept * kept * kept,  # ab, cd, abcd or cd, ab, abcd
        "ab cd": kept * kept * rate + rate * kept * kept * rate,
        "ab c d": kept * rate,
        "a b cd": rate * kept * rate,
        "a bc d": rate * rate * kept,
        "a b c d": rate**3,
    }
    assert sum(expected.values()) == pytest.approx(1)
    assert frequencies(BpeDropout(scores, rate), "abcd") == pytest.approx(expected, abs=0.01)


def test_the_cache_of_bpe_dropout_is_bounded_and_changes_no_sample(monkeypatch):
    word = "abcdefghijkl"
    spans = [word[start:end] for start in range(12) for end in range(start + 2, 13)]
    scores = {piece: -float(rank) for rank, piece in enumerate(spans)}

    def draws() -> list[list[str]]:
        sampler, generator = BpeDropout(scores, 0.5), random.Random(0)
        segmentations = [sampler.segment(word, generator) for _ in range(3000)]
        assert sampler._next_path.cache_info().currsize <= subword_sampling._CACHED_PATHS
        return segmentations

    expected = draws()
    monkeypatch.setattr(subword_sampling, "_CACHED_PATHS", 8)
    assert draws() == expected


def test_sentences_without_spaces_are_not_cached():
    scores = {"a": -1.0, "b": -2.0, "ab": -3.0}
    bpe, unigram = BpeDropout(scores, 0.5), UnigramSampler(scores, 1.0)
    for sampler, cache in ((bpe, bpe._first_path), (unigram, unigram._cached_forward)):
        for word, cached in (("ab" * 16, 1), ("ab" * 17, 1)):
            assert "".join(sampler.segment(word, random.Random(0))) == word
            assert cache.cache_info().currsize == cached


def test_unigram_draws_in_proportion_to_probability_to_the_power_alpha():
    probabilities = {"a": 0.1, "b": 0.2, "c": 0.3, "ab": 0.25, "bc": 0.15}
    scores = {piece: math.log(probability) for piece, probability in probabilities.items()}
    weights = {"a b c": 0.1 * 0.2 * 0.3, "ab c": 0.25 * 0.3, "a bc": 0.1 * 0.15}
    powers = {segmentation: weight**0.5 for segmentation, weight in weights.items()}
    expected = {
        segmentation: power / sum(powers.values()) for segmentation, power in powers.items()
    }
    assert frequencies(UnigramSampler(scores, 0.5), "abc") == pytest.approx(expected, abs=0.01)


def test_unigram_splits_off_unknown_characters():
    assert UnigramSampler({"a": -1.0, "aa": -1.5}, 1.0).segment("a犬", random.Random(0)) == [
        "a",
        "犬",
    ]


def train(texts, kind, **options):
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=content,
        model_type=kind,
        hard_vocab_limit=False,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
        **options,
    )
    return SentencePieceVocabulary(content.getvalue())


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize(
    ("kind", "rate"), [("bpe", 1e-9), ("unigram", 500.0)]
)  # almost no dropout; all weight on the best
def test_deterministic_sampling_equals_sentencepiece(multi30k, kind, rate, byte_fallback):
    config = text_config(multi30k, multi30k)
    texts = [text for side in sources.read_pairs(config.data, "valid") for text in side][:1500]
    vocabulary = train(
        texts, kind, vocab_size=500 if byte_fallback else 150, byte_fallback=byte_fallback
    )
    texts = [*texts, " ﬁ  犬犬 x犬", "", "Ⅷ"]
    best = vocabulary.encode(texts)
    assert vocabulary.sample(best, range(len(best)), rate) == best
