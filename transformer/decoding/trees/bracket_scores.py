"""Labelled bracket scores of trees by the rules of EVALB with its parameter file COLLINS.prm.

Words with a tag in `DELETED` are left out of both trees, and brackets with such a label are not
counted, nor are brackets without words. ADVP and PRT are equal. Each bracket of the hypothesis
matches at most one of the reference, and the numbers of brackets are summed over sentences.

A hypothesis that is no tree, or has another number of leaves than the reference, is an error. EVALB
leaves such a sentence out of all sums, so errors raise its score. `bracket_f1_with_errors` counts
the brackets of its reference as missed. The leaves of all other hypotheses take the tags of the
reference, so that both trees are without the same words.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from jaxtyping import Float, Int, Num

from transformer.decoding.trees.linearized import PUNCTUATION, TOP, Bracket, fits, read_brackets
from transformer.support.errors import UserError

DELETED = {TOP, "-NONE-", *PUNCTUATION}
EQUAL = {"PRT": "ADVP"}
SIGNATURE = "rules:EVALB.COLLINS|tags:reference|errors:left-out"
# The columns of `statistics`.
MATCHED, REFERENCE, HYPOTHESIS, COMPLETE, SCORED, ERRORS, MISSED = range(7)


def statistics(
    hypotheses: Sequence[str], references: Sequence[str]
) -> Int[np.ndarray, "sentences 7"]:
    """Returns counts of linearized trees: a row for each sentence.

    Brackets that match, of the reference and of the hypothesis; 1 if all brackets match; 1 if the
    sentence is scored; 1 for an error, with the brackets of its reference. A sentence has 0 in
    either the first five columns or the last two. A sentence whose words are all deleted has only
    zeros.

    Raises UserError if a reference is no tree.
    """
    return np.array(
        [
            _count(hypothesis.split(), reference.split())
            for hypothesis, reference in zip(hypotheses, references, strict=True)
        ]
    )


def f1(sums: Num[np.ndarray, "*B 7"]) -> Float[np.ndarray, "*B"]:
    """Returns the F1 of brackets in percent, for sums of `statistics` over sentences."""
    return _percent(2 * sums[..., MATCHED], sums[..., REFERENCE] + sums[..., HYPOTHESIS])


# The scores of sums over sentences, by name.
SCORES: dict[str, Callable[[Num[np.ndarray, "*B 7"]], Num[np.ndarray, "*B"]]] = {
    "bracket_f1": f1,
    "bracket_errors": lambda sums: sums[..., ERRORS],
    "bracket_f1_with_errors": lambda sums: _percent(
        2 * sums[..., MATCHED],
        sums[..., REFERENCE] + sums[..., MISSED] + sums[..., HYPOTHESIS],
    ),
    "bracket_recall": lambda sums: _percent(sums[..., MATCHED], sums[..., REFERENCE]),
    "bracket_precision": lambda sums: _percent(sums[..., MATCHED], sums[..., HYPOTHESIS]),
    "bracket_complete_match": lambda sums: _percent(sums[..., COMPLETE], sums[..., SCORED]),
}


def score(name: str, hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Returns the entry of SCORES for all sentences together."""
    return float(SCORES[name](_sums(tuple(hypotheses), tuple(references))).item())


@functools.lru_cache(1)  # the entries of SCORES are computed one after the other
def _sums(hypotheses: tuple[str, ...], references: tuple[str, ...]) -> Int[np.ndarray, "1 7"]:
    return statistics(hypotheses, references).sum(axis=0, keepdims=True)


def _percent(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Returns the percentage, 0 of nothing."""
    return 100 * part / np.maximum(whole, 1)


def _count(hypothesis: list[str], reference: list[str]) -> list[int]:
    """Returns the row of a sentence in `statistics`."""
    try:
        tags, gold = read_brackets(reference)
    except ValueError as error:
        raise UserError(
            f"the reference {' '.join(reference)!r:.60} is no linearized tree ({error}); bracket "
            "scores need the trees that scripts.get_data --trees writes"
        ) from error

    # The number of words before each leaf, and of all words.
    places = [0, *accumulate(tag not in DELETED for tag in tags)]
    if not places[-1]:
        return [0] * 7
    expected = _counted(gold, places)
    if not fits(hypothesis, len(tags)):
        return [0, 0, 0, 0, 0, 1, expected.total()]
    predicted = _counted(read_brackets(hypothesis).brackets, places)
    matched = (expected & predicted).total()
    is_complete = expected == predicted
    return [matched, expected.total(), predicted.total(), int(is_complete), 1, 0, 0]


def _counted(brackets: Sequence[Bracket], places: Sequence[int]) -> Counter:
    """Returns how often each bracket occurs, by label and positions among the counted words."""
    counts = Counter()
    for label, start, end in brackets:
        if places[start] < places[end] and label not in DELETED:
            counts[EQUAL.get(label, label), places[start], places[end]] += 1
    return counts
