"""The sentences in which systems differ most, and all translations to search in."""

from collections.abc import Sequence
from typing import Any

from scripts.reporting.scores import Comparison
from scripts.reporting.section import Section
from scripts.reporting.words import mark_differences


def section(compared: Comparison) -> Section:
    if compared.result is None:
        return Section("sentences", "Sentences", None, ["There are no translations."])
    pairs = [_pair(each, compared.first.sources) for each in compared.result["differences"]]
    return Section("sentences", "Sentences", {"pairs": pairs}, data={"translations": _translations(compared)})


def _pair(difference: dict[str, Any], sources: Sequence[str] | None) -> dict[str, Any]:
    """Returns a pair of systems with the sentences in which they differ, of the first seed of each."""
    labels = difference["baseline"], difference["system"]
    sentences = []
    for each in difference["sentences"]:
        first, second = (each["hypotheses"][label][0] for label in labels)
        marks = mark_differences(first, second), mark_differences(second, first)
        source = sources[each["line"] - 1] if sources else None
        sentences.append({**each, "marks": marks, "source": source})
    return {"baseline": labels[0], "system": labels[1], "sentences": sentences}


def _translations(compared: Comparison) -> dict[str, Any]:
    """Returns the names of all texts, and for each line the texts."""
    columns = {} if compared.first.sources is None else {"source": compared.first.sources}
    columns["reference"] = compared.first.references
    for system in compared.systems:
        for each in system.evaluations:
            columns[f"{system.label} seed {each.config.seed}"] = each.hypotheses
    return {"names": list(columns), "lines": list(map(list, zip(*columns.values(), strict=True)))}


def most_different_sources(compared: Comparison, count: int) -> list[str]:
    """Returns sources of the split: of the lines in which the first two systems differ most, or the first lines."""
    if compared.result is None or compared.first.sources is None:
        return []
    differing = [each["line"] for pair in compared.result["differences"][:1] for each in pair["sentences"]]
    lines = differing or range(1, len(compared.first.sources) + 1)
    return [compared.first.sources[line - 1] for line in lines[:count]]
