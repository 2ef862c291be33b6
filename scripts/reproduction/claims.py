"""The paper's conclusions from Table 3 (sections 5.4 and 6.2), as contrasts of rows that can be tested."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from configs.table3 import ROWS
from scripts.reproduction.contrasts import Contrast, Weights, difference, estimate, per_doubling

LEVEL = 0.05  # p-values below it decide
BLEU_MARGIN = 0.5  # "as good": a difference below it, and below a factor of PERPLEXITY_MARGIN
PERPLEXITY_MARGIN = 1.02
HIGHER, LOWER, EQUAL = 1, -1, 0


class Claim(NamedTuple):
    """A statement about a contrast: its sign for BLEU and for the logarithm of the perplexity."""

    statement: str
    weights: Weights
    bleu: int = HIGHER
    perplexity: int = LOWER


class Verdict(NamedTuple):
    """A contrast of the runs, the paper's value, the p-value of the claim, and whether it holds: yes, no or unclear."""

    contrast: Contrast
    paper: float
    p_value: float
    holds: str


CLAIMS = (
    Claim("(A) several heads are better than one", difference("base", "A_h1")),
    Claim("(A) too many heads (32) are worse than 8", difference("base", "A_h32")),
    Claim("(B) wider keys are better, for each doubling", per_doubling({"B_dk16": 16, "B_dk32": 32, "base": 64})),
    Claim("(C) deeper is better, for each doubling", per_doubling({"C_N2": 2, "C_N4": 4, "base": 6, "C_N8": 8})),
    Claim("(C) wider is better, for each doubling", per_doubling({"C_d256": 256, "base": 512, "C_d1024": 1024})),
    Claim(
        "(C) wider feed-forward networks are better, for each doubling",
        per_doubling({"C_ff1024": 1024, "base": 2048, "C_ff4096": 4096}),
    ),
    Claim("(D) dropout helps", difference("base", "D_dropout0")),
    Claim("(D) label smoothing improves BLEU and hurts perplexity", difference("base", "D_smoothing0"), HIGHER, HIGHER),
    Claim("(E) learned positions are as good", difference("E_learned", "base"), EQUAL, EQUAL),
    Claim("the big model is better", difference("big", "base")),
)


def judge_bleu(claim: Claim, scores: Mapping[str, Sequence[float]]) -> Verdict | None:
    """Tests a claim on the BLEU of the rows. Returns None if one of its rows is missing."""
    return _judge(claim.weights, claim.bleu, scores, {name: row.bleu for name, row in ROWS.items()}, BLEU_MARGIN)


def judge_perplexity(claim: Claim, scores: Mapping[str, Sequence[float]]) -> Verdict | None:
    """Tests a claim on the logarithm of the perplexity, given the perplexities of the rows."""
    logs = {name: [math.log(value) for value in values] for name, values in scores.items()}
    paper = {name: math.log(row.perplexity) for name, row in ROWS.items()}
    return _judge(claim.weights, claim.perplexity, logs, paper, math.log(PERPLEXITY_MARGIN))


def _judge(
    weights: Weights, sign: int, scores: Mapping[str, Sequence[float]], paper: Mapping[str, float], margin: float
) -> Verdict | None:
    if not weights.keys() <= scores.keys():
        return None
    contrast = estimate(weights, scores)
    if sign == EQUAL:
        p_value, p_contrary = contrast.p_within(margin), min(contrast.p_above(margin), contrast.p_below(-margin))
    else:
        above, below = contrast.p_above(0.0), contrast.p_below(0.0)
        p_value, p_contrary = (above, below) if sign == HIGHER else (below, above)
    holds = "yes" if p_value < LEVEL else "no" if p_contrary < LEVEL else "unclear"
    return Verdict(contrast, sum(weight * paper[row] for row, weight in weights.items()), p_value, holds)
