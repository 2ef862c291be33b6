"""The data pipeline: prepares a generated corpus of millions of pairs, loads batches, and resumes.

Each stage runs in a new process and reports `seconds` and `own_mb`, the peak of its memory without the files that it
maps. `sentencepiece_pairs_per_second` is the speed of SentencePiece in one process, times the number of workers.
`wait_fraction` is the fraction of the time in which steps that need 1 million target tokens a second wait for data.
`first_batch_seconds` is the time from an open corpus to the first batch of a step: shapes, plan and one batch, the
median of several starts.
"""

import argparse
import concurrent.futures
import itertools
import multiprocessing
import re
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np

from configs import base
from scripts.benchmarking.measurement import Measurement, describe_machine
from scripts.benchmarking.processes import count_threads
from transformer import workers
from transformer.data.batches.loader import Loader, Position
from transformer.data.corpus import corpus
from transformer.data.sources.source import open_source
from transformer.data.tokenizers import tokenizer
from transformer.distributed.mesh import make_mesh
from transformer.special_tokens import PAD

WORDS = 20_000  # of each language
CHUNK = 50_000  # pairs written at once
TOKENS = 25_000  # config.batch.tokens
ENCODED = 50_000  # pairs that SentencePiece encodes
BATCHES = 300  # for the speed of the loader
DEMAND = 1e6  # target tokens a second of the steps that measure waiting
REPETITIONS = 3  # of the encoding by SentencePiece
STEPS = (10, 100_000)  # to resume at
RESUMES = 7  # starts at each of these steps


def measure(arguments: argparse.Namespace) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        stages = measure_stages(Path(folder), arguments.pairs)
    rows = [(stage, name, f"{value:,}") for stage, values in stages.items() for name, value in values.items()]
    machine = describe_machine(count_threads(None))
    note = f"{arguments.pairs:,} pairs, batches of {TOKENS:,} positions; {machine}."
    return Measurement([("stage", "quantity", "value"), *rows], [note])


