"""The scores of runs, and the differences between them, as `scripts.compare` computes them."""

import bisect
import collections
import itertools
import operator
from collections.abc import Mapping, Sequence
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
# the least number of occurrences in the references of each group's words
FREQUENCIES = (1, 2, 4, 8, 16, 32, 64, 128)


class Comparison(NamedTuple):
    """The chosen evaluations as systems, the result of `make_result`, and notes on missing
    evaluations.

    Without a comparable evaluation, `result` is None and there are no systems. `chosen` are the
    evaluations by the labels of the runs.
    """

    systems: Sequence[System]
    result: dict[str, Any] | None
    notes: Sequence[str]
    chosen: Mapping[str, Evaluation]

    @property
    def first(self) -> Evaluation:
        return self.systems[0].evaluations[0]


def compare(runs: Sequence[RecordedRun], split: str | None, data: str | None) -> Comparison:
    """Compares an evaluation of each run on one split, of another run's data if given.

    None selects the split on which most runs were evaluated, or valid if several tie.
    """
    notes = []
    evaluations = {}
    for run in runs:
        try:
            evaluations[run] = read_evaluations(run.workdir)
        except UserError as error:
            notes.append(str(error))
    names_by_run = [
        {evaluation.split for evaluation in candidates} for candidates in evaluations.values()
    ]
    splits = collections.Counter(itertools.chain(*names_by_run))
    names = [name_split(name, data) for name in ([split] if split else SPLITS)]
    names += [] if split or data else splits
    split = max(names, key=lambda name: (splits[name], name.startswith("valid")))
    chosen = {}
    for run, candidates in evaluations.items():
        if of_split := [evaluation for evaluation in candidates if evaluation.split == split]:
            chosen[run.label] = max(of_split, key=operator.methodcaller("rank", run.best_step))
        else:
            flags = [
                f"--{flag}={part}"
                for flag, part in zip(("split", "data"), split.split(" of ", 1), strict=False)
            ]
            command = evaluate_command(run.workdir.path, flags)
            notes.append(f"{run.label} has no evaluation of the split {split}; run {command}")
    if not chosen:
        return Comparison([], None, notes, chosen)
    compared = list(chosen.values())
    try:
        check_comparable(compared)
        systems = group_systems(compared)
        result = make_result(systems, compared[0].references, SAMPLES, SENTENCES)
    except UserError as error:
        return Comparison([], None, [*notes, str(error)], chosen)
    return Comparison(systems, result, notes, chosen)


def section(compared: Comparison) -> Section:
    if compared.result is None:
        return Section(
            "scores", "Scores", None, [*compared.notes, "There are no scores to compare."]
        )
    result = compared.result
    names = {system.label: system.name for system in compared.systems}
    words = [
        {"system": system.name} | group
        for system in compared.systems
        for evaluation in system.evaluations
        for group in f1_by_frequency(evaluation.hypotheses, compared.first.references)
    ]
    lengths = [
        {"group": span(group["shortest"], group["longest"]), "count": group["sentences"]}
        | {"system": names[label], "score": score}
        for group in result["bleu_by_length"]
        for label, score in group["bleu"].items()
    ]
    charts = {
        "lengths": grouped_bars(lengths, "tokens of the reference", "BLEU", "sentences").to_dict(),
        "frequencies": grouped_bars(
            words, "occurrences of the word in the references", "F1 (%)", "words"
        ).to_dict(),
    }
    panels = {
        "lengths": "BLEU by the length of the reference in tokens, the mean over seeds",
        "frequencies": "F1 of words by how often the references have the word, the mean over seeds",
    }
    makers = (text.setting_table, text.score_table, text.difference_table, text.run_table)
    content = {
        "decoding": text.describe_decoding(result),
        "tables": [table for table in (make(result) for make in makers) if len(table.rows) > 1],
        "panels": panels,
        "signatures": result["signatures"],
    }
    return Section("scores", "Scores", content, compared.notes, charts)


def f1_by_frequency(hypotheses: Sequence[str], references: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the F1 score of words in percent as `score`, by the frequency of the word in all
    references as `group`.

    A word of a hypothesis is found if its reference has it as well, as often as that has it. Words
    are separated by spaces. Groups without words are left out.
    """
    frequency = collections.Counter(word for line in references for word in line.split())
    matched = collections.Counter()
    wanted = collections.Counter()
    produced = collections.Counter()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        words = collections.Counter(hypothesis.split())
        expected = collections.Counter(reference.split())
        for counts, total in ((words & expected, matched), (expected, wanted), (words, produced)):
            for word, count in counts.items():
                # group -1: no reference has the word
                total[bisect.bisect(FREQUENCIES, frequency[word]) - 1] += count
    most = [*(least - 1 for least in FREQUENCIES[1:]), None]
    return [
        {
            "group": span(FREQUENCIES[i], most[i]),
            "count": wanted[i],
            "score": 200 * matched[i] / (wanted[i] + produced[i]),
        }
        for i in range(len(FREQUENCIES))
        if wanted[i]
    ]


def grouped_bars(rows: Sequence[Mapping[str, Any]], x: str, y: str, count: str) -> alt.Chart:
    """Returns a bar for each system in each group, the mean over its rows.

    Args:
      rows: records with the fields `group`, `system`, `score` and `count`.
      x, y, count: the titles of groups, scores and counts.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    legend = alt.Legend(title=None, orient="top") if len(systems) > 1 else None
    tips = [
        "system:N",
        alt.Tooltip("group:N", title=x),
        alt.Tooltip("mean(score):Q", title=y, format=".2f"),
    ]
    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_bar()
        .encode(
            x=alt.X("group:N", sort=groups, title=x, axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("system:N", sort=systems),
            y=alt.Y("mean(score):Q", title=y),
            color=theme.categories(alt.Color, "system", systems, theme.CATEGORICAL, legend=legend),
            tooltip=[*tips, alt.Tooltip("count:Q", title=count)],
        )
    )


def span(least: int, most: int | None) -> str:
    """Returns the name of a group; `most` of None has no limit."""
    if most is None:
        return f"{least}+"
    return str(least) if least == most else f"{least}\N{EN DASH}{most}"
