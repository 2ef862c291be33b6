"""The data pipeline: prepares a generated corpus of millions of pairs, loads batches, and resumes.

`relative_to_sentencepiece` is the speed of preparation, divided by the speed of SentencePiece in
one process and by the number of workers. `first_batch_seconds` is the time from an open corpus to
the first batch of a run that resumes in the middle of an epoch. It includes the shapes, the plan of
the epoch and one batch, and is the median of several starts.
"""

import argparse
import itertools
import statistics
import tempfile
import time
import timeit
from pathlib import Path

import jax
import numpy as np

from configs import base
from scripts import markdown
from scripts.benchmarking.measurement import describe_machine
from transformer.config.types import Config
from transformer.data.batches.loader import DataPosition, Loader
from transformer.data.corpus import corpus
from transformer.data.sources.source import open_source
from transformer.data.tokenizers import tokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.distributed.mesh import make_mesh
from transformer.support import workers
from transformer.support.special_tokens import PAD

WORDS = 20_000  # words of each language
# Pairs that are written at once.
CHUNK = 50_000
TOKENS = 25_000  # config.batch.tokens
# Pairs that SentencePiece encodes.
ENCODED = 50_000
# Batches that measure the speed of the loader.
BATCHES = 300
# Repetitions of the encoding by SentencePiece.
REPETITIONS = 3
STARTS = 7  # starts of a resumed run


def measure(arguments: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        stages = measure_stages(Path(folder), arguments.pairs)
    rows = [("stage", "quantity", "value")]
    for stage, values in stages.items():
        rows += [(stage, name, f"{value:,}") for name, value in values.items()]
    machine = describe_machine(workers.num_workers(0))
    note = f"{arguments.pairs:,} pairs, batches of {TOKENS:,} positions; {machine}."
    return markdown.table(rows, [note])


def measure_stages(folder: Path, pairs: int) -> dict[str, dict[str, float]]:
    """Returns the quantities of all stages by name."""
    config = base.get_config()
    config.data.update(
        {"source": "text", "name": "generated", "path": str(folder), "cache_dir": str(folder)}
    )
    config.tokenizer.update({"vocab_size": 16_000, "sample_size": 100_000})
    config.batch.tokens = TOKENS
    write_pairs(folder, pairs)
    text_bytes = sum(path.stat().st_size for path in folder.iterdir())
    stages = {"generate": {"text_mb": round(text_bytes / 1e6)}}

    vocabulary = tokenizer.prepare(config, folder)

    # The corpus is prepared for the first time: nothing is in the cache.
    bound = sentencepiece_speed(config, vocabulary) * workers.num_workers(config.data.workers)
    began = time.perf_counter()
    prepared = corpus.prepare(config, vocabulary, "train")
    seconds = time.perf_counter() - began
    tokens_per_pair = prepared.lengths[: 1 << 20].sum(axis=1).mean()
    stages["prepare"] = {
        "seconds": round(seconds, 1),
        "pairs_per_second": round(pairs / seconds),
        "relative_to_sentencepiece": round(pairs / seconds / bound, 2),
        "tokens_per_pair": round(float(tokens_per_pair), 1),
    }

    for plan in ("buckets", "packed"):
        config.batch.plan = plan
        stages[plan] = measure_loader(config, prepared)
    return stages


def write_pairs(folder: Path, pairs: int) -> None:
    """Writes train.en and train.de in made-up words.

    Word frequencies and sentence lengths are like in news text.
    """
    random = np.random.default_rng(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    vocabulary = ["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(WORDS)]
    frequencies = 1 / np.arange(1, WORDS + 1)  # Zipf's law
    frequencies /= frequencies.sum()
    with (folder / "train.en").open("w") as english, (folder / "train.de").open("w") as german:
        for start in range(0, pairs, CHUNK):
            count = min(CHUNK, pairs - start)

            # English lengths are log-normal, and German lengths differ by a log-normal factor.
            lengths = np.clip(random.lognormal(2.95, 0.6, count), 2, 120)  # about 23 words
            ratios = random.lognormal(0.0, 0.15, count)
            for file, scale in ((english, 1.0), (german, ratios)):
                sizes = np.maximum(1, lengths * scale).astype(int)

                # Draw all words of the chunk at once, then cut them into sentences.
                numbers = random.choice(WORDS, sizes.sum(), p=frequencies)
                words = iter([vocabulary[number] for number in numbers.tolist()])
                for size in sizes.tolist():
                    file.write(" ".join(itertools.islice(words, size)) + "\n")


def sentencepiece_speed(config: Config, vocabulary: Tokenizer) -> float:
    """Returns the pairs that SentencePiece encodes per second in this process.

    The time does not include reading, cleaning and writing.
    """
    pairs = itertools.islice(open_source(config.data, "train"), ENCODED)

    # All sources first, then all targets, as two lists of texts.
    sides = [[line.decode() for line in side] for side in zip(*pairs, strict=True)]

    def encode() -> None:
        for side, texts in zip(vocabulary.sides, sides, strict=True):
            side.encode(texts)

    seconds = statistics.median(timeit.repeat(encode, number=1, repeat=REPETITIONS))
    return len(sides[0]) / seconds


def measure_loader(config: Config, prepared: corpus.Corpus) -> dict[str, float]:
    """Returns the speed of the loader, and the time to its first batch when a run resumes."""
    mesh = make_mesh(config, jax.local_devices()[:1])
    with Loader(prepared, config, DataPosition(0, 0), mesh) as loader:
        # The first batch starts the workers of the loader.
        next(loader)
        began = time.perf_counter()
        target_tokens = 0
        for _, arrays, _ in itertools.islice(loader, BATCHES):
            target_tokens += np.count_nonzero(np.asarray(arrays["target_output"]) != PAD)
        seconds = time.perf_counter() - began

    # A run that resumes builds everything again, from the open corpus on.
    middle = DataPosition(1, len(loader.epoch_plan) // 2)
    starts = []
    for _ in range(STARTS):
        began = time.perf_counter()
        with Loader(prepared, config, middle, mesh) as resumed:
            next(resumed)
            starts.append(time.perf_counter() - began)
    return {
        "padding_fraction": round(loader.epoch_plan.padding_fraction, 4),
        "target_tokens_per_second": round(target_tokens / seconds),
        "first_batch_seconds": round(statistics.median(starts), 3),
    }
