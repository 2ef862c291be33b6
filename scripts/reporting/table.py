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
from transformer.config.keys import show
from transformer.decoding.bleu import METRICS, metrics_in
from transformer.support.errors import UserError
from transformer.workdir import open_existing

SEARCH = tuple(
    f"decoding.{key}"
    for key in ("strategy", "beam_size", "length_penalty", "length_penalty_form", "shortlist")
)
# in every row, even if they do not differ
SHOWN = {"data.name", *SEARCH, "averaged", "split", "step", "commit"}


def read_results(path: Path) -> list[Evaluation]:
    """Returns the evaluations of a run on splits.

    Raises UserError if it is not complete or has none.
    """
    workdir, _ = open_existing(path, "WORKDIR")
    if not workdir.is_complete():
        raise UserError(
            f"{path}: this run is not complete; run the same transformer.train command to continue it"
        )
    if not (evaluations := read_evaluations(workdir)):
        raise UserError(f"{path}: has no evaluation; run {evaluate_command(path)}")
    return evaluations


def make_table(evaluations: Sequence[Evaluation]) -> str:
    """Returns a Markdown table with a row for each system, followed by the signatures of the
    scores.
    """
    scores = [
        name
        for name in metrics_in("results")
        if any(name in evaluation.result for evaluation in evaluations)
    ]
    header = (
        "config",
        "split",
        "sentences",
        "decoding",
        "seeds",
        *scores,
        "training",
        "commit",
        "device",
    )
    signed = [
        evaluation.result.get(f"{name}_signature") for evaluation in evaluations for name in scores
    ]
    signatures = ", ".join(sorted({f"`{text}`" for text in signed if text}))
    rows = [make_row(system, scores) for system in group_systems(evaluations)]
    return markdown.table([header, *rows], [f"Signatures: {signatures}."])


def make_row(system: System, scores: Sequence[str]) -> tuple[str, ...]:
    first = system.evaluations[0]
    result = system.evaluations[0].result
    config = [first.config.data.name]
    decoding = [describe_search(first.decoding)]
    for key, value in system.differences.items():
        if key not in SHOWN:
            column = decoding if key.startswith("decoding.") else config
            column.append(f"{key.removeprefix('decoding.')}={show(value)}")
    shown = []
    for name in scores:  # a cell is empty if an evaluation lacks the score
        values = [
            evaluation.result[name]
            for evaluation in system.evaluations
            if name in evaluation.result
        ]
        complete = len(values) == len(system.evaluations)
        shown.append(mean_and_spread(values, METRICS[name].format) if complete else "")
    steps = [evaluation.result["step"] for evaluation in system.evaluations]
    decoding.append(describe_checkpoints(steps, result["averaged"]))
    devices = first.environment["devices"]
    cpus = first.environment["cpu_count"]
    return (
        ", ".join(config),
        first.text,
        str(result["sentences"]),
        ", ".join(decoding),
        ", ".join(
            str(seed)
            for seed in sorted(evaluation.config.seed for evaluation in system.evaluations)
        ),
        *shown,
        f"{statistics.mean(evaluation.training_seconds for evaluation in system.evaluations) / 60:.0f} min",
        ", ".join(sorted({evaluation.commit for evaluation in system.evaluations})),
        f"{cpus} CPU cores" if set(devices) == {"cpu"} else f"{len(devices)} {devices[0]}",
    )
