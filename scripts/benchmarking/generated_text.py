"""Parallel text in made-up words, as large as wanted."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 20_000  # of each language
CHUNK = 50_000  # pairs written at once


def write_pairs(folder: Path, pairs: int) -> dict[str, Any]:
    """Writes train.en and train.de in made-up words, with word frequencies and sentence lengths as in news text."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
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
