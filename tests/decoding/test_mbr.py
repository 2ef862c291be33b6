"""Minimum Bayes risk decoding, compared with sacreBLEU's scores of each pair and with the package
mbrs.
"""

import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from configs import base
from tests.decoding.test_text_decoder import make_decoder, random_texts, translate
from transformer.config.loading import override
from transformer.decoding.mbr import UTILITIES
from transformer.decoding.translation import EMPTY
from transformer.support.errors import UserError

SACREBLEU = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}
WORDS = [
    "a",
    "b",
    "The",
    "the",
    "dog,",
    "dogs.",
    "(hi)",
    "ß",
    "über",
    "3.5",
    "--",
    "x’s",
    "e\u0301",
]


def random_sentences(count: int, longest: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    ends = ["", " ", ".", " \u2003x"]
    return [
        " ".join(draw.choices(WORDS, k=draw.randint(0, longest))) + draw.choice(ends)
        for _ in range(count)
    ]


def pairwise(utility: str, texts: list[str]) -> np.ndarray:
    scores = [
        SACREBLEU[utility].sentence_score(text, [reference]).score
        for text in texts
        for reference in texts
    ]
    return np.array(scores).reshape(len(texts), len(texts))


def expected_utilities(utility: str, texts: list[str], weights=None) -> list[tuple[str, float]]:
    """Returns the different texts by the mean of their scores by all texts, the best and first
    drawn first.
    """
    means = dict(
        zip(texts, np.average(pairwise(utility, texts), axis=1, weights=weights), strict=True)
    )
    return sorted(
        ((text, means[text]) for text in dict.fromkeys(texts)), key=lambda pair: -round(pair[1], 9)
    )


@pytest.mark.parametrize("utility", SACREBLEU)
def test_pairwise_scores_are_sacrebleu_s(utility):
    texts = [
        [""],
        ["", " "],
        ["a"],
        ["a", ""],
        ["ab" * 40, "ba" * 3],
        *(random_sentences(7, 9, i) for i in range(60)),
    ]
    for group in texts:
        np.testing.assert_allclose(UTILITIES[utility](group), pairwise(utility, group), rtol=1e-12)


def test_scores_of_random_sentences_are_not_trivial():
    for utility in SACREBLEU:
        scores = pairwise(utility, random_sentences(40, 9, seed=1))
        assert (scores == 0).any() and len(np.unique(scores[(scores > 0) & (scores < 99)])) > 200


@pytest.mark.slow
@pytest.mark.parametrize("utility", SACREBLEU)
def test_samples_are_ranked_by_their_expected_utility(utility):
    texts = [text for text in random_texts(12, longest=9, seed=2) if text]
    for text, found in zip(texts, translate(make_mbr(utility), texts, n_best=6), strict=True):
        # The samples of line 0, whatever the line of the text.
        (drawn,) = translate(
            make_decoder(strategy="sample", temperature=1.5), [text], n_best=24, first_line=0
        )
        ranked = expected_utilities(utility, [sample.text for sample in drawn])[:6]
        assert [best.text for best in found] == [known for known, _ in ranked]
        np.testing.assert_allclose(
            [best.score for best in found], [score for _, score in ranked], rtol=1e-12
        )
        assert {best.score_kind for best in found} == {f"expected_{utility}"}
        first = {sample.text: sample for sample in reversed(drawn)}
        assert all(best.tokens == first[best.text].tokens for best in found)


def test_texts_that_are_drawn_often_count_as_often():
    (drawn,) = translate(
        make_decoder(strategy="sample", temperature=1.5), ["1 2"], n_best=24, first_line=0
    )
    assert max(Counter(sample.text for sample in drawn).values()) > 1
    different = expected_utilities("chrf", list(dict.fromkeys(sample.text for sample in drawn)))
    assert different != expected_utilities("chrf", [sample.text for sample in drawn])


def make_mbr(utility: str, **changes):
    settings = {"strategy": "mbr", "mbr_samples": 24, "temperature": 1.5, "mbr_utility": utility}
    return make_decoder(**settings | changes)


@pytest.mark.first_case
@pytest.mark.parametrize("utility", SACREBLEU)
def test_hypotheses_of_a_beam_are_ranked_by_their_expected_utility(utility):
    texts = [text for text in random_texts(12, longest=9, seed=3) if text]
    beams = translate(make_decoder(beam_size=8), texts, n_best=8)
    ranked = translate(make_mbr(utility, strategy="mbr_beam", beam_size=8), texts, n_best=8)
    for beam, found in zip(beams, ranked, strict=True):
        weights = [math.exp(hypothesis.log_probability) for hypothesis in beam]
        expected = expected_utilities(utility, [hypothesis.text for hypothesis in beam], weights)
        assert [best.text for best in found] == [text for text, _ in expected]
        np.testing.assert_allclose(
            [best.score for best in found], [score for _, score in expected], rtol=1e-6
        )
    assert [beam[0].text for beam in beams] != [found[0].text for found in ranked]
    assert [found[:1] for found in ranked] == translate(
        make_mbr(utility, strategy="mbr_beam", beam_size=8), texts
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mbr", "mbr_beam"])
def test_neighbours_lines_and_batch_size_change_nothing(strategy):
    texts = random_texts(24, longest=15, seed=4)
    decoder = make_mbr("chrf", strategy=strategy, beam_size=6, max_extra_length=9)
    together = translate(decoder, texts)
    assert [[EMPTY]] * texts.count("") == [
        best for text, best in zip(texts, together, strict=True) if not text
    ]
    one_by_one = [
        translate(decoder, [text], first_line=line)[0] for line, text in enumerate(texts, start=7)
    ]
    backwards = translate(decoder, texts[::-1])[::-1]
    other_rows = translate(
        make_mbr("chrf", strategy=strategy, beam_size=6, max_extra_length=9, batch_tokens=1), texts
    )
    for (expected,), *others in zip(together, one_by_one, backwards, other_rows, strict=True):
        for (best,) in others:
            assert best.text == expected.text and best.score == pytest.approx(
                expected.score, abs=1e-9
            )


@pytest.mark.slow
def test_the_seed_and_the_number_of_samples_matter():
    texts = random_texts(20, longest=9, seed=5)
    settings = [{}, {"seed": 1}, {"mbr_samples": 8}, {"epsilon": 0.2}, {"mbr_utility": "bleu"}]
    found = [translate(make_mbr("chrf", **changes), texts) for changes in settings]
    assert all(first != second for first, second in itertools.combinations(found, 2))


def test_wrong_values_are_refused():
    for key, value, message in (
        ("mbr_utility", "comet", "must be one of chrf, bleu"),
        ("mbr_samples", "0", "must be from 1 to 4096"),
        ("epsilon", "1", "must be at least 0 and below 1"),
    ):
        with pytest.raises(UserError, match=f"decoding.{key}={value}.*: {message}"):
            override(base.get_config(), [(f"decoding.{key}", value)])
    with pytest.raises(
        UserError, match="^n_best=25: must be at most decoding.mbr_samples=24; raise that"
    ):
        translate(make_mbr("chrf"), ["1"], n_best=25)


MBRS = """
import json, sys
from mbrs import metrics
from mbrs.decoders import DecoderMBR

metric = {"chrf": metrics.MetricChrF, "bleu": metrics.MetricBLEU}[sys.argv[1]]
decoder = DecoderMBR(DecoderMBR.Config(), metric(metric.Config(num_workers=1)))
outputs = [decoder.decode(texts, texts, nbest=1) for texts in json.load(sys.stdin)]
print(json.dumps([(output.idx[0], output.score[0]) for output in outputs]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("utility", SACREBLEU)
def test_the_package_mbrs_agrees(utility):
    """MBRS_PYTHON names the interpreter of an environment with mbrs, which needs PyTorch."""
    python = os.environ.get("MBRS_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import mbrs"], capture_output=True).returncode:
        pytest.skip("mbrs is not installed")
    lists = [random_sentences(16, 9, seed) for seed in range(20)]
    run = subprocess.run(
        [python, "-c", MBRS, utility], input=json.dumps(lists), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    for texts, (index, score) in zip(lists, json.loads(run.stdout), strict=True):
        expected = UTILITIES[utility](texts).mean(axis=1)
        assert [score, expected[index]] == pytest.approx([expected.max()] * 2, rel=1e-5)
