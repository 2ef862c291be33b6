"""The paper's claims about Table 3, judged on made-up scores."""

import math

import pytest

from configs.table3 import ROWS
from scripts.reproduction.claims import CLAIMS, Claim, judge

PAPER = {name: [row.bleu - 0.05, row.bleu, row.bleu + 0.05] for name, row in ROWS.items()}
PERPLEXITY = {
    name: [row.perplexity * factor for factor in (0.999, 1, 1.001)] for name, row in ROWS.items()
}


def find_claim(words: str) -> Claim:
    (claim,) = [claim for claim in CLAIMS if words in claim.statement]
    return claim


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.statement)
def test_the_paper_s_own_figures_support_every_claim(claim):
    bleu, perplexity = judge(claim, "bleu", PAPER), judge(claim, "perplexity", PERPLEXITY)
    assert (bleu.holds, perplexity.holds) == ("yes", "yes")
    assert (bleu.contrast.value, perplexity.contrast.value) == pytest.approx(
        (bleu.paper, perplexity.paper), abs=1e-6
    )


def test_a_contrary_difference_refutes_and_noise_decides_nothing():
    one_head = find_claim("several heads")
    reversed_scores = PAPER | {"A_h1": [30.0, 30.1], "base": [20.0, 20.1]}
    assert judge(one_head, "bleu", reversed_scores).holds == "no"
    noisy = {"A_h1": [10.0, 30.0], "base": [11.0, 32.0]}
    assert judge(one_head, "bleu", noisy).holds == "unclear"
    assert judge(one_head, "bleu", {"base": [1.0, 2.0]}) is None


def test_a_slope_is_over_the_rows_that_were_trained():
    deeper = find_claim("deeper")
    verdict = judge(deeper, "bleu", {"C_N2": [20.0, 20.1], "base": [23.0, 23.1]})
    assert verdict.contrast.value == pytest.approx(3 / math.log2(3))
    assert verdict.paper == pytest.approx((25.8 - 23.7) / math.log2(3))


def test_label_smoothing_is_to_improve_bleu_and_to_hurt_perplexity():
    smoothing = find_claim("label smoothing")
    better = {"base": [4.0, 4.01], "D_smoothing0": [5.0, 5.01]}
    assert judge(smoothing, "perplexity", better).holds == "no"
    assert judge(smoothing, "bleu", better).holds == "no"


def test_learned_positions_are_as_good_within_half_a_bleu():
    learned = find_claim("learned positions")
    assert judge(learned, "bleu", {"base": [25.0, 25.1], "E_learned": [26.0, 26.1]}).holds == "no"
    assert judge(learned, "bleu", {"base": [25.0, 25.1], "E_learned": [25.2, 25.3]}).holds == "yes"
    assert (
        judge(learned, "bleu", {"base": [25.0, 28.0], "E_learned": [25.2, 28.3]}).holds == "unclear"
    )
