"""The report on a corpus as text."""

import math
from collections.abc import Sequence

import numpy as np

from scripts.data_inspection.pairs import Measured
from transformer.data.sources.lines import counted

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
DIRECTIONS = ("", "other direction: ")
RATIO, COPIED = 3.0, 0.5  # from which on a pair is counted


def make_text(name: str, pairs: Sequence[Measured], worst: Sequence[Measured]) -> str:
    return "\n".join([*_summary(name, pairs), "", *(line for pair in worst for line in _lines(pair))]) + "\n"


def _summary(name: str, pairs: Sequence[Measured]) -> list[str]:
    counts = {
        " too long for the model": sum(math.isnan(pair.pmi) for pair in pairs),
        " with an empty side": sum(not (pair.source.strip() and pair.target.strip()) for pair in pairs),
        f" with one side {RATIO:.0f} times as long as the other": sum(pair.length_ratio >= RATIO for pair in pairs),
        f" with {COPIED:.0%} of the words copied": sum(pair.copied >= COPIED for pair in pairs),
        " with the target equal to the source": sum(pair.source.strip() == pair.target.strip() for pair in pairs),
    }
    lines = [f"{name}: {counted(len(pairs), 'pair')}"]
    for direction, scores in zip(DIRECTIONS, zip(*(pair.scores for pair in pairs), strict=True), strict=False):
        lines.append(_quantiles(f"{direction}loss", [score.loss for score in scores]))
        lines.append(_quantiles(f"{direction}PMI", [score.pmi for score in scores]))
    return lines + [f"{counted(count, 'pair')}{condition}" for condition, count in counts.items() if count]


def _quantiles(name: str, values: Sequence[float]) -> str:
    finite = [value for value in values if not math.isnan(value)]
    if not finite:
        return f"{name}: none"
    quantiles = zip(QUANTILES, np.quantile(finite, QUANTILES), strict=True)
    return f"{name} in nats per token: " + ", ".join(f"{part:.0%} at most {value:.2f}" for part, value in quantiles)


def _lines(pair: Measured) -> list[str]:
    scores = (
        f"{direction}loss {score.loss:.2f}, PMI {score.pmi:.2f}, "
        for direction, score in zip(DIRECTIONS, pair.scores, strict=False)
    )
    facts = f"{''.join(scores)}lengths 1:{pair.length_ratio:.1f}, {pair.copied:.0%} copied"
    return [f"pair {pair.number}: {facts}", f"  source  {pair.source}", f"  target  {pair.target}"]
