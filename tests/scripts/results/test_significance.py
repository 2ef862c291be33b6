"""The numbers of a comparison, equal to sacreBLEU's or to numbers worked out by other means."""

import importlib.util

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from scripts.results import significance
from scripts.results.evaluations import read_evaluation
from scripts.results.result import length_bins, make_result
from scripts.results.sufficient_statistics import additive_metrics
from scripts.results.systems import group_systems
from scripts.results.text import difference_table, score_table
from tests.scripts.evaluated import add_evaluation, damage, make_run, make_sentences
from transformer.decoding import bleu, metrics
from transformer.support.errors import UserError

REFERENCES = make_sentences(60, seed=0)
GOOD, BAD = damage(REFERENCES, 0.1, seed=1), damage(REFERENCES, 0.15, seed=2)


def test_blank_lines_between_documents_are_not_the_worst(tmp_path):
    texts = ["", *GOOD[:4], ""]
    evaluation = read_evaluation(
        add_evaluation(make_run(tmp_path / "run"), "valid-step9", texts, texts)
    )
    worst = make_result(group_systems([evaluation]), texts, 100, 3)["worst"]
    assert [sentence["line"] for sentence in worst] == [2, 3, 4]


@pytest.mark.skipif(
    importlib.util.find_spec("MeCab") is not None, reason="the tokenizer is installed"
)
def test_scores_of_a_tokenizer_that_is_missing_are_not_compared():
    with pytest.raises(
        UserError,
        match=r"the scores need sacreBLEU's tokenizer ja-mecab; pip install 'sacrebleu\[ja\]'",
    ):
        additive_metrics(bleu.Language("ja", "ja-mecab"))


