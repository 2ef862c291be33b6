"""The speeds of several systems on one task, in interleaved repetitions, since a machine's speed
may drift.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from absl import logging

from scripts import markdown
from scripts.benchmarking.measurement import describe_machine
from scripts.benchmarking.processes import Contender, Failed, Worker, running
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


class Comparison(NamedTuple):
    """The systems that ran, and the reason of each peer that did not.

    `batch` names the task's shape.
    """

    batch: str
    workers: Sequence[Worker]
    left_out: Mapping[str, str]


def compare(
    batch: str, task: Mapping[str, Any], contenders: Sequence[Contender], python: str | None
) -> Comparison:
    """Measures all systems. A peer that fails, or counts other tokens, is left out.

    So are all systems in bfloat16 on a processor that emulates it, where a repetition may take
    minutes. `python` is the interpreter of the peers; None measures only ours. Raises UserError if
    one of our systems fails.
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

    with contextlib.ExitStack() as stack:
        for contender in contenders:
            if contender.is_peer and python is None:
                continue
            dtype = contender.options.get("dtype")
            # the peer's int8 runs on all processors
            is_ours_in_int8 = dtype == "int8" and not contender.is_peer
            if (dtype == "bfloat16" and not computes_bfloat16()) or (
                is_ours_in_int8 and not computes_int8()
            ):
                left_out[contender.name] = EMULATED
                continue
            logging.info("Preparing %s.", contender.name)
            interpreter = python if contender.is_peer else sys.executable
            with leaving_out(contender):
                worker = stack.enter_context(running(interpreter, contender, task))
                if workers and worker.tokens != workers[0].tokens:
                    raise Failed(f"counts {worker.tokens} tokens, not {workers[0].tokens}")
                workers.append(worker)
        for number in range(REPETITIONS):
            logging.info("%s: repetition %d of %d.", batch, number + 1, REPETITIONS)
            for worker in workers:
                with leaving_out(worker.contender):
                    worker.repeat()
            workers = [worker for worker in workers if worker.contender.name not in left_out]
    return Comparison(batch, workers, left_out)


def tabulate(comparisons: Sequence[Comparison], threads: int) -> str:
    """Returns the table of all comparisons in Markdown, with notes on systems that are left out."""
    rows = [HEADER]
    versions = sorted(
        {worker.version for comparison in comparisons for worker in comparison.workers}
    )
    notes = [f"Medians of {REPETITIONS} repetitions in turns; {describe_machine(threads)}."]
    notes.append(f"Versions: {', '.join(versions)}.")
    for batch, workers, left_out in comparisons:
        peers = [worker for worker in workers if worker.contender.is_peer]
        ours = [
            worker
            for worker in workers
            if not worker.contender.is_peer and worker.contender.is_exact
        ]
        best_peer = max(peers, key=by_rate, default=None)
        best_ours = max(ours, key=by_rate)
        for worker in workers:
            slowest = worker.tokens / max(worker.seconds)
            fastest = worker.tokens / min(worker.seconds)
            rates = [f"{rate:,.0f}" for rate in (worker.rate, slowest, fastest)]
            ratio = f"{worker.rate / best_peer.rate:.2f}" if best_peer else "-"
            advantage = f"{best_ours.rate / worker.rate:.2f}" if worker.contender.is_peer else ""
            rows.append((batch, worker.contender.name, *rates, ratio, advantage))
        for reason in dict.fromkeys(left_out.values()):
            names = "; ".join(
                system for system, its_reason in left_out.items() if its_reason == reason
            )
            notes.append(f"Left out of {batch}: {names} ({reason}).")
    return markdown.table(rows, notes)
