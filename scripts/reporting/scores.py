"""The scores of runs, and the differences between them, as `scripts.compare` computes them."""

import collections
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from scripts.charts import theme
from scripts.reporting.sections import Section
from scripts.results import text
from scripts.results.choice import check_comparable
from scripts.results.evaluations import Evaluation, evaluate_command, name_split, read_evaluations
from scripts.results.result import make_result
from scripts.results.runs import RecordedRun
from scripts.results.systems import System, group_systems
from transformer.data.sources.source import SPLITS
from transformer.support.errors import UserError

SAMPLES = 1000  # of the bootstrap
SENTENCES = 20  # that differ most
# The least number of occurrences in the references of each group's words.
FREQUENCIES = (1, 2, 4, 8, 16, 32, 64, 128)


# Returns evaluations with the scores of other programs.
AddScores = Callable[[Sequence[Evaluation]], list[Evaluation]]


class Comparison(NamedTuple):
    """Evaluations on one split, and their comparison.

    Attributes:
      systems: the evaluations, grouped into systems.
      result: the result of `make_result`. None if no evaluations are comparable, and then there are
        no systems.
      notes: sentences about missing evaluations.
      evaluations: the evaluation of each run, by its label.
    """

    systems: Sequence[System]
    result: dict[str, Any] | None
    notes: Sequence[str]
    evaluations: Mapping[str, Evaluation]

    @property
    def first(self) -> Evaluation:
        return self.systems[0].evaluations[0]


def compare(
    runs: Sequence[RecordedRun],
    split: str | None,
    data: str | None,
    add_scores: AddScores = list,
) -> Comparison:
    """Compares an evaluation of each run on one split.

    With `data`, it is a split of that run's data. Without `split`, it is the split on which most
    runs were evaluated, or valid if several tie.
    """
    notes = []
    candidates = {}
    for run in runs:
        try:
            candidates[run] = read_evaluations(run.workdir)
        except UserError as error:
            notes.append(str(error))
    split = _choose_split(candidates.values(), split, data)

    evaluations = {}
    for run, of_run in candidates.items():
        # Several evaluations of a split differ in their settings or checkpoints.
        of_split = [evaluation for evaluation in of_run if evaluation.split == split]
        if of_split:
            best_step = run.best_step
            evaluations[run.label] = max(of_split, key=lambda one: one.rank(best_step))
            continue
        names = zip(("split", "data"), split.split(" of ", 1), strict=False)
        flags = [f"--{flag}={name}" for flag, name in names]
        command = evaluate_command(run.workdir.path, flags)
        notes.append(f"{run.label} has no evaluation of the split {split}; run {command}")
    if not evaluations:
        return Comparison([], None, notes, evaluations)

    evaluations = dict(zip(evaluations, add_scores(list(evaluations.values())), strict=True))

    # Evaluations with other references, for example, cannot be compared.
    compared = list(evaluations.values())
    try:
        check_comparable(compared)
        systems = group_systems(compared)
        result = make_result(systems, compared[0].references, SAMPLES, SENTENCES)
    except UserError as error:
        return Comparison([], None, [*notes, str(error)], evaluations)
    return Comparison(systems, result, notes, evaluations)


def _choose_split(
    candidates: Iterable[Sequence[Evaluation]], split: str | None, data: str | None
) -> str:
    """Returns the name of the split to compare on, as in `compare`."""
    runs_of_split = collections.Counter()
    for evaluations in candidates:
        runs_of_split.update({evaluation.split for evaluation in evaluations})
    names = [name_split(name, data) for name in ([split] if split else SPLITS)]
    if not split and not data:
        names += runs_of_split
    return max(names, key=lambda name: (runs_of_split[name], name.startswith("valid")))


