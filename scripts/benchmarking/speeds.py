"""The speed of a training step and of a beam search, of this project and of its peers.

training: target tokens a second of one step with Adam, padding not counted. decoding: output tokens a second, the same
number of tokens for every sentence. The repetitions of all systems are interleaved, since a machine's speed may drift.
"""

import argparse
import contextlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from absl import logging

from scripts.benchmarking.measurement import Measurement, describe_machine, processor_kind
from scripts.benchmarking.processes import Contender, Failed, Worker, count_threads, find_interpreter, running
from transformer.errors import UserError
from transformer.model.kernels import computes_bfloat16, computes_int8
from transformer.special_tokens import BOS, EOS, PAD, SPECIAL

REPETITIONS = 9
EMULATED = "this processor has no instructions for its dtype"
by_rate = attrgetter("rate")
HEADER = ("batch", "system", "tokens/s", "slowest", "fastest", "relative to the fastest peer", "our fastest / this")
LENGTHS = 8  # of the sentences in a training batch: those that `batch.length_multiple` puts into one bucket
SENTENCES = (16, 1)  # of a batch to translate
TOKENS = 32  # of a source and of an output, end-of-sentence included
BEAM_SIZE = 4
OURS, PEERS = "scripts.benchmarking.ours", "scripts.benchmarking.peers"
TRAIN, TRANSLATE = f"{OURS}:prepare_training", f"{OURS}:prepare_decoding"
TORCH, MARIAN = f"{PEERS}.torch_training:prepare", f"{PEERS}.marian_decoding:prepare"
HUGGING_FACE, CTRANSLATE2 = (f"{PEERS}.hugging_face:prepare_{way}" for way in ("generate", "ctranslate2"))
TOKENS_BY_NAME = {"pad": PAD, "bos": BOS, "eos": EOS}
DTYPES = ("float32", "bfloat16")
TRAINING = [
    *(Contender(f"this project, {dtype}", TRAIN, {"dtype": dtype}) for dtype in DTYPES),
    *(Contender(f"PyTorch eager, {dtype}", TORCH, {"dtype": dtype, "compile": False}, True) for dtype in DTYPES),
    *(Contender(f"PyTorch compiled, {dtype}", TORCH, {"dtype": dtype, "compile": True}, True) for dtype in DTYPES),
]
DECODING = [
    *(Contender(f"this project, {dtype}", TRANSLATE, {"dtype": dtype}) for dtype in DTYPES),
    Contender("this project, int8", TRANSLATE, {"dtype": "int8"}, is_exact=False),
    Contender("this project, shortlist", TRANSLATE, {"dtype": "auto", "shortlist": 32}, is_exact=False),
    *(Contender(f"Hugging Face, {dtype}", HUGGING_FACE, {"dtype": dtype}, True) for dtype in DTYPES),
    *(Contender(f"CTranslate2, {dtype}", CTRANSLATE2, {"dtype": dtype}, True) for dtype in ("float32", "int8")),
    Contender("Marian, float32", MARIAN, is_peer=True),
]


class Size(NamedTuple):
    """A model, and the batch of a training step: `pairs` rows of `length` positions on either side."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    vocab_size: int
    pairs: int
    length: int


SIZES = {
    "small": Size(3, 256, 1024, 4, 8_000, pairs=128, length=32),
    "base": Size(6, 512, 2048, 8, 32_000, pairs=32, length=64),
}


class Comparison(NamedTuple):
    """The systems that ran, and the reason of each peer that did not. `batch` names the task's shape."""

    batch: str
    workers: Sequence[Worker]
    left_out: Mapping[str, str]


