"""The speeds of several systems on one task.

The systems repeat the task in turns, since the speed of a machine may drift.
"""

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from absl import logging

from scripts import markdown
from scripts.benchmarking.measurement import describe_machine
from scripts.benchmarking.processes import BenchmarkWorker, Contender, Failed, running
from transformer.support.errors import UserError
from transformer.support.processor import computes_bfloat16, computes_int8

REPETITIONS = 9
EMULATED = "this processor has no instructions for its dtype"
by_rate = attrgetter("rate")
HEADER = (
    "batch",
    "system",
    "tokens/s",
    "slowest",
    "fastest",
    "relative to the fastest peer",
    "our fastest / this",
)


class SpeedComparison(NamedTuple):
    """A comparison of systems on one task.

    Attributes:
      batch: the name of the task's shape.
      workers: the systems that ran.
      left_out: the reason for each system that did not run, by name.
    """

    batch: str
    workers: Sequence[BenchmarkWorker]
    left_out: Mapping[str, str]


def compare(
    batch: str, task: Mapping[str, Any], contenders: Sequence[Contender], python: str | None
) -> SpeedComparison:
    """Measures all systems.

    A peer that fails, or counts other tokens, is left out. All systems in bfloat16 are left out on
    a processor that emulates it, where a repetition may take minutes. `python` is the interpreter
    of the peers; None measures only our systems. Raises UserError if one of our systems fails.
    """
    workers = []
    left_out = {}

    @contextlib.contextmanager
    def leaving_out(contender: Contender) -> Iterator[None]:
        try:
            yield
        except Failed as failed:
            if not contender.is_peer:
                raise UserError(f"{contender.name}: {failed}") from None
            logging.warning("%s is left out: %s", contender.name, failed)
            left_out[contender.name] = str(failed)

    # All systems are prepared before the first repetition, and wait in their processes.
    with contextlib.ExitStack() as stack:
        for contender in contenders:
            if contender.is_peer and python is None:
                continue
            if _is_emulated(contender):
                left_out[contender.name] = EMULATED
                continue
            logging.info("Preparing %s.", contender.name)
            interpreter = python if contender.is_peer else sys.executable
            with leaving_out(contender):
                worker = stack.enter_context(running(interpreter, contender, task))
                # Speeds are comparable only if all systems count the same tokens.
                if workers and worker.tokens != workers[0].tokens:
                    raise Failed(f"counts {worker.tokens} tokens, not {workers[0].tokens}")
                workers.append(worker)

        for number in range(1, REPETITIONS + 1):
            logging.info("%s: repetition %d of %d.", batch, number, REPETITIONS)
            for worker in workers:
                with leaving_out(worker.contender):
                    worker.repeat()
            # A system may also fail in a repetition.
            workers = [worker for worker in workers if worker.contender.name not in left_out]
    return SpeedComparison(batch, workers, left_out)


def _is_emulated(contender: Contender) -> bool:
    """True if this processor has no instructions for the dtype of the system."""
    dtype = contender.options.get("dtype")
    if dtype == "bfloat16":
        return not computes_bfloat16()
    # The peers' int8 runs on all processors.
    return dtype == "int8" and not contender.is_peer and not computes_int8()


def tabulate(comparisons: Sequence[SpeedComparison], threads: int) -> str:
    """Returns a table of the comparisons in Markdown, with notes about systems left out."""
    versions = {worker.version for comparison in comparisons for worker in comparison.workers}
    rows = [HEADER]
    notes = [
        f"Medians of {REPETITIONS} repetitions in turns; {describe_machine(threads)}.",
        f"Versions: {', '.join(sorted(versions))}.",
    ]
    for batch, workers, left_out in comparisons:
        peers = [worker for worker in workers if worker.contender.is_peer]
        ours = [worker for worker in workers if not worker.contender.is_peer]
        best_peer = max(peers, key=by_rate, default=None)
        best_ours = max((worker for worker in ours if worker.contender.is_exact), key=by_rate)

        # A row for each system: its speed relative to the fastest peer, and our advantage over it.
        for worker in workers:
            slowest = worker.tokens / max(worker.seconds)
            fastest = worker.tokens / min(worker.seconds)
            rates = [f"{rate:,.0f}" for rate in (worker.rate, slowest, fastest)]
            ratio = f"{worker.rate / best_peer.rate:.2f}" if best_peer else "-"
            advantage = f"{best_ours.rate / worker.rate:.2f}" if worker.contender.is_peer else ""
            rows.append((batch, worker.contender.name, *rates, ratio, advantage))

        names_by_reason = defaultdict(list)
        for name, reason in left_out.items():
            names_by_reason[reason].append(name)
        for reason, names in names_by_reason.items():
            notes.append(f"Left out of {batch}: {'; '.join(names)} ({reason}).")
    return markdown.table(rows, notes)
