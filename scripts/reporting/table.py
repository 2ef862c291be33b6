"""The table of results in Markdown: a row for each system."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from scripts import markdown
from scripts.results.evaluations import Evaluation, evaluate_command, read_evaluations
from scripts.results.systems import (
    System,
    describe_checkpoints,
    describe_search,
    group_systems,
    mean_and_spread,
)
from transformer.config.keys import format_value
from transformer.decoding.bleu import METRICS, metrics_in
from transformer.support.errors import UserError
from transformer.workdir import open_existing

SEARCH = ("strategy", "beam_size", "length_penalty", "length_penalty_form", "shortlist")
# Settings that have their own column, or a place in each row.
SHOWN = {"data.name", "averaged", "split", "step", "commit"}
SHOWN |= {f"decoding.{key}" for key in SEARCH}


def read_results(path: Path) -> list[Evaluation]:
    """Returns the evaluations of a run on splits.

    Raises UserError if the run is not complete or has no evaluation.
    """
    workdir, _ = open_existing(path, "WORKDIR")
    if not workdir.is_complete():
        raise UserError(
            f"{path}: this run is not complete; "
            "run the same transformer.train command to continue it"
        )
    evaluations = read_evaluations(workdir)
    if not evaluations:
        raise UserError(f"{path}: has no evaluation; run {evaluate_command(path)}")
    return evaluations


def make_table(evaluations: Sequence[Evaluation]) -> str:
    """Returns a Markdown table with a row for each system, and the signatures of the scores."""
    results = [evaluation.result for evaluation in evaluations]
    scores = [name for name in metrics_in("results") if any(name in result for result in results)]
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
        cells.append(mean_and_spread(values, METRICS[name].format) if is_complete else "")
    seeds = sorted(evaluation.config.seed for evaluation in evaluations)
    seconds = statistics.mean(evaluation.training_seconds for evaluation in evaluations)

    # The device is that of the first seed.
    devices = first.environment["devices"]
    device = f"{len(devices)} {devices[0]}"
    if set(devices) == {"cpu"}:
        device = f"{first.environment['cpu_count']} CPU cores"
    return (
        ", ".join(config),
        first.text,
        str(results[0]["sentences"]),
        ", ".join(decoding),
        ", ".join(map(str, seeds)),
        *cells,
        f"{seconds / 60:.0f} min",
        ", ".join(sorted({evaluation.commit for evaluation in evaluations})),
        device,
    )
