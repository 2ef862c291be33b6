"""The speed of a training step and of a beam search: the tasks, and the systems that compete in
them.

training: target tokens a second of one step with Adam, padding not counted. decoding: output tokens
a second, the same number of tokens for every sentence.
"""

import argparse
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from scripts.benchmarking import speeds
from scripts.benchmarking.processes import Contender, find_interpreter
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL
from transformer.support.workers import num_workers

# of the sentences in a training batch: those that `batch.length_multiple` puts into one bucket
LENGTHS = 8
SENTENCES = (16, 1)  # of a batch to translate
TOKENS = 32  # of a source and of an output, end-of-sentence included
BEAM_SIZE = 4
OURS = "scripts.benchmarking.ours"
PEERS = "scripts.benchmarking.peers"
TRAIN = f"{OURS}:prepare_training"
TRANSLATE = f"{OURS}:prepare_decoding"
TORCH = f"{PEERS}.torch_training:prepare"
MARIAN = f"{PEERS}.marian_decoding:prepare"
HUGGING_FACE, CTRANSLATE2 = (
    f"{PEERS}.hugging_face:prepare_{way}" for way in ("generate", "ctranslate2")
)
TOKENS_BY_NAME = {"pad": PAD, "bos": BOS, "eos": EOS}
DTYPES = ("float32", "bfloat16")
TRAINING = [
    *(Contender(f"this project, {dtype}", TRAIN, {"dtype": dtype}) for dtype in DTYPES),
    *(
        Contender(f"PyTorch eager, {dtype}", TORCH, {"dtype": dtype, "compile": False}, True)
        for dtype in DTYPES
    ),
    *(
        Contender(f"PyTorch compiled, {dtype}", TORCH, {"dtype": dtype, "compile": True}, True)
        for dtype in DTYPES
    ),
]
DECODING = [
    *(Contender(f"this project, {dtype}", TRANSLATE, {"dtype": dtype}) for dtype in DTYPES),
    Contender("this project, int8", TRANSLATE, {"dtype": "int8"}, is_exact=False),
    Contender(
        "this project, shortlist", TRANSLATE, {"dtype": "auto", "shortlist": 32}, is_exact=False
    ),
    *(
        Contender(f"Hugging Face, {dtype}", HUGGING_FACE, {"dtype": dtype}, True)
        for dtype in DTYPES
    ),
    *(
        Contender(f"CTranslate2, {dtype}", CTRANSLATE2, {"dtype": dtype}, True)
        for dtype in ("float32", "int8")
    ),
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


def measure(arguments: argparse.Namespace) -> str:
    """Returns the speeds of all systems in the tasks of `train` or `decode`."""
    size = SIZES[arguments.size]
    if arguments.what == "train":
        tasks = {f"{size.pairs} x {size.length}": training_task(size)}
        contenders = TRAINING
    else:
        tasks = {f"{rows} x {TOKENS}": decoding_task(size, rows) for rows in SENTENCES}
        contenders = DECODING
    python = find_interpreter(arguments.peers)
    cores = num_workers(0)
    threads = min(arguments.threads or cores, cores)
    comparisons = [
        speeds.compare(
            f"{arguments.size}, {batch}", task | {"threads": threads}, contenders, python
        )
        for batch, task in tasks.items()
    ]
    return speeds.tabulate(comparisons, threads)


def training_task(size: Size) -> dict[str, Any]:
    """Returns the model and a batch of it: sentences whose lengths share a bucket; the first fills
    its row.
    """
    sides = {}
    for seed, side in enumerate(("source", "target")):
        bucket = range(size.length - LENGTHS + 1, size.length + 1)
        lengths = random.Random(seed).choices(bucket, k=size.pairs - 1)
        sides[side] = random_sentences(seed, [size.length, *lengths], size.vocab_size)
    return size._asdict() | TOKENS_BY_NAME | {"dropout": 0.1, "label_smoothing": 0.1} | sides


def decoding_task(size: Size, rows: int, tokens: int = TOKENS) -> dict[str, Any]:
    """Returns the model and random source sentences of `tokens` tokens, to be translated without a
    shortlist.
    """
    sources = random_sentences(0, [tokens] * rows, size.vocab_size)
    decoding = {"beam_size": BEAM_SIZE, "output_tokens": tokens, "shortlist": 0}
    return size._asdict() | TOKENS_BY_NAME | decoding | {"source": sources}


def random_sentences(seed: int, lengths: Sequence[int], vocab_size: int) -> list[list[int]]:
    """Returns sentences of these lengths: ordinary tokens, then EOS.

    The last token of the vocabulary never occurs.
    """
    generator = random.Random(seed)
    ordinary = range(SPECIAL, vocab_size - 1)  # Marian's models keep the last one for padding
    return [[*generator.choices(ordinary, k=length - 1), EOS] for length in lengths]
