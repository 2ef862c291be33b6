"""Span corruption: the masked spans, their distribution, and the corpus of the pairs."""

import itertools
from collections import Counter

import numpy as np
import pytest

from tests.data.files import text_config, write_pairs
from transformer.data.corpus import corpus
from transformer.data.corpus.spans import SpanMasking, mask_spans
from transformer.data.tokenizers import tokenizer
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS

SENTINELS = [90, 91, 92, 93]
MASKING = SpanMasking(SENTINELS, fraction=0.15, mean_length=3.0)


def filled(source, target):
    """Returns the sentence whose spans the target has, and the lengths of the gaps and spans."""
    spans = {}
    for token in target:
        if token in SENTINELS:
            spans[token] = []
            last = token
        else:
            spans[last].append(token)
    assert [*spans] == [token for token in source if token in SENTINELS]
    gaps = [len([*run]) for is_gap, run in itertools.groupby(source, lambda x: x < 90) if is_gap]
    tokens = [spans.get(token, [token]) for token in source]
    return [*itertools.chain(*tokens)], gaps, [len(span) for span in spans.values()]


@pytest.mark.parametrize("length", [*range(1, 30), 60, 200])
def test_source_and_target_together_are_the_sentence_with_the_counted_lengths(length):
    sentence = [4 + i % 80 for i in range(length)]
    (num_masked,), (num_spans,) = MASKING.counts(np.array([length]))
    for seed in range(20):
        source, target = MASKING.apply(sentence, seed)
        restored, _, spans = filled(source, target)
        assert restored == sentence
        assert sum(spans) == num_masked and len(spans) == num_spans and min(spans) > 0
        assert (len(source), len(target)) == (
            length - num_masked + num_spans,
            num_masked + num_spans,
        )
    # 15 % in spans of 3 tokens, with at least one masked token, and at most a span per sentinel.
    assert num_masked == max(1, round(0.15 * length))
    assert num_spans == min(max(1, round(num_masked / 3)), 4)


def test_every_place_is_masked_and_spans_follow_the_uniform_distribution():
    # Two masked tokens of five: one span at 4 places, of two tokens.
    sentence = [10, 11, 12, 13, 14]
    one_span = SpanMasking(SENTINELS, fraction=0.4, mean_length=2.0)
    counts = Counter(tuple(one_span.apply(sentence, seed)[1][1:]) for seed in range(4000))
    assert counts.keys() == {(10, 11), (11, 12), (12, 13), (13, 14)}
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in counts.values())
    # Two spans of one token: 6 pairs of places that are not neighbours.
    two_spans = SpanMasking(SENTINELS, fraction=0.4, mean_length=1.0)
    pairs = Counter(tuple(two_spans.apply(sentence, seed)[1][1::2]) for seed in range(6000))
    expected = [pair for pair in itertools.combinations(sentence, 2) if pair[1] - pair[0] > 1]
    assert sorted(pairs) == expected
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in pairs.values())


EVERY = np.arange(40)


@pytest.fixture
def config(tmp_path):
    lines = [" ".join(f"w{(i * j) % 7}" for j in range(1, 3 + i % 9)) for i in range(40)]
    write_pairs(tmp_path, "train", [(line, line) for line in lines])
    config = text_config(tmp_path, tmp_path / "cache")
    config.data.target_language = ""
    config.tokenizer.kind = "byte"
    config.tokenizer.vocab_size = 300
    config.tokenizer.user_symbols = ("<extra_id_1>", "<extra_id_0>")
    config.training.objective = "span_corruption"
    (tmp_path / "workdir").mkdir()
    return config


def corpora(config, tmp_path):
    made = tokenizer.prepare(config, tmp_path / "workdir")
    texts = corpus.prepare(config, made, "train")
    return texts, mask_spans(texts, config, made)


def test_an_epoch_is_a_function_of_seed_epoch_and_sentence(config, tmp_path):
    texts, masked = corpora(config, tmp_path)

    def read(pairs, order):
        return [
            np.split(tokens, np.cumsum(lengths))[:-1]
            for tokens, lengths in (pairs.sequences(side, order) for side in (0, 1))
        ]

    def different(one, two):
        return sum(not np.array_equal(a, b) for a, b in zip(one[0], two[0], strict=True))

    order = np.array([7, 3, 21, 3])
    first = read(masked.epoch(0, seed=1), EVERY)
    again = read(masked.epoch(0, seed=1), order)
    for side in (0, 1):
        for position, number in enumerate(order):
            np.testing.assert_array_equal(again[side][position], first[side][number])
    assert different(first, read(masked.epoch(1, seed=1), EVERY)) > 20
    assert different(first, read(masked.epoch(0, seed=2), EVERY)) > 20

    # The plan knows the lengths, and sentinels are in the order of their numbers.
    epoch = masked.epoch(0, seed=1)
    np.testing.assert_array_equal(
        epoch.lengths, [[len(source), len(target)] for source, target in zip(*first, strict=True)]
    )
    for sentence, source, target in zip(
        texts.sentences(0, np.arange(len(texts))), *first, strict=True
    ):
        assert source[-1] == target[-1] == EOS
        assert target[0] == 261 and {*source} & {260, 261} == {*target} & {260, 261}
        kept = [token for token in [*source, *target] if token not in (260, 261, EOS)]
        assert sorted(kept) == sorted(sentence)


def test_validation_always_reads_the_same_spans(config, tmp_path):
    _, masked = corpora(config, tmp_path)
    numbers = np.arange(len(masked))
    _, again = corpora(config, tmp_path)
    for side in (0, 1):
        found = masked.sequences(side, numbers)[0]
        np.testing.assert_array_equal(found, again.sequences(side, numbers)[0])
        trained, _ = masked.epoch(0, seed=1).sequences(side, numbers)
        assert found.tolist() != trained.tolist()


@pytest.mark.parametrize(
    ("fraction", "mean_length"), [(0.15, 3.0), (0.5, 1.0), (0.9, 1.0), (1.0, 3.0)]
)
def test_neither_side_is_longer_than_the_sentence(fraction, mean_length):
    lengths = np.arange(2, 70)
    masking = SpanMasking(list(range(300, 340)), fraction, mean_length)
    num_masked, num_spans = masking.counts(lengths)
    assert (num_spans >= 1).all()
    assert (lengths - num_masked + num_spans <= lengths).all()
    assert (num_masked + num_spans <= lengths).all()


def test_a_vocabulary_without_sentinels_is_refused(config, tmp_path):
    config.tokenizer.user_symbols = ()
    with pytest.raises(UserError, match="objective=span_corruption: the vocabulary has no senti"):
        corpora(config, tmp_path)
