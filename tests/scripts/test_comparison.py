"""The numbers of a comparison, compared with sacreBLEU's or with numbers worked out by other means."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from scripts.comparison import significance
from scripts.comparison.result import length_bins, make_result
from scripts.evaluations import read_evaluation
from scripts.systems import group_systems
from tests.scripts.evaluated import add_evaluation, damage, make_run, make_sentences

REFERENCES = make_sentences(60, seed=0)
GOOD, BAD = damage(REFERENCES, 0.1, seed=1), damage(REFERENCES, 0.15, seed=2)


@pytest.fixture
def result(tmp_path):
    """Compares systems, each given as a list of the translations of its seeds."""

    def make(*translations: list[list[str]], samples: int = 100, sentences: int = 5) -> dict:
        evaluations = []
        for number, seeds in enumerate(translations):
            for seed, hypotheses in enumerate(seeds):
                path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
                make_run(path, seed=str(seed), model__dropout=f"0.{number}")
                evaluations.append(read_evaluation(add_evaluation(path, "valid-step9", hypotheses, REFERENCES)))
        return make_result(group_systems(evaluations), REFERENCES, samples, sentences)

    return make


def test_with_one_seed_results_equal_sacrebleu_s_paired_bootstrap(result, monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    worse = damage(REFERENCES, 0.3, seed=3)
    named = [("first", GOOD), ("second", BAD), ("third", worse)]
    test = PairedTest(named, {"bleu": BLEU(trg_lang="de"), "chrf": CHRF()}, [REFERENCES], "bs", n_samples=150)
    signatures, expected = test()
    found = result([GOOD], [BAD], [worse], samples=150)
    for name, official in (("bleu", "BLEU"), ("chrf", "chrF2")):
        assert found["signatures"][name] == str(signatures[official])
        for system, theirs in zip(found["systems"], expected[official], strict=True):
            assert system[name]["mean"] == theirs.score
            assert system[name]["interval"] == pytest.approx((theirs.mean - theirs.ci, theirs.mean + theirs.ci))
        for difference, theirs in zip(found["differences"], expected[official][1:], strict=True):
            assert difference[name]["p_value"] == theirs.p_value
            assert difference[name]["difference"] == theirs.score - expected[official][0].score
    assert 0.001 < found["differences"][0]["bleu"]["p_value"] < 1  # otherwise the test would be too easy


def test_interval_of_the_difference_equals_that_of_resampled_texts(result):
    samples, count = 40, len(REFERENCES)
    drawn = np.random.default_rng(12345).choice(count, size=(samples, count), replace=True)
    differences = []
    for row in drawn:
        good, bad, references = ([texts[number] for number in row] for texts in (GOOD, BAD, REFERENCES))
        scores = [BLEU(trg_lang="de", force=True).corpus_score(each, [references]).score for each in (good, bad)]
        differences.append(scores[1] - scores[0])
    # A fortieth of 40, 1, is left out at either end; an interval of this width is centred at the mean.
    low, high = np.sort(differences)[[1, 38]]
    mean, half = np.mean(differences), (high - low) / 2
    (found,) = result([GOOD], [BAD], samples=samples)["differences"]
    assert found["bleu"]["interval"] == pytest.approx((mean - half, mean + half), abs=1e-4)


def test_equal_systems_do_not_differ(result):
    (found,) = result([GOOD, BAD], [BAD, GOOD])["differences"]
    assert found["bleu"]["difference"] == found["chrf"]["difference"] == 0
    (found,) = result([GOOD], [GOOD])["differences"]
    for name in ("bleu", "chrf"):
        assert found[name] == {"difference": 0.0, "interval": (0.0, 0.0), "p_value": 1.0}
    assert found["sentences"] == []


def test_swapping_systems_only_flips_the_signs(result):
    (one,), (other,) = (result(*pair)["differences"] for pair in (([GOOD], [BAD]), ([BAD], [GOOD])))
    for name in ("bleu", "chrf"):
        low, high = one[name]["interval"]
        assert one[name]["difference"] == -other[name]["difference"] != 0
        assert other[name]["interval"] == pytest.approx((-high, -low))
        assert one[name]["p_value"] == other[name]["p_value"]


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_variance_over_seeds_is_that_of_a_mean(seeds):
    scores = np.random.default_rng(seeds).normal(30.0, 1.0, seeds)
    same_on_any_sentences = np.repeat(scores[:, None], 40_000, axis=1)
    found = significance.estimate(scores, same_on_any_sentences, 0)
    # The unbiased estimate of the variance of a mean of k values is s^2 / k.
    assert found.resampled.var() == pytest.approx(scores.var(ddof=1) / seeds, rel=0.03)
    assert found.resampled.mean() == pytest.approx(found.score, abs=0.02)
    other = significance.estimate(scores + 1.0, same_on_any_sentences + 1.0, 1)
    # Systems draw their seeds independently: the variances add.
    variance = (other.resampled - found.resampled).var()
    assert variance == pytest.approx(2 * scores.var(ddof=1) / seeds, rel=0.03)


def test_difficulty_of_sentences_cancels_in_differences():
    of_sentences = np.random.default_rng(0).normal(30.0, 5.0, (2, 1, 1000)).mean(0)
    estimates = [significance.estimate(np.array([30.0 + gap]), of_sentences + gap, 0) for gap in (0.0, 0.5)]
    assert significance.compare(*estimates)["interval"] == pytest.approx((0.5, 0.5))
    assert estimates[0].interval[1] - estimates[0].interval[0] > 10


def test_several_seeds_widen_the_interval_by_their_spread(result):
    seeds = [damage(REFERENCES, amount, seed=9) for amount in (0.05, 0.15, 0.4)]
    alone, together = (result([GOOD], each)["differences"][0]["bleu"] for each in ([seeds[1]], seeds))
    widths = [each["interval"][1] - each["interval"][0] for each in (alone, together)]
    assert widths[1] > 2 * widths[0]


def test_bins_hold_each_sentence_once_and_have_sacrebleu_s_scores(result):
    bins = result([GOOD, BAD], [BAD])["bleu_by_length"]
    metric = BLEU(trg_lang="de", force=True)
    lengths = [len(metric.tokenizer(text).split()) for text in REFERENCES]
    assert [bins[0]["shortest"], bins[-1]["longest"]] == [min(lengths), max(lengths)]
    assert [each["shortest"] for each in bins[1:]] == [each["longest"] + 1 for each in bins[:-1]]
    assert len(bins) == 2 and sum(each["sentences"] for each in bins) == len(REFERENCES)
    for each in bins:
        inside = [number for number, length in enumerate(lengths) if each["shortest"] <= length <= each["longest"]]
        good, bad, references = ([texts[number] for number in inside] for texts in (GOOD, BAD, REFERENCES))
        scores = [metric.corpus_score(hypotheses, [references]).score for hypotheses in (good, bad)]
        assert each["sentences"] == len(inside)
        assert each["bleu"] == pytest.approx({"A": sum(scores) / 2, "B": scores[1]})


def test_few_sentences_or_lengths_make_few_bins():
    assert length_bins(np.array([4] * 500)) == [(4, 4)]
    assert length_bins(np.array([2, 9, 5])) == [(2, 9)]
    bins = length_bins(np.arange(1, 601))
    assert [high - low + 1 for low, high in bins] == [100] * 6


def test_sentences_that_differ_most_are_found_by_sentence_chrf(result):
    found = result([GOOD, REFERENCES], [BAD], sentences=3)["differences"][0]["sentences"]
    chrf = CHRF()
    scores = [
        [chrf.sentence_score(*pair).score for pair in zip(texts, [[each] for each in REFERENCES], strict=True)]
        for texts in (GOOD, REFERENCES, BAD)
    ]
    differences = [bad - (good + best) / 2 for good, best, bad in zip(*scores, strict=True)]
    order = sorted(range(len(REFERENCES)), key=lambda number: -abs(differences[number]))[:3]
    assert [each["line"] for each in found] == [number + 1 for number in order]
    for number, each in zip(order, found, strict=True):
        assert each["difference"] == pytest.approx(differences[number])
        assert each["chrf"]["B"] == pytest.approx(scores[2][number])
        assert each["hypotheses"] == {"A": [GOOD[number], REFERENCES[number]], "B": [BAD[number]]}


def test_more_systems_than_letters_have_labels(evaluated):
    evaluations = [
        read_evaluation(evaluated(f"run{number}", model__d_ff=str(number)) / "evaluations" / "valid-step9.json")
        for number in range(1, 29)
    ]
    assert [system.label for system in group_systems(evaluations)][-3:] == ["Z", "S27", "S28"]
