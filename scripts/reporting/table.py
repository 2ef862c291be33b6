"""The table of results in Markdown: a row for each system."""

import itertools
import json
import statistics
from collections.abc import Sequence

from scripts import markdown
from scripts.results.evaluations import Evaluation, external_names
from scripts.results.sentence_scores import metric_of
from scripts.results.systems import (
    System,
    describe_checkpoints,
    describe_search,
    group_systems,
    mean_and_spread,
)
from transformer.config.keys import format_value
from transformer.decoding.metrics import metrics_in
from transformer.support.errors import UserError

SEARCH = ("strategy", "beam_size", "length_penalty", "length_penalty_form", "shortlist")
# Settings that have their own column, or a place in each row.
SHOWN = {"data.name", "averaged", "split", "step", "commit"}
SHOWN |= {f"decoding.{key}" for key in SEARCH}


def make_table(evaluations: Sequence[Evaluation]) -> str:
    """Returns a Markdown table with a row for each system, and the signatures of the scores."""
    results = [evaluation.result for evaluation in evaluations]
    names = [*metrics_in("results"), *itertools.chain(*map(external_names, results))]
    scores = [name for name in dict.fromkeys(names) if any(name in result for result in results)]
    signatures = {result.get(f"{name}_signature") for result in results for name in scores}
    quoted = ", ".join(sorted(f"`{signature}`" for signature in signatures if signature))
    settings = ("config", "split", "sentences", "decoding", "seeds")
    header = (*settings, *scores, "training", "commit", "device")
    rows = [make_row(system, scores) for system in group_systems(evaluations)]
    return markdown.table([header, *rows], [f"Signatures: {quoted}."])


def make_row(system: System, scores: Sequence[str]) -> tuple[str, ...]:
    evaluations = system.evaluations
    first = evaluations[0]
    results = [evaluation.result for evaluation in evaluations]

    # Settings of the search have their own column.
    config = [first.config.data.name]
    decoding = [describe_search(first.decoding)]
    for key, value in system.differences.items():
        if key not in SHOWN:
            column = decoding if key.startswith("decoding.") else config
            column.append(f"{key.removeprefix('decoding.')}={format_value(value)}")
    steps = [result["step"] for result in results]
    decoding.append(describe_checkpoints(steps, results[0]["averaged"]))

    cells = []
    for name in scores:
        values = [result[name] for result in results if name in result]

        # A cell is empty if an evaluation lacks the score.
        is_complete = len(values) == len(results)
        cells.append(mean_and_spread(values, metric_of(name).format) if is_complete else "")
    seeds = sorted(evaluation.config.seed for evaluation in evaluations)
    return (
        ", ".join(config),
        first.text,
        str(results[0]["sentences"]),
        ", ".join(decoding),
        ", ".join(map(str, seeds)),
        *cells,
        f"{mean_minutes(evaluations):.0f} min",
        ", ".join(sorted({evaluation.commit for evaluation in evaluations})),
        describe_device(first),  # of the first seed
    )


def make_matrix(evaluations: Sequence[Evaluation], metric: str) -> str:
    """Returns a Markdown table of a score, with a row for each text and a column for each system.

    A system has the same settings for all texts. Its column is named after its first run, and a
    note describes its search and seeds. Raises UserError if an evaluation does not have the score.
    """
    names = {}  # the name of each system, by its settings
    notes = [f"Scores are {metric}."]
    cells = {}  # the scores of each text, by the settings of the system
    for system in group_systems(evaluations):
        first = system.evaluations[0]
        results = [evaluation.result for evaluation in system.evaluations]
        if not all(isinstance(result.get(metric), float | int) for result in results):
            raise UserError(
                f"--metric={metric}: the evaluation on {first.text} of {first.workdir} does not "
                "have it; name another metric"
            )
        settings = json.dumps(first.settings | system.differences | {"split": None})
        if settings not in names:
            names[settings] = f"{len(names) + 1}: {first.workdir.name}"
            seeds = ", ".join(str(evaluation.config.seed) for evaluation in system.evaluations)
            steps = describe_checkpoints([result["step"] for result in results], first.average)
            search = describe_search(first.decoding)
            notes.append(f"{names[settings]}: {search}, {steps}, seeds {seeds}.")
        score = mean_and_spread([result[metric] for result in results], metric_of(metric).format)
        cells.setdefault(first.text, {})[settings] = score
    rows = [[text, *(scores.get(key, "") for key in names)] for text, scores in cells.items()]
    return markdown.table([["text", *names.values()], *rows], notes)


def mean_minutes(evaluations: Sequence[Evaluation]) -> float:
    """Returns the mean time of the training loop."""
    return statistics.mean(evaluation.training_seconds for evaluation in evaluations) / 60


def describe_device(evaluation: Evaluation) -> str:
    """Returns the devices of a run in words, such as "2 CPU cores"."""
    devices = evaluation.environment["devices"]
    if set(devices) == {"cpu"}:
        return f"{evaluation.environment['cpu_count']} CPU cores"
    return f"{len(devices)} {devices[0]}"
