"""The way of the data at scale: prepares a generated corpus of millions of pairs, plans it, starts in its middle.

    python -m scripts.benchmark_data --pairs=2000000

Prints one JSON object. Each stage is measured in a process of its own: `seconds`; `resident_mb`, the most memory that
was resident, files mapped into memory included for as long as the system leaves them there; and `own_mb`, the most
without those files, imports included. `index_mb` is the size of what is kept of each pair beside its pieces: its place
and its two lengths. `first_batch_seconds` is what going on from a step costs once the corpus is open: shapes, plan and
one batch, medians of several starts.
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import multiprocessing
import re
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_collections
import numpy as np

from configs import base
from transformer import cli
from transformer.data.batches.loader import Loader, Position
from transformer.data.corpus import corpus
from transformer.data.tokenizers import tokenizer

WORDS = 20_000  # of each language
STRETCH = 50_000  # pairs written at once
BATCHES = 300  # taken to measure the loader's speed
EARLY, LATE = 10, 100_000  # steps that a run is resumed at
RESUMES = 7  # starts there, of which the median counts


def main(options: argparse.Namespace) -> None:
    keep = contextlib.nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory()
    with keep as folder:
        config = _config(Path(folder), options.tokens)
        report: dict[str, Any] = {"pairs": options.pairs, "batch_tokens": options.tokens}
        report["generate"] = _apart(_generate, Path(folder), options.pairs)
        report["prepare"] = _apart(_prepare, config)
        for plan in ("buckets", "packed"):
            config.batch.plan = plan
            report[f"{plan}: load"] = _apart(_load, config)
            report[f"{plan}: resume"] = _apart(_resume, config, report[f"{plan}: load"]["batches"])
    print(json.dumps(report, indent=2))


def _config(folder: Path, tokens: int) -> ml_collections.ConfigDict:
    config = base.get_config()
    config.data.update({"source": "text", "name": "generated", "path": str(folder), "cache_dir": str(folder)})
    config.tokenizer.update({"vocab_size": 16_000, "sample_size": 100_000})
    config.batch.tokens = tokens
    return config


def _generate(folder: Path, pairs: int) -> dict[str, Any]:
    """Writes train.en and train.de: made-up words, as frequent and sentences as long as in news (about 23 words)."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    vocabulary = ["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(WORDS)]
    frequency = 1 / np.arange(1, WORDS + 1)
    with (folder / "train.en").open("w") as english, (folder / "train.de").open("w") as german:
        for start in range(0, pairs, STRETCH):
            count = min(STRETCH, pairs - start)
            words = np.clip(random.lognormal(2.95, 0.6, count), 2, 120)
            for file, ratio in ((english, 1.0), (german, random.lognormal(0.0, 0.15, count))):
                sizes = np.maximum(1, words * ratio).astype(int)
                drawn = iter(random.choice(WORDS, sizes.sum(), p=frequency / frequency.sum()).tolist())
                for size in sizes.tolist():
                    file.write(" ".join([vocabulary[word] for word in itertools.islice(drawn, size)]) + "\n")
    return {"text_mb": round(sum((folder / f"train.{side}").stat().st_size for side in ("en", "de")) / 1e6)}


def _prepare(config: ml_collections.ConfigDict) -> dict[str, Any]:
    folder = Path(config.data.path) / "workdir"
    folder.mkdir(exist_ok=True)
    began = time.perf_counter()
    trained = tokenizer.prepare(config, folder)
    tokenizer_seconds = round(time.perf_counter() - began, 1)
    prepared = corpus.prepare(config, trained, "train")
    return {
        "tokenizer_seconds": tokenizer_seconds,
        "kept": prepared.report["kept"],
        "pieces_a_side": (prepared.lengths[: 1 << 20].mean(axis=0)).round(1).tolist(),
        "index_mb": round(len(prepared) * 16 / 1e6),
        "largest_worker_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
    }


def _load(config: ml_collections.ConfigDict) -> dict[str, Any]:
    with Loader(_prepared(config), config, Position(0, 0)) as batches:
        next(batches)
        began = time.perf_counter()
        target_pieces = sum(stats.target_pieces for _, _, stats in itertools.islice(batches, BATCHES))
        speed = target_pieces / (time.perf_counter() - began)
        return {
            "batches": len(batches.plan),
            "shapes": len(batches.buckets),
            "padding_fraction": round(batches.plan.padding_fraction, 4),
            "target_pieces_per_second": round(speed),
        }


def _resume(config: ml_collections.ConfigDict, batches: int) -> dict[str, Any]:
    """What it costs, with an open corpus, to go on from a step of a run whose epochs have about so many batches."""
    prepared = _prepared(config)
    seconds: dict[int, list[float]] = {EARLY: [], LATE: []}
    for _, step in itertools.product(range(RESUMES), seconds):
        # Epochs differ by a few batches: the end of one is better not asked for.
        start = Position(step // batches, step % batches * 9 // 10)
        began = time.perf_counter()
        with Loader(prepared, config, start) as loader:
            next(loader)
            seconds[step].append(time.perf_counter() - began)
    medians = {step: statistics.median(each) for step, each in seconds.items()}
    found = {f"first_batch_seconds_at_step_{step}": round(median, 3) for step, median in medians.items()}
    return found | {"epoch_of_the_last": LATE // batches, "ratio": round(medians[LATE] / medians[EARLY], 2)}


def _prepared(config: ml_collections.ConfigDict) -> corpus.Corpus:
    trained = tokenizer.prepare(config, Path(config.data.path) / "workdir")
    return corpus.prepare(config, trained, "train")


def _apart(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What the function returns when it runs in a process of its own, with its time and memory."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as process:
        return process.submit(_measured, function, arguments).result()


def _measured(function: Callable[..., dict[str, Any]], arguments: tuple) -> dict[str, Any]:
    began = time.perf_counter()
    with _own_memory() as own:
        result = function(*arguments)
    return result | {
        "seconds": round(time.perf_counter() - began, 1),
        "resident_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "own_mb": round(max(own) / 1024),
    }


@contextlib.contextmanager
def _own_memory() -> Iterator[list[int]]:
    """Samples of the process's anonymous memory in kB while the block runs; the kernel keeps no peak of it."""
    samples, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            status = Path("/proc/self/status").read_text(encoding="ascii")
            samples.append(int(re.search(r"RssAnon:\s+(\d+)", status).group(1)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield samples
    finally:
        done.set()
        watcher.join()


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.benchmark_data", __doc__)
    parser.add_argument("--pairs", type=int, default=2_000_000, help="pairs to generate (2000000)")
    parser.add_argument("--tokens", type=int, default=25_000, help="batch.tokens (25000)")
    parser.add_argument("--folder", type=Path, help="where the text and the corpus stay; without it they are deleted")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
