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
    first = compared.first
    pairs = [_pair(pair, first.sources) for pair in compared.result["differences"]]

    # The search of the page shows each line with the translations of all runs.
    columns = {"source": first.sources, "reference": first.references}
    for system in compared.systems:
        for evaluation in system.evaluations:
            columns[f"{system.label} seed {evaluation.config.seed}"] = evaluation.hypotheses
    orders = _orders(compared)
    lines = list(map(list, zip(*columns.values(), strict=True)))
    translations = {"names": list(columns), "lines": lines, "orders": orders}
    content = {"pairs": pairs, "orders": [order["name"] for order in orders]}
    return Section("sentences", "Sentences", content, data={"translations": translations})


def _pair(difference: dict[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """Returns a pair of systems with the sentences that differ most between their first seeds."""
    baseline = difference["baseline"]
    system = difference["system"]
    sentences = []
    for sentence in difference["sentences"]:
        first = sentence["hypotheses"][baseline][0]
        second = sentence["hypotheses"][system][0]
        marks = mark_differences(first, second), mark_differences(second, first)
        sentences.append({**sentence, "marks": marks, "source": sources[sentence["line"] - 1]})
    return {"baseline": baseline, "system": system, "sentences": sentences}


def mark_differences(text: str, other: str) -> list[tuple[str, bool]]:
    """Returns spans of the words of `text`. The bool is True if `other` has the same span.

    Common spans have the same order in both texts.
    """
    # `autojunk` would ignore frequent words in long texts.
    words = text.split()
    matcher = difflib.SequenceMatcher(None, words, other.split(), autojunk=False)
    spans = []
    for kind, begin, end, *_ in matcher.get_opcodes():
        if begin < end:
            spans.append((" ".join(words[begin:end]), kind == "equal"))
    return spans


def _orders(compared: Comparison) -> list[dict[str, Any]]:
    """Returns the orders of the translations of a single run, each with the worst line first."""
    # Several runs have several scores per line, so there is no single order.
    if sum(len(system.evaluations) for system in compared.systems) > 1:
        return []
    evaluation = compared.first
    hypotheses = evaluation.hypotheses
    references = evaluation.references
    metric = additive_metrics(evaluation.language)["chrf"]
    chrf = metric.score(metric.statistics(hypotheses, references))
    scores = np.array(evaluation.model_scores)
    longer = np.array(list(map(len, hypotheses))) - list(map(len, references))

    # The name of each order, the values that the page shows, and the key to sort by.
    keys = [
        ("chrF", chrf, chrf),
        ("model score", scores, scores),
        ("characters more than the reference", longer, -np.abs(longer)),
    ]
    orders = []
    for name, values, key in keys:
        order = np.argsort(key, kind="stable").tolist()
        orders.append({"name": name, "values": np.round(values, 2).tolist(), "order": order})
    return orders


def most_different_sources(compared: Comparison, count: int) -> list[str]:
    """Returns the sources of the lines in which the first two systems differ most.

    Without two systems, it returns the sources of the worst lines or, if there are none, of the
    first lines.
    """
    result = compared.result
    if result is None:
        return []
    sources = compared.first.sources
    differing = [sentence for pair in result["differences"][:1] for sentence in pair["sentences"]]

    # A line is a number from 1.
    lines = [sentence["line"] for sentence in differing or result["worst"]]
    lines = lines or range(1, len(sources) + 1)
    return [sources[line - 1] for line in lines[:count]]