def measure(arguments: argparse.Namespace) -> Measurement:
    """Returns the speeds of all systems in the tasks of `train` or `decode`."""
    size = SIZES[arguments.size]
    if arguments.what == "train":
        tasks, contenders = {f"{size.pairs} x {size.length}": training_task(size)}, TRAINING
    else:
        tasks, contenders = {f"{rows} x {TOKENS}": decoding_task(size, rows) for rows in SENTENCES}, DECODING
    python, threads = find_interpreter(arguments.peers), count_threads(arguments.threads)
    comparisons = [
        compare(f"{arguments.size}, {batch}", task | {"threads": threads}, contenders, python)
        for batch, task in tasks.items()
    ]
    return tabulate(comparisons, threads)


def training_task(size: Size) -> dict[str, Any]:
    """Returns the model and a batch of it: sentences whose lengths share a bucket; the first fills its row."""
    sides = {}
    for seed, side in enumerate(("source", "target")):
        shortest = max(size.length - LENGTHS + 1, 1)
        lengths = random.Random(seed).choices(range(shortest, size.length + 1), k=size.pairs - 1)
        sides[side] = random_sentences(seed, [size.length, *lengths], size.vocab_size)
    return size._asdict() | TOKENS_BY_NAME | {"dropout": 0.1, "label_smoothing": 0.1} | sides


def decoding_task(size: Size, rows: int, tokens: int = TOKENS) -> dict[str, Any]:
    """Returns the model and random source sentences of `tokens` tokens, to be translated without a shortlist."""
    sources = random_sentences(0, [tokens] * rows, size.vocab_size)
    decoding = {"beam_size": BEAM_SIZE, "output_tokens": tokens, "shortlist": 0}
    return size._asdict() | TOKENS_BY_NAME | decoding | {"source": sources}


def random_sentences(seed: int, lengths: Sequence[int], vocab_size: int) -> list[list[int]]:
    """Returns sentences of these lengths: ordinary tokens, then EOS. The last token of the vocabulary never occurs."""
    generator = random.Random(seed)
    ordinary = range(SPECIAL, vocab_size - 1)  # Marian's models keep the last one for padding
    return [[*generator.choices(ordinary, k=length - 1), EOS] for length in lengths]


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
    with contextlib.ExitStack() as stack:
        for contender in contenders:
            dtype = contender.options.get("dtype")
            is_ours_in_int8 = dtype == "int8" and not contender.is_peer  # the peer's int8 runs on all processors
            if (dtype == "bfloat16" and not computes_bfloat16()) or (is_ours_in_int8 and not computes_int8()):
                left_out[contender.name] = EMULATED
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
    return Comparison(batch, [worker for worker in workers if worker.contender.name not in left_out], left_out)


def tabulate(comparisons: Sequence[Comparison], threads: int) -> Measurement:
    """Returns the table of all comparisons, with notes on systems that are left out."""
    rows = [HEADER]
    versions = sorted({worker.version for comparison in comparisons for worker in comparison.workers})
    notes = [f"Medians of {REPETITIONS} repetitions in turns; {describe_machine(threads)}."]
    notes.append(f"Versions: {', '.join(versions)}.")
    for batch, workers, left_out in comparisons:
        peers = [worker for worker in workers if worker.contender.is_peer]
        ours = [worker for worker in workers if not worker.contender.is_peer and worker.contender.is_exact]
        best_peer, best_ours = max(peers, key=by_rate, default=None), max(ours, key=by_rate)
        for worker in workers:
            slowest, fastest = worker.tokens / max(worker.seconds), worker.tokens / min(worker.seconds)
            rates = [f"{rate:,.0f}" for rate in (worker.rate, slowest, fastest)]
            ratio = f"{worker.rate / best_peer.rate:.2f}" if best_peer else "-"
            advantage = f"{best_ours.rate / worker.rate:.2f}" if worker.contender.is_peer else ""
            rows.append((batch, worker.contender.name, *rates, ratio, advantage))
        for reason in dict.fromkeys(left_out.values()):
            names = "; ".join(system for system, its_reason in left_out.items() if its_reason == reason)
            notes.append(f"Left out of {batch}: {names} ({reason}).")
    return Measurement(rows, notes, processor_kind())
