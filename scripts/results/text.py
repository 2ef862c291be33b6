"""The result of a comparison as text, in tables with aligned columns."""

from collections.abc import Sequence
from typing import NamedTuple

from scripts.results.evaluation_files import Json
from scripts.results.sentence_scores import metric_of
from scripts.results.systems import describe_checkpoints, describe_search, mean_and_spread
from transformer.config.keys import format_value
from transformer.data.sources.lines import count_noun


class Table(NamedTuple):
    """A title, and rows of cells. The first row is the header."""

    title: str
    rows: list[list[str]]


def make_text(result: Json) -> str:
    """Returns the object that `result.make_result` returns as text."""
    # Each part is a list of lines. Empty parts are left out.
    parts = [[describe_decoding(result)]]
    for make_table in (setting_table, score_table, run_table, difference_table, length_table):
        title, rows = make_table(result)

        # A table with only a header is left out. A table without rows is a remark.
        if len(rows) != 1:
            parts.append([title, *_aligned(rows)])

    parts += [_sentences(result, difference) for difference in result["differences"]]
    parts.append(_worst(result))
    parts.append(["Signatures", *_aligned(list(result["signatures"].items()))])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def describe_decoding(result: Json) -> str:
    """Returns the text that was translated and how, in one line that holds for all tables."""
    # Systems may differ in their search, and in the checkpoints of their seeds.
    decodings = {}
    for system in result["systems"]:
        search = describe_search(system["decoding"])
        steps = [run["step"] for run in system["runs"]]
        checkpoints = describe_checkpoints(steps, system["runs"][0]["averaged"])
        decodings[system["label"]] = f"{search}, {checkpoints}"

    text = f"{result['text']}, {count_noun(result['sentences'], 'sentence')}"
    return "; ".join([text, *_labelled(decodings)])


def setting_table(result: Json) -> Table:
    rows = [["", *_labels(result)]]
    for key, values in result["settings"].items():
        rows.append([key, *map(format_value, values.values())])
    return Table("Settings that differ", rows)


def score_table(result: Json) -> Table:
    names = _metrics(result["systems"])
    rows = [["", "seeds", *names]]
    for system in result["systems"]:
        row = [system["label"], ", ".join(str(run["seed"]) for run in system["runs"])]
        for name in names:
            # Such as 27.31 ± 0.12 [26.80, 27.79].
            form = metric_of(name).format
            mean = mean_and_spread([run[name] for run in system["runs"]], form)
            row.append(f"{mean} {_interval(system[name], form)}")
        rows.append(row)

    title = "Scores: mean ± standard deviation over seeds [95 % interval]"
    single = [system["label"] for system in result["systems"] if len(system["runs"]) == 1]
    if single:
        title += f", which does not include the variation between seeds for {', '.join(single)}"
    return Table(title, rows)


def run_table(result: Json) -> Table:
    names = _metrics(result["systems"])
    facts = ["commit", "workdir", "evaluation"]

    # Most runs have no note.
    if any(run["note"] for system in result["systems"] for run in system["runs"]):
        facts.append("note")

    rows = [["", "seed", *names, *facts]]
    for system in result["systems"]:
        for run in system["runs"]:
            scores = [f"{run[name]:{metric_of(name).format}}" for name in names]
            cells = [run[fact] for fact in facts]
            rows.append([system["label"], str(run["seed"]), *scores, *cells])
    return Table("Runs (a + after the commit: with uncommitted changes)", rows)


def difference_table(result: Json) -> Table:
    if not result["differences"]:
        return Table("There is only one system, so there are no differences.", [])

    # The header has two columns for each metric: the difference with its interval, and p.
    names = _metrics(result["differences"])
    header = [""]
    for name in names:
        header += [name, "p"]

    rows = [header]
    methods = {}
    for difference in result["differences"]:
        label = f"{difference['system']} - {difference['baseline']}"
        methods[label] = difference["method"]

        row = [label]
        for name in names:
            # Such as +0.42 [-0.10, +0.94] and 0.1130.
            test = difference[name]
            form = f"+{metric_of(name).format}"
            row.append(f"{test['difference']:{form}} {_interval(test, form)}")
            row.append(f"{test['p_value']:.4f}")
        rows.append(row)
    return Table(f"Differences [95 % interval], p by {'. '.join(_labelled(methods))}", rows)


