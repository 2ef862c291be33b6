"""The data pipeline: prepares a generated corpus of millions of pairs, loads batches, and resumes.

`relative_to_sentencepiece` divides the speed of preparation by that of SentencePiece in one
process, times the number of workers. `first_batch_seconds` is the time from an open corpus to the
first batch of a run that resumes in the middle of an epoch: shapes, plan and one batch, the median
of several starts.
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
from transformer.data.batches.loader import Loader, Position
from transformer.data.corpus import corpus
from transformer.data.sources.source import open_source
from transformer.data.tokenizers import tokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.distributed.mesh import make_mesh
from transformer.support import workers
from transformer.support.special_tokens import PAD

WORDS = 20_000  # of each language
CHUNK = 50_000  # pairs written at once
TOKENS = 25_000  # config.batch.tokens
ENCODED = 50_000  # pairs that SentencePiece encodes
BATCHES = 300  # for the speed of the loader
REPETITIONS = 3  # of the encoding by SentencePiece
STARTS = 7  # of a resumed run


def measure(arguments: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        stages = measure_stages(Path(folder), arguments.pairs)
    rows = [
        (stage, name, f"{value:,}")
        for stage, values in stages.items()
        for name, value in values.items()
    ]
    note = f"{arguments.pairs:,} pairs, batches of {TOKENS:,} positions; {describe_machine(workers.num_workers(0))}."
    return markdown.table([("stage", "quantity", "value"), *rows], [note])


def measure_stages(folder: Path, pairs: int) -> dict[str, dict[str, float]]:
    """Returns the quantities of all stages by name."""
    config = base.get_config()
    config.data.update(
        {"source": "text", "name": "generated", "path": str(folder), "cache_dir": str(folder)}
    )
    config.tokenizer.update({"vocab_size": 16_000, "sample_size": 100_000})
    config.batch.tokens = TOKENS
    write_pairs(folder, pairs)
    stages = {
        "generate": {"text_mb": round(sum(path.stat().st_size for path in folder.iterdir()) / 1e6)}
    }
    vocabulary = tokenizer.prepare(config, folder)
    bound = sentencepiece_speed(config, vocabulary) * workers.num_workers(config.data.workers)
    began = time.perf_counter()
    prepared = corpus.prepare(config, vocabulary, "train")
    seconds = time.perf_counter() - began
    stages["prepare"] = {
        "seconds": round(seconds, 1),
        "pairs_per_second": round(pairs / seconds),
        "relative_to_sentencepiece": round(pairs / seconds / bound, 2),
        "tokens_per_pair": round(float(prepared.lengths[: 1 << 20].sum(axis=1).mean()), 1),
    }
    for plan in ("buckets", "packed"):
        config.batch.plan = plan
        stages[plan] = load(config, prepared)
    return stages


def write_pairs(folder: Path, pairs: int) -> None:
    """Writes train.en and train.de in made-up words, with word frequencies and sentence lengths as
    in news text.
    """
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
                drawn = iter(
                    random.choice(WORDS, sizes.sum(), p=frequency / frequency.sum()).tolist()
                )
                for size in sizes.tolist():
                    file.write(
                        " ".join([vocabulary[word] for word in itertools.islice(drawn, size)])
                        + "\n"
                    )


def sentencepiece_speed(config: Config, vocabulary: Tokenizer) -> float:
    """Returns the pairs per second of SentencePiece in this process, without reading, cleaning and
    writing.
    """
    pairs = itertools.islice(open_source(config.data, "train"), ENCODED)
    sides = [[line.decode() for line in side] for side in zip(*pairs, strict=True)]

    def encode() -> None:
        for side, texts in zip(vocabulary.sides, sides, strict=True):
            side.encode(texts)

    return len(sides[0]) / statistics.median(timeit.repeat(encode, number=1, repeat=REPETITIONS))


def load(config: Config, prepared: corpus.Corpus) -> dict[str, float]:
    """Returns the speed of the loader, and the time to its first batch in the middle of an epoch."""
    mesh = make_mesh(config, jax.local_devices()[:1])
    with Loader(prepared, config, Position(0, 0), mesh) as loader:
        next(loader)
        began = time.perf_counter()
        loaded = itertools.islice(loader, BATCHES)
        target_tokens = sum(
            np.count_nonzero(np.asarray(arrays["target_output"]) != PAD) for _, arrays, _ in loaded
        )
        seconds = time.perf_counter() - began
    starts = []
    for _ in range(STARTS):
        began = time.perf_counter()
        with Loader(prepared, config, Position(1, len(loader.plan) // 2), mesh) as resumed:
            next(resumed)
            starts.append(time.perf_counter() - began)
    return {
        "padding_fraction": round(loader.plan.padding_fraction, 4),
        "target_tokens_per_second": round(target_tokens / seconds),
        "first_batch_seconds": round(statistics.median(starts), 3),
    }
