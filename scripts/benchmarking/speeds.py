"""The speeds of several systems on one task.

Repetitions are interleaved (A B C A B C ...), so that a drift of the machine's speed affects all systems alike.
"""

import contextlib
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from absl import logging

from scripts.benchmarking.processes import Failed, System, Worker, running
from scripts.benchmarking.report import Report, describe_machine, processor_kind
from transformer.errors import UserError
from transformer.model.products import computes_bfloat16

EMULATED = "this processor has no instructions for bfloat16"
by_rate = attrgetter("rate")
HEADER = ("batch", "system", "tokens/s", "slowest", "fastest", "relative to the fastest peer", "our fastest / this")


class Speed(NamedTuple):
    """The measurements of one system: tokens of a repetition, seconds of each, and the version of its library."""

    name: str
    is_peer: bool
    tokens: int
    seconds: Sequence[float]
    version: str
    is_exact: bool = True

    @property
    def rate(self) -> float:
        """Tokens per second, by the median."""
        return self.tokens / statistics.median(self.seconds)


class Comparison(NamedTuple):
    """The speeds of the systems that ran, and the reason of each peer that did not. `batch` names the task's shape."""

    batch: str
    speeds: Sequence[Speed]
    left_out: Mapping[str, str]


def compare(
    batch: str,
    task: Mapping[str, Any],
    ours: Sequence[System],
    peers: Sequence[System],
    python: str | None,
    repetitions: int,
) -> Comparison:
    """Measures all systems. A peer that fails, or counts other tokens, is left out.

    So are all systems in bfloat16 on a processor that emulates it, where a repetition may take minutes.

    Args:
      task: the work of all systems. Its `threads` is the number of cores that each of them may use.
      python: the interpreter of the peers; None measures only ours.

    Raises:
      UserError: one of our systems fails.
    """
    workers: list[Worker] = []
    left_out: dict[str, str] = {}

    @contextlib.contextmanager
    def leaving_out(system: System) -> Iterator[None]:
        try:
            yield
        except Failed as failed:
            if system in ours:
                raise UserError(f"{system.name}: {failed}") from None
            logging.warning("%s is left out: %s", system.name, failed)
            left_out[system.name] = str(failed)

    interpreters = [(system, sys.executable) for system in ours] + [(system, python) for system in peers if python]
    if not computes_bfloat16():
        emulated = [system for system, _ in interpreters if system.options.get("dtype") == "bfloat16"]
        left_out |= {system.name: EMULATED for system in emulated}
        interpreters = [each for each in interpreters if each[0] not in emulated]
    with contextlib.ExitStack() as stack:
        for system, interpreter in interpreters:
            logging.info("Preparing %s.", system.name)
            with leaving_out(system):
                worker = stack.enter_context(running(interpreter, system, task))
                if workers and worker.tokens != workers[0].tokens:
                    raise Failed(f"counts {worker.tokens} tokens, not {workers[0].tokens}")
                workers.append(worker)
        for number in range(repetitions):
            logging.info("%s: repetition %d of %d.", batch, number + 1, repetitions)
            for worker in workers:
                if worker.system.name not in left_out:
                    with leaving_out(worker.system):
                        worker.repeat()
    finished = [worker for worker in workers if worker.system.name not in left_out]
    speeds = [
        Speed(w.system.name, w.system not in ours, w.tokens, w.seconds, w.version, w.system.is_exact) for w in finished
    ]
    return Comparison(batch, speeds, left_out)


def report(comparisons: Sequence[Comparison], threads: int, repetitions: int) -> Report:
    """Returns the table of all comparisons, with notes on systems that are left out."""
    rows, values, summary = [HEADER], [], {}
    notes = [f"Medians of {repetitions} repetitions in turns; {describe_machine(threads)}."]
    versions = {speed.version for each in comparisons for speed in each.speeds}
    notes.append(f"Versions: {', '.join(sorted(versions))}.")
    for batch, speeds, left_out in comparisons:
        best_peer = max((speed for speed in speeds if speed.is_peer), key=by_rate, default=None)
        best_ours = max((speed for speed in speeds if not speed.is_peer and speed.is_exact), key=by_rate)
        if best_peer:
            summary[batch] = f"{best_ours.rate / best_peer.rate:.2f} ({best_peer.name}{without(left_out)})"
        for speed in speeds:
            slowest, fastest = speed.tokens / max(speed.seconds), speed.tokens / min(speed.seconds)
            ratio = speed.rate / best_peer.rate if best_peer else None
            rates = [f"{rate:,.0f}" for rate in (speed.rate, slowest, fastest)]
            shown = f"{ratio:.2f}" if ratio else "-"
            advantage = f"{best_ours.rate / speed.rate:.2f}" if speed.is_peer else ""
            rows.append((batch, speed.name, *rates, shown, advantage))
            found = {"batch": batch, "tokens_per_second": speed.rate, "slowest": slowest, "fastest": fastest}
            values.append({**speed._asdict(), **found, "relative_to_fastest_peer": ratio})
        for reason in dict.fromkeys(left_out.values()):
            names = "; ".join(name for name, each in left_out.items() if each == reason)
            notes.append(f"Left out of {batch}: {names} ({reason}).")
    skipped = [{"batch": each.batch, "left_out": dict(each.left_out)} for each in comparisons if each.left_out]
    return Report(rows, notes, {"threads": threads, "systems": values, "left_out": skipped}, summary, processor_kind())


def without(left_out: Mapping[str, str]) -> str:
    """Returns ", without A and B" for the peers that failed, or ""."""
    failed = " and ".join(name for name, reason in left_out.items() if reason != EMULATED)
    return f", without {failed}" if failed else ""