def test_the_interval_of_a_score_is_sacrebleu_s(monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    metric = additive_metrics(bleu.Language("de", "13a"))["bleu"]
    low, high = significance.bootstrap_interval(metric, metric.statistics(GOOD, REFERENCES))
    expected = BLEU(trg_lang="de").corpus_score(GOOD, [REFERENCES], n_bootstrap=1000)
    assert (low + high) / 2 == pytest.approx(expected._mean)
    assert (high - low) / 2 == pytest.approx(expected._ci)


@pytest.fixture
def result(tmp_path):
    """Compares systems, each given as a list of the translations of its seeds."""

    def make(*translations: list[list[str]], samples: int = 100, sentences: int = 5) -> dict:
        evaluations = []
        for number, seeds in enumerate(translations):
            for seed, hypotheses in enumerate(seeds):
                path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
                make_run(path, seed=str(seed), model__dropout=f"0.{number}")
                evaluations.append(
                    read_evaluation(add_evaluation(path, "valid-step9", hypotheses, REFERENCES))
                )
        return make_result(group_systems(evaluations), REFERENCES, samples, sentences)

    return make


def test_with_one_seed_results_equal_sacrebleu_s_paired_bootstrap(result, monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    worse = damage(REFERENCES, 0.3, seed=3)
    named = [("first", GOOD), ("second", BAD), ("third", worse)]
    test = PairedTest(
        named, {"bleu": BLEU(trg_lang="de"), "chrf": CHRF()}, [REFERENCES], "bs", n_samples=150
    )
    signatures, expected = test()
    comparison = result([GOOD], [BAD], [worse], samples=150)
    for name, official in (("bleu", "BLEU"), ("chrf", "chrF2")):
        assert comparison["signatures"][name] == str(signatures[official])
        for system, theirs in zip(comparison["systems"], expected[official], strict=True):
            assert system[name]["mean"] == theirs.score
            assert system[name]["interval"] == pytest.approx(
                (theirs.mean - theirs.ci, theirs.mean + theirs.ci)
            )
        for difference, theirs in zip(
            comparison["differences"], expected[official][1:], strict=True
        ):
            assert difference[name]["p_value"] == theirs.p_value
            assert difference[name]["difference"] == theirs.score - expected[official][0].score
    # otherwise the test would be too easy
    assert 0.001 < comparison["differences"][0]["bleu"]["p_value"] < 1


def test_interval_of_the_difference_equals_that_of_resampled_texts(result):
    samples, count = 40, len(REFERENCES)
    drawn = np.random.default_rng(12345).choice(count, size=(samples, count), replace=True)
    differences = []
    for row in drawn:
        good, bad, references = (
            [texts[number] for number in row] for texts in (GOOD, BAD, REFERENCES)
        )
        scores = [
            BLEU(trg_lang="de", force=True).corpus_score(texts, [references]).score
            for texts in (good, bad)
        ]
        differences.append(scores[1] - scores[0])
    # A fortieth of 40, 1, is left out at either end; an interval of this width is centred at the
    # mean.
    low, high = np.sort(differences)[[1, 38]]
    mean, half = np.mean(differences), (high - low) / 2
    (comparison,) = result([GOOD], [BAD], samples=samples)["differences"]
    assert comparison["bleu"]["interval"] == pytest.approx((mean - half, mean + half), abs=1e-4)


def test_a_mean_over_sentences_is_resampled_too(result, monkeypatch):
    exact_match = metrics.METRICS["exact_match"]._replace(shown_in=("comparison",))
    monkeypatch.setitem(metrics.METRICS, "exact_match", exact_match)
    good, bad = (np.array(texts) == np.array(REFERENCES) for texts in (GOOD, BAD))
    drawn = np.random.default_rng(12345).choice(len(REFERENCES), size=(40, len(REFERENCES)))
    differences = bad[drawn].mean(1) - good[drawn].mean(1)
    low, high = np.sort(differences)[[1, 38]]
    mean, half = np.mean(differences), (high - low) / 2
    comparison = result([GOOD], [BAD], samples=40)
    tested = comparison["differences"][0]["exact_match"]
    assert (
        tested["difference"] == pytest.approx(bad.mean() - good.mean())
        and tested["difference"] != 0
    )
    assert tested["interval"] == pytest.approx((mean - half, mean + half), abs=1e-6)
    (header, row) = difference_table(comparison).rows
    assert row[header.index("exact_match")].startswith(f"{tested['difference']:+.1%} [")


def test_equal_systems_do_not_differ(result):
    (comparison,) = result([GOOD, BAD], [BAD, GOOD])["differences"]
    assert comparison["bleu"]["difference"] == comparison["chrf"]["difference"] == 0
    (comparison,) = result([GOOD], [GOOD])["differences"]
    for name in ("bleu", "chrf"):
        assert comparison[name] == {"difference": 0.0, "interval": (0.0, 0.0), "p_value": 1.0}
    assert comparison["sentences"] == []


def test_swapping_systems_only_flips_the_signs(result):
    (one,), (other,) = (result(*pair)["differences"] for pair in (([GOOD], [BAD]), ([BAD], [GOOD])))
    for name in ("bleu", "chrf"):
        low, high = one[name]["interval"]
        assert one[name]["difference"] == -other[name]["difference"] != 0
        assert other[name]["interval"] == pytest.approx((-high, -low))
        assert one[name]["p_value"] == other[name]["p_value"]


@pytest.mark.parametrize("seeds", [(2, 2), (3, 3), (5, 5), (2, 5), (1, 3)])
@pytest.mark.parametrize(
    ("over_seeds", "sentences", "shared"),
    [
        ((1.0, 1.0), 0.01, 0.01),
        ((1.0, 1.0), 1.0, 1.0),
        ((0.01, 0.01), 1.0, 0.01),
        ((1.0, 3.0), 0.01, 0.3),
    ],
)
def test_equal_systems_differ_in_at_most_five_percent_of_the_comparisons(
    seeds, over_seeds, sentences, shared
):
    random, count, repeats, rejected = np.random.default_rng(1), 100, 300, 0
    weights = random.multinomial(count, np.full(count, 1 / count), size=100).T / count
    for _ in range(repeats):
        samples = []
        for system, deviation in zip(seeds, over_seeds, strict=True):
            scores = random.normal(0, deviation, (system, 1)) + random.normal(
                0, 10 * sentences, count
            )
            scores = scores + random.normal(0, 10 * shared, (system, count))
            samples.append(significance.SeedScores(scores.mean(1), scores @ weights))
        tested = significance.compare(*samples)
        low, high = tested["interval"]
        assert (tested["p_value"] < 0.05) == (not low <= 0 <= high)
        rejected += tested["p_value"] < 0.05
    # The standard deviation of the rate is 1.3 %.
    assert rejected / repeats <= 0.08


def sample(scores: list[float], over_sentences: float = 0.0) -> significance.SeedScores:
    noise = np.random.default_rng(0).normal(0, over_sentences, 10_000)
    return significance.SeedScores(np.array(scores), np.array(scores)[:, None] + noise)


def test_without_noise_of_sentences_the_test_is_welch_s():
    comparison = significance.compare(sample([5.58, 4.94]), sample([0.0, 4.37]))
    # Variances of the means: 0.64^2 / 4 = 0.1024 and 4.37^2 / 4 = 4.7742; t = 3.075 / 2.2084 =
    # 1.3924 with 1.043 degrees of freedom. scipy.stats.ttest_ind gives the p-value.
    assert comparison["p_value"] == pytest.approx(0.3895, abs=1e-4)
    low, high = sample([5.58, 4.94]).interval
    assert high - low == pytest.approx(2 * 12.7062 * 0.32, abs=1e-4)  # t of one degree of freedom


def test_without_variation_between_seeds_the_test_is_the_paired_bootstrap():
    many, one = (
        significance.compare(sample([30.0] * seeds), sample([31.0] * seeds, over_sentences=0.6))
        for seeds in (3, 1)
    )
    assert many["interval"] == pytest.approx(one["interval"], abs=0.04)
    assert many["interval"] == pytest.approx((1 - 1.96 * 0.6, 1 + 1.96 * 0.6), abs=0.03)


def test_difficulty_of_sentences_cancels_in_differences():
    systems = [sample([30.0 + gap], over_sentences=5.0) for gap in (0.0, 0.5)]
    assert significance.compare(*systems)["interval"] == pytest.approx((0.5, 0.5))
    assert systems[0].interval[1] - systems[0].interval[0] > 10


def test_one_seed_says_that_seeds_are_not_included(result):
    single, several = (result([GOOD], seeds) for seeds in ([BAD], [BAD, GOOD]))
    assert "does not include the variation between seeds" in difference_table(single).title
    assert score_table(single).title.endswith("the variation between seeds for A, B")
    assert (
        "the system with one seed is taken to vary as much as the other"
        in difference_table(several).title
    )
    assert score_table(several).title.endswith("the variation between seeds for A")


def test_several_seeds_widen_the_interval_by_their_spread(result):
    seeds = [damage(REFERENCES, amount, seed=9) for amount in (0.05, 0.15, 0.4)]
    alone, together = (
        result([GOOD], system)["differences"][0]["bleu"] for system in ([seeds[1]], seeds)
    )
    widths = [score["interval"][1] - score["interval"][0] for score in (alone, together)]
    assert widths[1] > 2 * widths[0]


def test_bins_hold_each_sentence_once_and_have_sacrebleu_s_scores(result):
    bins = result([GOOD, BAD], [BAD])["bleu_by_length"]
    metric = BLEU(trg_lang="de", force=True)
    lengths = [len(metric.tokenizer(text).split()) for text in REFERENCES]
    assert [bins[0]["shortest"], bins[-1]["longest"]] == [min(lengths), max(lengths)]
    assert [bin_["shortest"] for bin_ in bins[1:]] == [bin_["longest"] + 1 for bin_ in bins[:-1]]
    assert len(bins) == 2 and sum(bin_["sentences"] for bin_ in bins) == len(REFERENCES)
    for bin_ in bins:
        inside = [
            number
            for number, length in enumerate(lengths)
            if bin_["shortest"] <= length <= bin_["longest"]
        ]
        good, bad, references = (
            [texts[number] for number in inside] for texts in (GOOD, BAD, REFERENCES)
        )
        scores = [metric.corpus_score(hypotheses, [references]).score for hypotheses in (good, bad)]
        assert bin_["sentences"] == len(inside)
        assert bin_["bleu"] == pytest.approx({"A": sum(scores) / 2, "B": scores[1]})


def test_few_sentences_or_lengths_make_few_bins():
    assert length_bins(np.array([4] * 500)) == [(4, 4)]
    assert length_bins(np.array([2, 9, 5])) == [(2, 9)]
    bins = length_bins(np.arange(1, 601))
    assert [high - low + 1 for low, high in bins] == [100] * 6


def test_sentences_that_differ_most_are_found_by_sentence_chrf(result):
    sentences = result([GOOD, REFERENCES], [BAD], sentences=3)["differences"][0]["sentences"]
    chrf = CHRF()
    scores = [
        [
            chrf.sentence_score(*pair).score
            for pair in zip(texts, [[text] for text in REFERENCES], strict=True)
        ]
        for texts in (GOOD, REFERENCES, BAD)
    ]
    differences = [bad - (good + best) / 2 for good, best, bad in zip(*scores, strict=True)]
    order = sorted(range(len(REFERENCES)), key=lambda number: -abs(differences[number]))[:3]
    assert [sentence["line"] for sentence in sentences] == [number + 1 for number in order]
    for number, sentence in zip(order, sentences, strict=True):
        assert sentence["difference"] == pytest.approx(differences[number])
        assert sentence["chrf"]["B"] == pytest.approx(scores[2][number])
        assert sentence["hypotheses"] == {
            "A": [GOOD[number], REFERENCES[number]],
            "B": [BAD[number]],
        }


@pytest.mark.slow
def test_more_systems_than_letters_have_labels(evaluated):
    evaluations = [
        read_evaluation(
            evaluated(f"run{number}", model__d_ff=str(number)) / "evaluations" / "valid-step9.json"
        )
        for number in range(1, 29)
    ]
    assert [system.label for system in group_systems(evaluations)][-3:] == ["Z", "S27", "S28"]
