"""The speed of training: target tokens a second of one step with Adam, padding not counted."""

import argparse
import random
from typing import Any

from scripts.benchmarking import comparison
from scripts.benchmarking.processes import System, count_threads, find_interpreter
from scripts.benchmarking.report import Report
from scripts.benchmarking.sizes import SIZES, Size, random_sentences

LENGTHS = 8  # of the sentences in a batch: those that `batch.length_multiple` puts into one bucket
OURS = [
    System(f"this project, {dtype}", "scripts.benchmarking.ours.train_step", {"dtype": dtype})
    for dtype in ("float32", "bfloat16")
]
PEERS = [
    System(
        f"PyTorch {'compiled' if is_compiled else 'eager'}, {dtype}",
        "scripts.benchmarking.peers.torch_training",
        {"dtype": dtype, "compile": is_compiled},
    )
    for is_compiled in (False, True)
    for dtype in ("float32", "bfloat16")
]


def measure(arguments: argparse.Namespace) -> Report:
    size, python = SIZES[arguments.size], find_interpreter(arguments.peers)
    task = make_task(size) | {"threads": count_threads(arguments.threads)}
    batch = f"{arguments.size}, {size.pairs} x {size.length}"
    found = comparison.compare(batch, task, OURS, PEERS, python, arguments.repetitions)
    return comparison.report([found], task["threads"], arguments.repetitions)


def make_task(size: Size) -> dict[str, Any]:
    """Returns the model and a batch of it: sentences whose lengths share a bucket; the first fills its row."""
    sides = {}
    for seed, side in enumerate(("source", "target")):
        shortest = max(size.length - LENGTHS + 1, 1)
        lengths = random.Random(seed).choices(range(shortest, size.length + 1), k=size.pairs - 1)
        sides[side] = random_sentences(seed, [size.length, *lengths], size.vocab_size)
    return size.task | {"dropout": 0.1, "label_smoothing": 0.1} | sides
