"""Sentences in memory, and the lengths of real ones, for the tests of plans and batches."""

import functools
import io
from pathlib import Path

import numpy as np
import sentencepiece

from transformer.data.corpus.corpus import Corpus
from transformer.support.special_tokens import EOS


class MemorySentences(Corpus):
    """The part of a corpus that plans and batches need."""

    def __init__(self, pairs):
        self.pairs = [tuple(np.array(side, np.int32) for side in pair) for pair in pairs]
        self.lengths = np.array(
            [[len(source) + 1, len(target) + 1] for source, target in self.pairs], np.int32
        )
        self.report = {"kept": len(pairs)}
        self._annotations = {}

    def tokens(self, side, pairs):
        tokens = [token for pair in pairs for token in (*self.pairs[pair][side], EOS)]
        return np.array(tokens, np.int32)


def random_sentences(count, longest, seed=0):
    """Returns pairs whose tokens are all different, so that a token identifies its sentence."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, longest, (count, 2))
    ids = iter(range(4, 4 + int(sizes.sum())))
    return MemorySentences([[[next(ids) for _ in range(size)] for size in pair] for pair in sizes])


@functools.cache
def caption_lengths(folder: Path) -> np.ndarray:
    """Returns the lengths of Multi30k's training pairs in a joint BPE of 6000 pieces,
    end-of-sentence included.

    If only a sample of Multi30k is there, draws as many pairs from the sample, encoded with a
    smaller vocabulary.
    """
    files = [folder / "train.en", folder / "train.de"]
    sides = [file.read_text(encoding="utf-8").splitlines() for file in files]
    whole = len(sides[0]) == 29_000
    model = train_bpe([line for side in sides for line in side], vocab_size=6000 if whole else 150)
    lengths = np.array(
        [[len(pieces) + 1 for pieces in model.encode(side)] for side in sides], np.int32
    ).T
    return lengths if whole else lengths[np.random.default_rng(0).integers(0, len(lengths), 29_000)]


def train_bpe(lines, vocab_size):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=vocab_size, model_type="bpe",
        character_coverage=1.0, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
