"""The sections on the runs and their settings."""

from collections.abc import Sequence

from scripts.evaluations import NEUTRAL, differing_keys
from scripts.reporting.section import Section
from scripts.runs import RecordedRun
from scripts.systems import System
from transformer import fingerprints
from transformer.config.keys import flatten, keys_of, show
from transformer.environment import short_commit

HEADER = (
    *("run", "system", "state", "data", "seed", "commit", "devices", "training"),
    *("vocabulary", "training data", "validation data"),
)


def runs_section(runs: Sequence[RecordedRun], systems: Sequence[System]) -> Section:
    """Returns the section. A run without a score is in none of the `systems`."""
    names = {evaluation.workdir: system.name for system in systems for evaluation in system.evaluations}
    note = "has no checkpoint: the sections on attention and beam search leave it out."
    notes = [f"{run.label} {note}" for run in runs if not run.has_checkpoint]
    rows = [_row(run, names.get(run.workdir.path, "")) for run in runs]
    return Section("overview", "Runs", {"header": HEADER, "rows": rows}, notes)


def _row(run: RecordedRun, system: str) -> tuple[str, ...]:
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


def settings_section(runs: Sequence[RecordedRun]) -> Section:
    """Returns the section with all keys, except those that do not change what a run computes."""
    neutral = keys_of(*NEUTRAL)
    configs = [{key: value for key, value in flatten(run.config).items() if key not in neutral} for run in runs]
    differing = differing_keys(configs)
    rows = [(key, *(show(config.get(key)) for config in configs)) for key in configs[0]]
    content = {
        "labels": [run.label for run in runs],
        "differing": [row for row in rows if row[0] in differing],
        "common": [row[:2] for row in rows if row[0] not in differing],
    }
    return Section("settings", "Settings", content)
