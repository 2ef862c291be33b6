"""The tasks of a training step and of a beam search, and the systems that compete in them.

Training measures the target tokens per second of one step with Adam, without padding. Decoding
measures output tokens per second, with the same number of tokens for every sentence.
"""

import argparse
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from scripts.benchmarking import speeds
from scripts.benchmarking.processes import Contender, find_interpreter
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL
from transformer.support.workers import num_workers

# The number of different lengths in a training batch: `batch.length_multiple` puts these into one
# bucket.
LENGTHS = 8
# Sentences of a batch to translate.
SENTENCES = (16, 1)
# Tokens of a source and of an output, with end-of-sentence.
TOKENS = 32
BEAM_SIZE = 4
OURS = "scripts.benchmarking.ours"
PEERS = "scripts.benchmarking.peers"
TRAIN = f"{OURS}:prepare_training"
TRANSLATE = f"{OURS}:prepare_decoding"
TORCH = f"{PEERS}.torch_training:prepare"
MARIAN = f"{PEERS}.marian_decoding:prepare"
HUGGING_FACE = f"{PEERS}.hugging_face:prepare_generate"
CTRANSLATE2 = f"{PEERS}.hugging_face:prepare_ctranslate2"
TOKENS_BY_NAME = {"pad": PAD, "bos": BOS, "eos": EOS}


def _in_dtypes(name: str, prepare: str, *dtypes: str, is_peer: bool, **options) -> list[Contender]:
    return [
        Contender(f"{name}, {dtype}", prepare, {"dtype": dtype, **options}, is_peer)
        for dtype in dtypes or ("float32", "bfloat16")
    ]


TRAINING = [
    *_in_dtypes("this project", TRAIN, is_peer=False),
    *_in_dtypes("PyTorch eager", TORCH, is_peer=True, compile=False),
    *_in_dtypes("PyTorch compiled", TORCH, is_peer=True, compile=True),
]
DECODING = [
    *_in_dtypes("this project", TRANSLATE, is_peer=False),
    Contender("this project, int8", TRANSLATE, {"dtype": "int8"}, is_exact=False),
    Contender(
        "this project, shortlist", TRANSLATE, {"dtype": "auto", "shortlist": 32}, is_exact=False
    ),
    *_in_dtypes("Hugging Face", HUGGING_FACE, is_peer=True),
    *_in_dtypes("CTranslate2", CTRANSLATE2, "float32", "int8", is_peer=True),
    Contender("Marian, float32", MARIAN, is_peer=True),
]


class Size(NamedTuple):
    """A model and its training batch: `pairs` rows of `length` source and target positions."""

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

    comparisons = []
    for batch, task in tasks.items():
        task["threads"] = threads
        name = f"{arguments.size}, {batch}"
        comparisons.append(speeds.compare(name, task, contenders, python))
    return speeds.tabulate(comparisons, threads)


def training_task(size: Size) -> dict[str, Any]:
    """Returns the task of a training step: the model, and a batch of random sentences.

    The lengths of the sentences share a bucket. The first sentence fills its row.
    """
    sides = {}
    # The first sentence has the full length, so that the batch has the shape of its bucket.
    for seed, side in enumerate(("source", "target")):
        bucket = range(size.length - LENGTHS + 1, size.length + 1)
        lengths = random.Random(seed).choices(bucket, k=size.pairs - 1)
        sides[side] = random_sentences(seed, [size.length, *lengths], size.vocab_size)
    return size._asdict() | TOKENS_BY_NAME | {"dropout": 0.1, "label_smoothing": 0.1} | sides


def decoding_task(size: Size, rows: int, tokens: int = TOKENS) -> dict[str, Any]:
    """Returns the task of a search: the model, and random source sentences of `tokens` tokens.

    The search has no shortlist.
    """
    sources = random_sentences(0, [tokens] * rows, size.vocab_size)
    decoding = {"beam_size": BEAM_SIZE, "output_tokens": tokens, "shortlist": 0}
    return size._asdict() | TOKENS_BY_NAME | decoding | {"source": sources}


def random_sentences(seed: int, lengths: Sequence[int], vocab_size: int) -> list[list[int]]:
    """Returns sentences of these lengths: ordinary tokens, then EOS.

    The last token of the vocabulary never occurs, because the models of Marian use it as padding.
    """
    generator = random.Random(seed)
    ordinary = range(SPECIAL, vocab_size - 1)
    return [[*generator.choices(ordinary, k=length - 1), EOS] for length in lengths]
