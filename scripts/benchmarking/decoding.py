"""The speed of beam search: output tokens a second, the same number of tokens for every sentence."""

import argparse
from typing import Any

from scripts.benchmarking import comparison
from scripts.benchmarking.processes import System, count_threads, find_interpreter
from scripts.benchmarking.report import Report
from scripts.benchmarking.sizes import SIZES, Size, random_sentences

SENTENCES = (16, 1)  # of a batch
TOKENS = 32  # of a source and of an output, end-of-sentence included
BEAM_SIZE = 4
TRANSLATION = "scripts.benchmarking.ours.translation"
OURS = [
    *(System(f"this project, {dtype}", TRANSLATION, {"dtype": dtype}) for dtype in ("float32", "bfloat16")),
    System("this project, shortlist", TRANSLATION, {"dtype": "auto", "shortlist": 32}, is_exact=False),
]
HUGGING_FACE, CTRANSLATE2, MARIAN = (
    f"scripts.benchmarking.peers.{name}" for name in ("hugging_face", "ctranslate2_decoding", "marian_decoding")
)
PEERS = [
    System("Hugging Face, float32", HUGGING_FACE, {"dtype": "float32"}),
    System("Hugging Face, bfloat16", HUGGING_FACE, {"dtype": "bfloat16"}),
    System("CTranslate2, float32", CTRANSLATE2, {"dtype": "float32"}),
    System("CTranslate2, int8", CTRANSLATE2, {"dtype": "int8"}),
    System("Marian, float32", MARIAN),
]


def measure(arguments: argparse.Namespace) -> Report:
    size, python, threads = SIZES[arguments.size], find_interpreter(arguments.peers), count_threads(arguments.threads)
    found = []
    for sentences in SENTENCES:
        task = make_task(size, sentences) | {"threads": threads}
        batch = f"{arguments.size}, {sentences} x {TOKENS}"
        found.append(comparison.compare(batch, task, OURS, PEERS, python, arguments.repetitions))
    return comparison.report(found, threads, arguments.repetitions)


def make_task(size: Size, sentences: int, tokens: int = TOKENS) -> dict[str, Any]:
    """Returns the model and random source sentences of `tokens` tokens, to be translated without a shortlist."""
    sources = random_sentences(0, [tokens] * sentences, size.vocab_size)
    return size.task | {"beam_size": BEAM_SIZE, "output_tokens": tokens, "source": sources, "shortlist": 0}
