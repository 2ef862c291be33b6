"""The result of a comparison as text, in tables with aligned columns."""

from collections.abc import Sequence
from typing import NamedTuple

from scripts.results.result import Result
from scripts.results.systems import describe_checkpoints, describe_search, mean_and_spread
from transformer.config.keys import show
from transformer.data.sources.lines import counted
from transformer.decoding.bleu import METRICS


class Table(NamedTuple):
    """A title, and rows of cells, of which the first is the header."""

    title: str
    rows: list[list[str]]


def make_text(result: Result) -> str:
    """Returns the object that `result.make_result` returns as text."""
    tables = [
        table(result)
        for table in (setting_table, score_table, run_table, difference_table, length_table)
    ]
    parts = [[describe_decoding(result)]]
    # 1: only a header
    parts += [[title, *_aligned(rows)] for title, rows in tables if len(rows) != 1]
    parts += [_sentences(result, difference) for difference in result["differences"]]
    parts.append(_worst(result))
    parts.append(["Signatures", *_aligned(list(result["signatures"].items()))])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def describe_decoding(result: Result) -> str:
    """Returns the text that was translated and how, in one line that holds for all tables."""
    decodings = {}
    for system in result["systems"]:
        steps = [run["step"] for run in system["runs"]]
        averaged = system["runs"][0]["averaged"]
        decodings[system["label"]] = (
            f"{describe_search(system['decoding'])}, {describe_checkpoints(steps, averaged)}"
        )
    return "; ".join(
        [f"{result['text']}, {counted(result['sentences'], 'sentence')}", *_labelled(decodings)]
    )


def setting_table(result: Result) -> Table:
    labels = [system["label"] for system in result["systems"]]
    settings = result["settings"].items()
    rows = [[key, *(show(value) for value in values.values())] for key, values in settings]
    return Table("Settings that differ", [["", *labels], *rows])


def score_table(result: Result) -> Table:
    names = _metrics(result["systems"])
    rows = [["", "seeds", *names]]
    for system in result["systems"]:
        seeds = ", ".join(str(run["seed"]) for run in system["runs"])
        cells = [
            mean_and_spread([run[name] for run in system["runs"]], METRICS[name].format)
            for name in names
        ]
        intervals = [_interval(system[name], METRICS[name].format) for name in names]
        rows.append([system["label"], seeds, *map(" ".join, zip(cells, intervals, strict=True))])
    title = "Scores: mean ± standard deviation over seeds [95 % interval]"
    if single := [system["label"] for system in result["systems"] if len(system["runs"]) == 1]:
        title += f", which does not include the variation between seeds for {', '.join(single)}"
    return Table(title, rows)


def run_table(result: Result) -> Table:
    names = _metrics(result["systems"])
    noted = any(run["note"] for system in result["systems"] for run in system["runs"])
    others = ["commit", "workdir", "evaluation", *(["note"] if noted else [])]
    rows = [["", "seed", *names, *others]]
    for system in result["systems"]:
        for run in system["runs"]:
            scores = [f"{run[name]:{METRICS[name].format}}" for name in names]
            rows.append(
                [system["label"], str(run["seed"]), *scores, *(run[name] for name in others)]
            )
    return Table("Runs (a + after the commit: with uncommitted changes)", rows)


def difference_table(result: Result) -> Table:
    if not result["differences"]:
        return Table("There is only one system, so there are no differences.", [])
    names = _metrics(result["differences"])
    rows = [["", *(cell for name in names for cell in (name, "p"))]]
    methods = {}
    for difference in result["differences"]:
        cells = [f"{difference['system']} - {difference['baseline']}"]
        methods[cells[0]] = difference["method"]
        for name in names:
            tested = difference[name]
            form = f"+{METRICS[name].format}"
            cells += [
                f"{tested['difference']:{form}} {_interval(tested, form)}",
                f"{tested['p_value']:.4f}",
            ]
        rows.append(cells)
    return Table(f"Differences [95 % interval], p by {'. '.join(_labelled(methods))}", rows)


def length_table(result: Result) -> Table:
    labels = [system["label"] for system in result["systems"]]
    rows = [["tokens", "sentences", *labels, *(f"{label} - {labels[0]}" for label in labels[1:])]]
    for group in result["bleu_by_length"]:
        scores = [group["bleu"][label] for label in labels]
        differences = [f"{score - scores[0]:+.2f}" for score in scores[1:]]
        length = " to ".join(map(str, sorted({group["shortest"], group["longest"]})))
        rows.append(
            [length, str(group["sentences"]), *(f"{score:.2f}" for score in scores), *differences]
        )
    return Table("BLEU by length of the reference", rows)


def _sentences(result: Result, compared: Result) -> list[str]:
    if not compared["sentences"]:
        return []
    baseline, system = labels = compared["baseline"], compared["system"]
    seeds = {
        system["label"]: [run["seed"] for run in system["runs"]] for system in result["systems"]
    }
    lines = [f"Sentences in which {baseline} and {system} differ most, by chrF"]
    for sentence in compared["sentences"]:
        chrf = ", ".join(f"{label} {sentence['chrf'][label]:.1f}" for label in labels)
        lines.append(
            f"line {sentence['line']}: {chrf}, {system} - {baseline} {sentence['difference']:+.1f}"
        )
        rows = [["  reference", sentence["reference"]]]
        for label in labels:
            for seed, hypothesis in zip(seeds[label], sentence["hypotheses"][label], strict=True):
                rows.append([f"  {label} seed {seed}", hypothesis])
        lines += _aligned(rows)
    return lines


def _worst(result: Result) -> list[str]:
    lines = ["Worst sentences, by chrF"] if result["worst"] else []
    for sentence in result["worst"]:
        lines.append(f"line {sentence['line']}: chrF {sentence['chrf']:.1f}")
        rows = [["  source", "", "", sentence["source"]]]
        rows.append(
            ["  reference", "", f"{sentence['reference_length']} characters", sentence["reference"]]
        )
        seeds = (run["seed"] for run in result["systems"][0]["runs"])
        values = (sentence["model_scores"], sentence["hypothesis_lengths"], sentence["hypotheses"])
        for seed, score, length, hypothesis in zip(seeds, *values, strict=True):
            rows.append(
                [f"  seed {seed}", f"model score {score:.2f}", f"{length} characters", hypothesis]
            )
        lines += _aligned(rows)
    return lines


def _labelled(texts: dict[str, str]) -> list[str]:
    """Returns the texts with their labels, or the text that all of them share."""
    distinct = set(texts.values())
    return (
        list(distinct)
        if len(distinct) == 1
        else [f"{label}: {text}" for label, text in texts.items()]
    )


def _metrics(objects: Sequence[Result]) -> list[str]:
    """Returns the metrics of systems or differences; all of them have the same."""
    return [name for name in METRICS if name in objects[0]]


def _interval(score: Result, form: str) -> str:
    """Returns the interval of a score or a difference; empty if it has none."""
    low, high = score.get("interval", (None, None))
    return "" if low is None else f"[{low:{form}}, {high:{form}}]"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows as lines, with columns two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
