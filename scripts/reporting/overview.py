"""The first section of the report: what the runs are."""

from collections.abc import Sequence

from scripts.reporting.runs import Run
from scripts.reporting.section import Section
from scripts.systems import System
from transformer import fingerprints
from transformer.environment import short_commit

HEADER = (
    "run",
    "system",
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


def section(runs: Sequence[Run], systems: Sequence[System]) -> Section:
    """Returns the section. `systems` are those of the scores; a run without a score is in none."""
    names = {evaluation.workdir: system.name for system in systems for evaluation in system.evaluations}
    note = "has no checkpoint: the sections on attention and beam search leave it out."
    notes = [f"{run.label} {note}" for run in runs if not run.has_checkpoint]
    rows = [_row(run, names.get(run.workdir.path, "")) for run in runs]
    return Section("overview", "Runs", {"header": HEADER, "rows": rows}, notes)


def _row(run: Run, system: str) -> tuple[str, ...]:
    config, environment = run.config, run.environment
    steps = f"{run.step:,} of {config.training.steps:,} steps"
    devices = environment.get("devices") or ["unknown"]
    seconds = max((line["seconds"] for line in run.record if "seconds" in line), default=0.0)
    digests = fingerprints.read(run.workdir.path)
    languages = "-".join(filter(None, (config.data.source_language, config.data.target_language)))
    return (
        *(run.label, system, "complete" if run.workdir.is_complete() else steps, f"{config.data.name}, {languages}"),
        *(str(config.seed), short_commit(environment), f"{len(devices)} {devices[0]}", f"{seconds / 60:.0f} min"),
        *(digests.get(name, "unknown")[:8] for name in fingerprints.ADVICE),
    )
