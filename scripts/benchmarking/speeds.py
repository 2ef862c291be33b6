"""The speeds of several systems on one task, in interleaved repetitions, since a machine's speed may drift."""

import contextlib
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from absl import logging

from scripts.benchmarking.measurement import Measurement, describe_machine, processor_kind
from scripts.benchmarking.processes import Contender, Failed, Worker, running
from transformer.errors import UserError
from transformer.model.kernels import computes_bfloat16

REPETITIONS = 9
EMULATED = "this processor has no instructions for bfloat16"
by_rate = attrgetter("rate")
HEADER = ("batch", "system", "tokens/s", "slowest", "fastest", "relative to the fastest peer", "our fastest / this")


class Speed(NamedTuple):
    """The measurements of one system: tokens of a repetition, seconds of each, and the version of its library."""

    contender: Contender
    tokens: int
    seconds: Sequence[float]
    version: str

    @property
    def rate(self) -> float:
        """Tokens per second, by the median."""
        return self.tokens / statistics.median(self.seconds)


class Comparison(NamedTuple):
    """The speeds of the systems that ran, and the reason of each peer that did not. `batch` names the task's shape."""

    batch: str
    speeds: Sequence[Speed]
    left_out: Mapping[str, str]


def compare(batch: str, task: Mapping[str, Any], contenders: Sequence[Contender], python: str | None) -> Comparison:
    """Measures all systems. A peer that fails, or counts other tokens, is left out.

    So are all systems in bfloat16 on a processor that emulates it, where a repetition may take minutes. `python` is the
    interpreter of the peers; None measures only ours. Raises UserError if one of our systems fails.
    """
    workers: list[Worker] = []
    left_out: dict[str, str] = {}

    @contextlib.contextmanager
    def leaving_out(contender: Contender) -> Iterator[None]:
        try:
            yield
        except Failed as failed:
            if not contender.is_peer:
                raise UserError(f"{contender.name}: {failed}") from None
            logging.warning("%s is left out: %s", contender.name, failed)
            left_out[contender.name] = str(failed)

    if python is None:
        contenders = [contender for contender in contenders if not contender.is_peer]
    if not computes_bfloat16():
        emulated = [contender for contender in contenders if contender.options.get("dtype") == "bfloat16"]
        left_out |= {contender.name: EMULATED for contender in emulated}
    with contextlib.ExitStack() as stack:
        for contender in contenders:
            if contender.name in left_out:
                continue
            logging.info("Preparing %s.", contender.name)
            with leaving_out(contender):
                interpreter = python if contender.is_peer else sys.executable
                worker = stack.enter_context(running(interpreter, contender, task))
                if workers and worker.tokens != workers[0].tokens:
                    raise Failed(f"counts {worker.tokens} tokens, not {workers[0].tokens}")
                workers.append(worker)
        for number in range(REPETITIONS):
            logging.info("%s: repetition %d of %d.", batch, number + 1, REPETITIONS)
            for worker in workers:
                if worker.contender.name not in left_out:
                    with leaving_out(worker.contender):
                        worker.repeat()
    speeds = [Speed(worker.contender, worker.tokens, worker.seconds, worker.version) for worker in workers]
    return Comparison(batch, [speed for speed in speeds if speed.contender.name not in left_out], left_out)


def tabulate(comparisons: Sequence[Comparison], threads: int) -> Measurement:
    """Returns the table of all comparisons, with notes on systems that are left out."""
    rows = [HEADER]
    versions = sorted({speed.version for comparison in comparisons for speed in comparison.speeds})
    notes = [f"Medians of {REPETITIONS} repetitions in turns; {describe_machine(threads)}."]
    notes.append(f"Versions: {', '.join(versions)}.")
    for batch, speeds, left_out in comparisons:
        peers = [speed for speed in speeds if speed.contender.is_peer]
        ours = [speed for speed in speeds if not speed.contender.is_peer and speed.contender.is_exact]
        best_peer, best_ours = max(peers, key=by_rate, default=None), max(ours, key=by_rate)
        for speed in speeds:
            slowest, fastest = speed.tokens / max(speed.seconds), speed.tokens / min(speed.seconds)
            rates = [f"{rate:,.0f}" for rate in (speed.rate, slowest, fastest)]
            ratio = f"{speed.rate / best_peer.rate:.2f}" if best_peer else "-"
            advantage = f"{best_ours.rate / speed.rate:.2f}" if speed.contender.is_peer else ""
            rows.append((batch, speed.contender.name, *rates, ratio, advantage))
        for reason in dict.fromkeys(left_out.values()):
            names = "; ".join(system for system, its_reason in left_out.items() if its_reason == reason)
            notes.append(f"Left out of {batch}: {names} ({reason}).")
    return Measurement(rows, notes, processor_kind())
