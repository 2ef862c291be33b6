"""The runs of sweeps, for commands that compare runs. Optuna is imported for a sweep only."""

from collections.abc import Sequence
from pathlib import Path


def expand_sweeps(names: Sequence[str]) -> list[Path]:
    """Returns the paths, with the complete trials in place of a sweep's folder."""
    paths = []
    for path in map(Path, names):
        if (path / "sweep.json").exists():
            from scripts.sweeping.folder import SweepFolder

            paths += SweepFolder(path).complete_runs()
        else:
            paths.append(path)
    return paths
