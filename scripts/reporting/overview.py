"""The first section of the report: what the runs are."""

from collections.abc import Sequence

from scripts.reporting.runs import Run
from scripts.reporting.section import Section
from transformer import fingerprints
from transformer.environment import short_commit

HEADER = (
    "run",
    "state",
    "data",
    "seed",
    "commit",
    "devices",
    "training",
    "vocabulary",
    "training data",
    "validation data",
)


def section(runs: Sequence[Run]) -> Section:
    note = "has no checkpoint: the sections on attention and beam search leave it out."
    notes = [f"{run.label} {note}" for run in runs if not run.has_checkpoint]
    return Section("overview", "Runs", {"header": HEADER, "rows": [_row(run) for run in runs]}, notes)


def _row(run: Run) -> tuple[str, ...]:
    config, environment = run.config, run.environment
    steps = f"{run.step:,} of {config.training.steps:,} steps"
    devices = environment.get("devices") or ["unknown"]
    seconds = max((line["seconds"] for line in run.record if "seconds" in line), default=0.0)
    digests = fingerprints.read(run.workdir.path)
    languages = "-".join(filter(None, (config.data.source_language, config.data.target_language)))
    return (
        *(run.label, "complete" if run.workdir.is_complete() else steps, f"{config.data.name}, {languages}"),
        *(str(config.seed), short_commit(environment), f"{len(devices)} {devices[0]}", f"{seconds / 60:.0f} min"),
        *(digests.get(name, "unknown")[:8] for name in fingerprints.ADVICE),
    )
