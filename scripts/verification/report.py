"""The report of a verification: for a reader, as JSON, and as a row of a table of devices."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from scripts import markdown
from scripts.verification.outcomes import Outcome, Speed

HEADER = ("task", "ms", "tokens/s", "utilization", "of the bound", "memory, GiB", "first call, s")
ROW_HEADER = ("devices", "JAX", "checks passed", "task", *HEADER[1:])


def describe_devices() -> Iterator[tuple[str, str]]:
    """Yields the devices as a report names them, and the version of JAX."""
    kind, count = jax.devices()[0].device_kind, len(jax.devices())
    yield (f"{count} x {kind}" if count > 1 else kind), jax.__version__


class Report(NamedTuple):
    """The result of a verification: the devices, the version of JAX, the outcomes by group, and the speeds."""

    devices: str
    jax: str
    outcomes: Mapping[str, Sequence[Outcome]]
    speeds: Sequence[Speed]

    @property
    def all_outcomes(self) -> list[Outcome]:
        return sum(map(list, self.outcomes.values()), [])

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.all_outcomes if not outcome.passed]

    @property
    def verdict(self) -> str:
        if self.failed:
            names = "; ".join(f"{outcome.name}: {outcome.error:.2g}" for outcome in self.failed)
            return f"{self.devices}: {len(self.failed)} of {len(self.all_outcomes)} checks failed: {names}"
        return f"{self.devices}: computes what it should; all {len(self.all_outcomes)} checks passed"

    def to_json(self) -> dict[str, Any]:
        outcomes = {
            group: [outcome._asdict() | {"passed": outcome.passed} for outcome in outcomes]
            for group, outcomes in self.outcomes.items()
        }
        return self._asdict() | {"outcomes": outcomes, "speeds": [speed._asdict() for speed in self.speeds]}

    def publish(self, readme: str) -> None:
        """Puts a row for each speed into the table between the marks `devices` of a file, in place of this device's."""
        rows = [[self.devices, self.jax, self._passed, *cells(speed)] for speed in self.speeds]
        others = [row for row in markdown.read_table("devices", readme) if row[0] != self.devices]
        markdown.publish(markdown.table([ROW_HEADER, *others, *rows]), "devices", readme)

    @property
    def _passed(self) -> str:
        return f"{len(self.all_outcomes) - len(self.failed)} of {len(self.all_outcomes)}"


def describe(outcome: Outcome) -> str:
    """Returns the line of a check, with its error and bar."""
    mark = "passed" if outcome.passed else "FAILED"
    return f"  {mark}  {outcome.error:8.1e} of {outcome.bar:7.1e}  {outcome.name}"


def cells(speed: Speed) -> list[str]:
    """Returns the cells of a row of the table."""

    def shown(value: float | None, pattern: str) -> str:
        return "" if value is None else pattern.format(value)

    gib = None if speed.memory is None else speed.memory / 2**30
    return [
        speed.task,
        f"{1e3 * speed.seconds:.1f}",
        f"{speed.tokens_per_second:,.0f}",
        shown(speed.utilization, "{:.0%}"),
        shown(speed.of_bound, "{:.2f}"),
        shown(gib, "{:.1f}"),
        f"{speed.compilation:.0f}",
    ]