def section(compared: Comparison) -> Section:
    result = compared.result
    if result is None:
        notes = [*compared.notes, "There are no scores to compare."]
        return Section("scores", "Scores", None, notes)
    names = {system.label: system.name for system in compared.systems}

    # BLEU in each group of reference lengths is computed with the other scores.
    lengths = []
    for group in result["bleu_by_length"]:
        name = span(group["shortest"], group["longest"])
        for label, score in group["bleu"].items():
            row = {"group": name, "count": group["sentences"]}
            lengths.append(row | {"system": names[label], "score": score})

    # F1 of words is computed here, for each seed.
    words = []
    for system in compared.systems:
        for evaluation in system.evaluations:
            groups = f1_by_frequency(evaluation.hypotheses, compared.first.references)
            words += [{"system": system.name, **group} for group in groups]

    occurrences = "occurrences of the word in the references"
    charts = {
        "lengths": grouped_bars(lengths, "tokens of the reference", "BLEU", "sentences").to_dict(),
        "frequencies": grouped_bars(words, occurrences, "F1 (%)", "words").to_dict(),
    }
    panels = {
        "lengths": "BLEU by the length of the reference in tokens, the mean over seeds",
        "frequencies": "F1 of words by how often the references have the word, the mean over seeds",
    }
    makers = (text.setting_table, text.score_table, text.difference_table, text.run_table)
    tables = [make(result) for make in makers]
    content = {
        "decoding": text.describe_decoding(result),
        "tables": [table for table in tables if len(table.rows) > 1],
        "panels": panels,
        "signatures": result["signatures"],
    }
    return Section("scores", "Scores", content, compared.notes, charts)


def f1_by_frequency(hypotheses: Sequence[str], references: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the F1 score of words, by the frequency of the word in all references.

    A record has the frequency as `group`, the number of words as `count`, and F1 in percent as
    `score`. A word of a hypothesis matches if its reference has it, at most as often as there.
    Words are separated by spaces. Groups without words are left out.
    """
    expected = collections.Counter()
    produced = collections.Counter()
    matched = collections.Counter()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        hypothesis_words = collections.Counter(hypothesis.split())
        reference_words = collections.Counter(reference.split())
        expected.update(reference_words)
        produced.update(hypothesis_words)
        matched.update(hypothesis_words & reference_words)

    groups = []
    for least, next_least in itertools.zip_longest(FREQUENCIES, FREQUENCIES[1:]):
        words = [word for word, n in expected.items() if least <= n < (next_least or math.inf)]
        num_expected, num_produced, num_matched = (
            sum(counts[word] for word in words) for counts in (expected, produced, matched)
        )
        if words:
            group = span(least, next_least and next_least - 1)
            score = 200 * num_matched / (num_expected + num_produced)
            groups.append({"group": group, "count": num_expected, "score": score})
    return groups


def grouped_bars(rows: Sequence[Mapping[str, Any]], x: str, y: str, count: str) -> alt.Chart:
    """Returns a bar for each system in each group: the mean over its rows.

    Args:
      rows: records with the fields `group`, `system`, `score` and `count`.
      x, y, count: titles of groups, scores and counts.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    legend = alt.Legend(title=None, orient="top") if len(systems) > 1 else None
    tooltip = [
        "system:N",
        alt.Tooltip("group:N", title=x),
        alt.Tooltip("mean(score):Q", title=y, format=".2f"),
        alt.Tooltip("count:Q", title=count),
    ]
    bars = theme.chart_of(rows).mark_bar()
    return bars.encode(
        x=alt.X("group:N", sort=groups, title=x, axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("system:N", sort=systems),
        y=alt.Y("mean(score):Q", title=y),
        color=theme.categories(alt.Color, "system", systems, theme.CATEGORICAL, legend=legend),
        tooltip=tooltip,
    )


def span(least: int, most: int | None) -> str:
    """Returns the name of a group. None: no limit."""
    if most is None:
        return f"{least}+"
    return str(least) if least == most else f"{least}\N{EN DASH}{most}"