def length_table(result: Json) -> Table:
    labels = _labels(result)
    rows = [["tokens", "sentences", *labels, *(f"{label} - {labels[0]}" for label in labels[1:])]]
    for group in result["bleu_by_length"]:
        shortest = group["shortest"]
        longest = group["longest"]
        length = str(shortest) if shortest == longest else f"{shortest} to {longest}"

        # BLEU of every system, then differences from the first one.
        scores = [group["bleu"][label] for label in labels]
        row = [length, str(group["sentences"])]
        row += [f"{score:.2f}" for score in scores]
        row += [f"{score - scores[0]:+.2f}" for score in scores[1:]]
        rows.append(row)
    return Table("BLEU by length of the reference", rows)


def _sentences(result: Json, difference: Json) -> list[str]:
    """Returns the sentences with the largest differences between two systems."""
    if not difference["sentences"]:
        return []
    labels = (difference["baseline"], difference["system"])
    baseline, system = labels
    runs = {item["label"]: item["runs"] for item in result["systems"]}

    lines = [f"Sentences in which {baseline} and {system} differ most, by chrF"]
    for sentence in difference["sentences"]:
        chrf = ", ".join(f"{label} {sentence['chrf'][label]:.1f}" for label in labels)
        gain = f"{system} - {baseline} {sentence['difference']:+.1f}"
        lines.append(f"line {sentence['line']}: {chrf}, {gain}")

        # The reference, and the hypotheses of all seeds of both systems.
        rows = [["  reference", sentence["reference"]]]
        for label in labels:
            for run, hypothesis in zip(runs[label], sentence["hypotheses"][label], strict=True):
                rows.append([f"  {label} seed {run['seed']}", hypothesis])
        lines += _aligned(rows)
    return lines


def _worst(result: Json) -> list[str]:
    """Returns the worst sentences of a single system."""
    lines = ["Worst sentences, by chrF"] if result["worst"] else []
    for sentence in result["worst"]:
        lines.append(f"line {sentence['line']}: chrF {sentence['chrf']:.1f}")

        # The cells: name, model score, length, text.
        length = f"{sentence['reference_length']} characters"
        rows = [
            ["  source", "", "", sentence["source"]],
            ["  reference", "", length, sentence["reference"]],
        ]
        for i, run in enumerate(result["systems"][0]["runs"]):
            score = f"model score {sentence['model_scores'][i]:.2f}"
            length = f"{sentence['hypothesis_lengths'][i]} characters"
            rows.append([f"  seed {run['seed']}", score, length, sentence["hypotheses"][i]])
        lines += _aligned(rows)
    return lines


def _labels(result: Json) -> list[str]:
    return [system["label"] for system in result["systems"]]


def _labelled(texts: dict[str, str]) -> list[str]:
    """Returns the texts with their labels, or the one text that all labels share."""
    # Texts that do not differ are shown once, without a label.
    distinct = set(texts.values())
    if len(distinct) == 1:
        return list(distinct)
    return [f"{label}: {text}" for label, text in texts.items()]


def _metrics(objects: Sequence[Json]) -> list[str]:
    """Returns the metrics of systems or differences. All have the same metrics."""
    keys = ("mean", "difference")
    first = objects[0]
    return [
        name
        for name, value in first.items()
        if isinstance(value, dict) and not value.keys().isdisjoint(keys)
    ]


def _interval(score: Json, form: str) -> str:
    """Returns the interval of a score or a difference; empty if it has none."""
    if "interval" not in score:
        return ""
    low, high = score["interval"]
    return f"[{low:{form}}, {high:{form}}]"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows as lines, with columns two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines
