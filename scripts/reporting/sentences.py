"""The sentences in which systems differ most, and all translations to search in."""

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from scripts.reporting.scores import Comparison
from scripts.reporting.sections import Section
from scripts.results.sufficient_statistics import additive_metrics


def section(compared: Comparison) -> Section:
    if compared.result is None:
        return Section("sentences", "Sentences", None, ["There are no translations."])
    pairs = [
        _pair(difference, compared.first.sources) for difference in compared.result["differences"]
    ]
    columns = {"source": compared.first.sources, "reference": compared.first.references}
    for system in compared.systems:
        for evaluation in system.evaluations:
            columns[f"{system.label} seed {evaluation.config.seed}"] = evaluation.hypotheses
    orders = _orders(compared)
    lines = list(map(list, zip(*columns.values(), strict=True)))
    translations = {"names": list(columns), "lines": lines, "orders": orders}
    content = {"pairs": pairs, "orders": [order["name"] for order in orders]}
    return Section("sentences", "Sentences", content, data={"translations": translations})


def _pair(difference: dict[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """Returns a pair of systems with the sentences in which they differ, of the first seed of each."""
    labels = difference["baseline"], difference["system"]
    sentences = []
    for sentence in difference["sentences"]:
        first, second = (sentence["hypotheses"][label][0] for label in labels)
        marks = mark_differences(first, second), mark_differences(second, first)
        sentences.append({**sentence, "marks": marks, "source": sources[sentence["line"] - 1]})
    return {"baseline": labels[0], "system": labels[1], "sentences": sentences}


def mark_differences(text: str, other: str) -> list[tuple[str, bool]]:
    """Splits `text` into spans of words, and tells of each whether `other` shares it, in the same
    order.
    """
    words = text.split()
    other_words = other.split()
    operations = difflib.SequenceMatcher(None, words, other_words, autojunk=False).get_opcodes()
    return [
        (" ".join(words[begin:end]), kind == "equal")
        for kind, begin, end, *_ in operations
        if begin < end
    ]


def _orders(compared: Comparison) -> list[dict[str, Any]]:
    """Returns the orders in which the page can list the translations of a single run, worst lines
    first.
    """
    evaluation = compared.first
    references = evaluation.references
    if sum(len(system.evaluations) for system in compared.systems) > 1:
        return []
    metric = additive_metrics(evaluation.language)["chrf"]
    chrf = metric.score(metric.statistics(evaluation.hypotheses, references))
    pairs = zip(evaluation.hypotheses, references, strict=True)
    longer = np.array([len(hypothesis) - len(reference) for hypothesis, reference in pairs])
    scores = np.array(evaluation.model_scores)
    orders = [("chrF", chrf, chrf), ("model score", scores, scores)]
    orders.append(("characters more than the reference", longer, -np.abs(longer)))
    return [
        {
            "name": name,
            "values": np.round(values, 2).tolist(),
            "order": np.argsort(key, kind="stable").tolist(),
        }
        for name, values, key in orders
    ]


def most_different_sources(compared: Comparison, count: int) -> list[str]:
    """Returns sources of the split: of the lines in which the first two systems differ most, or the
    worst lines.
    """
    if compared.result is None:
        return []
    differing = [
        sentence["line"]
        for pair in compared.result["differences"][:1]
        for sentence in pair["sentences"]
    ]
    worst = [sentence["line"] for sentence in compared.result["worst"]]
    lines = differing or worst or range(1, len(compared.first.sources) + 1)
    return [compared.first.sources[line - 1] for line in lines[:count]]
