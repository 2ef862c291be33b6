"""The report of a verification: as text, as JSON, and as a row of a table of devices."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from scripts import markdown
from scripts.benchmarking.measurement import processor_name
from scripts.verification.outcomes import Outcome, Speed
from transformer.support import files

HEADER = ("task", "ms", "tokens/s", "utilization", "of the bound", "memory, GiB", "first call, s")
ROW_HEADER = ("devices", "JAX", "commit", "checks passed", *HEADER)


def describe_devices() -> Iterator[tuple[str, str]]:
    """Yields the name of the devices in a report, and the version of JAX."""
    count = len(jax.devices())
    device = jax.devices()[0]
    name = processor_name() if device.platform == "cpu" else device.device_kind
    if count > 1:
        name = f"{count} x {name}"
    yield name, jax.__version__


class VerificationReport(NamedTuple):
    """The results of a verification.

    Attributes:
      devices: the name of the devices.
      jax, commit: the versions of JAX and of the code.
      outcomes: the outcomes of the checks, by group.
      speeds: the measured speeds.
    """

    devices: str
    jax: str
    commit: str
    outcomes: dict[str, list[Outcome]]
    speeds: list[Speed]

    @property
    def num_checks(self) -> int:
        return sum(map(len, self.outcomes.values()))

    @property
    def failed(self) -> list[str]:
        """The failed checks, each with its group and error."""
        failed = []
        for group, outcomes in self.outcomes.items():
            for outcome in outcomes:
                if not outcome.passed:
                    failed.append(f"{group}, {outcome.name}: {outcome.error:.2g}")
        return failed

    @property
    def verdict(self) -> str:
        if self.failed:
            count = f"{len(self.failed)} of {self.num_checks}"
            return f"{self.devices}: {count} checks failed: {'; '.join(self.failed)}"
        return f"{self.devices}: computes what it should; all {self.num_checks} checks passed"

    def to_json(self) -> dict[str, Any]:
        """Returns JSON data, with None for errors that are not finite."""
        outcomes = {
            group: list(map(_as_json, outcomes)) for group, outcomes in self.outcomes.items()
        }
        speeds = [speed._asdict() for speed in self.speeds]
        return self._asdict() | {"verdict": self.verdict, "outcomes": outcomes, "speeds": speeds}

    def save(self, folder: Path | None) -> None:
        if folder is not None:
            files.write_json(folder / "verification.json", files.six_digits(self.to_json()))

    def publish(self, readme: str) -> None:
        """Replaces the rows of these devices in the table between the marks `devices` of a file."""
        rows = [row for row in markdown.read_table("devices", readme) if row[0] != self.devices]
        # One row for each speed, or an empty row if there is none.
        passed = f"{self.num_checks - len(self.failed)} of {self.num_checks}"
        speeds = list(map(cells, self.speeds)) or [[""] * len(HEADER)]
        rows += [[self.devices, self.jax, self.commit, passed, *speed] for speed in speeds]
        markdown.publish(markdown.table([ROW_HEADER, *rows]), "devices", readme)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    error = outcome.error if math.isfinite(outcome.error) else None
    return outcome._asdict() | {"error": error, "passed": outcome.passed}


def describe(outcome: Outcome) -> str:
    """Returns the line of a check, with its error and bar."""
    mark = "passed" if outcome.passed else "FAILED"
    return f"  {mark}  {outcome.error:8.1e} of {outcome.bar:7.1e}  {outcome.name}"


def cells(speed: Speed) -> list[str]:
    """Returns the cells of a row of the table."""
    return [
        speed.task,
        f"{1e3 * speed.seconds:.1f}",
        f"{speed.tokens_per_second:,.0f}",
        "" if speed.utilization is None else f"{speed.utilization:.0%}",
        "" if speed.of_bound is None else f"{speed.of_bound:.2f}",
        "" if speed.memory is None else f"{speed.memory / 2**30:.1f}",
        f"{speed.compilation:.0f}",
    ]