def measure_stages(folder: Path, pairs: int) -> dict[str, dict[str, float]]:
    """Returns the quantities of all stages by name."""
    config = base.get_config()
    config.data.update({"source": "text", "name": "generated", "path": str(folder), "cache_dir": str(folder)})
    config.tokenizer.update({"vocab_size": 16_000, "sample_size": 100_000})
    config.batch.tokens = TOKENS
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as executor:

        def run(stage: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
            return executor.submit(_with_time_and_memory, stage, *arguments).result()

        stages = {"generate": run(_write_pairs, folder, pairs)}
        stages["sentencepiece"], stages["prepare"] = run(_sentencepiece, config), run(_prepare, config)
        ratio = stages["prepare"]["pairs_per_second"] / stages["sentencepiece"]["sentencepiece_pairs_per_second"]
        stages["prepare"]["relative_to_sentencepiece"] = round(ratio, 2)
        for plan in ("buckets", "packed"):
            config.batch.plan = plan
            stages[f"{plan}: load"] = run(_load, config)
            stages[f"{plan}: resume"] = run(_resume, config, stages[f"{plan}: load"]["batches"])
    return stages


def _write_pairs(folder: Path, pairs: int) -> dict[str, float]:
    """Writes train.en and train.de in made-up words, with word frequencies and sentence lengths as in news text."""
    random = np.random.default_rng(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    vocabulary = ["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(WORDS)]
    frequency = 1 / np.arange(1, WORDS + 1)
    with (folder / "train.en").open("w") as english, (folder / "train.de").open("w") as german:
        for start in range(0, pairs, CHUNK):
            count = min(CHUNK, pairs - start)
            words = np.clip(random.lognormal(2.95, 0.6, count), 2, 120)  # about 23
            for file, ratio in ((english, 1.0), (german, random.lognormal(0.0, 0.15, count))):
                sizes = np.maximum(1, words * ratio).astype(int)
                drawn = iter(random.choice(WORDS, sizes.sum(), p=frequency / frequency.sum()).tolist())
                for size in sizes.tolist():
                    file.write(" ".join([vocabulary[word] for word in itertools.islice(drawn, size)]) + "\n")
    return {"text_mb": round(sum((folder / f"train.{side}").stat().st_size for side in ("en", "de")) / 1e6)}


def _prepare(config: ml_collections.ConfigDict) -> dict[str, float]:
    began = time.perf_counter()
    prepared = _prepared(config)
    rate = sum(prepared.report["dropped"].values(), len(prepared)) / (time.perf_counter() - began)
    return {
        "pairs_per_second": round(rate),
        "kept": prepared.report["kept"],
        "tokens_per_pair": round(float(prepared.lengths[: 1 << 20].sum(axis=1).mean()), 1),
        "largest_worker_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
    }


def _sentencepiece(config: ml_collections.ConfigDict) -> dict[str, float]:
    """Trains the tokenizer and measures SentencePiece in one process, without reading, cleaning and writing."""
    (Path(config.data.path) / "workdir").mkdir(exist_ok=True)
    made = _tokenizer(config)
    pairs = itertools.islice(open_source(config.data, "train"), ENCODED)
    sides = [[line.decode() for line in side] for side in zip(*pairs, strict=True)]
    seconds = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        for side, vocabulary in zip(sides, made.sides, strict=True):
            vocabulary.encode(side)
        seconds.append(time.perf_counter() - began)
    bound = len(sides[0]) / statistics.median(seconds) * workers.num_workers(config.data.workers)
    return {"sentencepiece_pairs_per_second": round(bound)}


def _load(config: ml_collections.ConfigDict) -> dict[str, float]:
    with Loader(_prepared(config), config, Position(0, 0), make_mesh(config, jax.local_devices()[:1])) as batches:
        next(batches)
        began = time.perf_counter()
        loaded = itertools.islice(batches, BATCHES)
        target_tokens = sum(np.count_nonzero(np.asarray(arrays["target_output"]) != PAD) for _, arrays, _ in loaded)
        seconds = time.perf_counter() - began
        waited, began = batches.data_wait_seconds, time.perf_counter()
        for _, arrays, stats in itertools.islice(batches, BATCHES):  # steps that count tokens and last as DEMAND says
            end = time.perf_counter() + stats.target_tokens / DEMAND
            np.count_nonzero(np.asarray(arrays["target_output"]) != PAD)
            time.sleep(max(end - time.perf_counter(), 0))
        return {
            "wait_fraction": round((batches.data_wait_seconds - waited) / (time.perf_counter() - began), 4),
            "batches": len(batches.plan),
            "padding_fraction": round(batches.plan.padding_fraction, 4),
            "target_tokens_per_second": round(target_tokens / seconds),
        }


def _resume(config: ml_collections.ConfigDict, batches: int) -> dict[str, float]:
    """Measures the time to the first batch of a resumed run. `batches` is about the number of batches in an epoch."""
    prepared, seconds = _prepared(config), {step: [] for step in STEPS}
    for step in STEPS * RESUMES:
        # The numbers of batches differ a little among epochs, so the position stays away from the end.
        position = Position(step // batches, step % batches * 9 // 10)
        began = time.perf_counter()
        with Loader(prepared, config, position, make_mesh(config, jax.local_devices()[:1])) as loader:
            next(loader)
            seconds[step].append(time.perf_counter() - began)
    return {f"first_batch_seconds_at_step_{step}": round(statistics.median(seconds[step]), 3) for step in STEPS}


def _prepared(config: ml_collections.ConfigDict) -> corpus.Corpus:
    return corpus.prepare(config, _tokenizer(config), "train")


def _tokenizer(config: ml_collections.ConfigDict) -> tokenizer.Tokenizer:
    return tokenizer.prepare(config, Path(config.data.path) / "workdir")


def _with_time_and_memory(stage: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    own_memory, done = [0], threading.Event()

    def watch() -> None:  # the kernel keeps no peak of this number
        while not done.wait(0.02):
            status = Path("/proc/self/status").read_text(encoding="ascii")
            own_memory.append(int(re.search(r"RssAnon:\s+(\d+)", status).group(1)))

    began = time.perf_counter()
    threading.Thread(target=watch, daemon=True).start()
    result = stage(*arguments)
    done.set()
    return result | {
        "seconds": round(time.perf_counter() - began, 1),
        "own_mb": round(max(own_memory) / 1024),
    }
