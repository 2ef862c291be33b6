"""Encoding of text pairs into token arrays, chunk by chunk, in worker processes."""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Integer

from transformer.data.corpus import cleaning, storage
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.special_tokens import EOS, UNK

# The text of one side that decoding does not restore: counts, and an example of each kind.
Losses = tuple[dict[str, int], dict[str, str]]


class Encoded(NamedTuple):
    """The encoded pairs of a chunk: arrays by their names in `storage`, pairs dropped by reason, losses by side."""

    arrays: dict[str, np.ndarray]
    dropped: Counter
    losses: list[Losses]


@dataclass(frozen=True)
class PairEncoder:
    """Encodes pairs of a source, UTF-8 or not, and applies the `rules`.

    Monolingual pairs have one of the `sides` only, 0 or 1. The other has no tokens, not even end-of-sentence.
    """

    tokenizer: Tokenizer
    rules: cleaning.Rules
    keep_text: bool
    keep_hashes: bool
    sides: tuple[int, ...]

    def __call__(self, pairs: list[tuple[bytes, bytes]]) -> Encoded:
        texts, dropped = [], Counter()
        for pair in pairs:
            try:
                texts.append(tuple(line.decode().strip() for line in pair))
            except UnicodeDecodeError:
                dropped["invalid_utf8"] += 1
        sources = self.tokenizer.source.encode([source for source, _ in texts])
        targets = self.tokenizer.target.encode([target for _, target in texts])
        kept_tokens, kept_texts = [], []
        for text, *pair in zip(texts, sources, targets, strict=True):
            if reason := cleaning.drop_reason([len(pair[side]) for side in self.sides], self.rules):
                dropped[reason] += 1
            else:
                kept_tokens.append(pair)
                kept_texts.append(text)
        # An empty side is one that monolingual pairs do not have: pairs with an empty side have been dropped.
        dtype = storage.token_dtype(self.tokenizer.vocab_sizes)
        tokens, lengths = end_sentences(chain.from_iterable(kept_tokens), dtype)
        arrays = {"tokens": tokens, "lengths": lengths.reshape(-1, 2)}
        if self.keep_text:
            encoded = [side.encode() for text in kept_texts for side in text]
            arrays["text"] = np.frombuffer(b"".join(encoded), np.uint8)
            arrays["text_lengths"] = np.array([len(side) for side in encoded], np.int32).reshape(-1, 2)
        if self.keep_hashes:
            arrays["hashes"] = np.array([cleaning.content_hash(*text) for text in kept_texts], np.uint64)
            source_hashes = [cleaning.content_hash(source, "") for source, _ in kept_texts]
            arrays["source_hashes"] = np.array(source_hashes, np.uint64)
        losses = [
            count_losses(vocabulary, [text[side] for text in kept_texts], [pair[side] for pair in kept_tokens])
            for side, vocabulary in enumerate(self.tokenizer.sides)
        ]
        return Encoded(arrays, dropped, losses)


def end_sentences(
    sentences: Iterable[list[int]], dtype: np.dtype
) -> tuple[Integer[np.ndarray, " P"], Int32[np.ndarray, " N"]]:
    """Returns the concatenated tokens of the sentences, each with end-of-sentence, and their lengths.

    An empty sentence gets no end-of-sentence.
    """
    sentences, end = list(sentences), (EOS,)
    tokens = chain.from_iterable(part for sentence in sentences if sentence for part in (sentence, end))
    lengths = [len(sentence) + 1 if sentence else 0 for sentence in sentences]
    return np.fromiter(tokens, dtype), np.array(lengths, np.int32)


def count_losses(vocabulary: Vocabulary, texts: Sequence[str], tokens: Sequence[list[int]]) -> Losses:
    """Counts characters and lines that decoding does not restore, without regard to spaces.

    The counts are of `characters`, of those `unknown`, of `lines`, and of the lines without unknown characters that
    `changed`. The examples are the first lines with an `unknown` character and that `changed`.
    """
    counts, examples = Counter(lines=len(texts)), {}
    for text, sequence, decoded in zip(texts, tokens, vocabulary.decode(tokens), strict=True):
        characters = "".join(text.split())
        counts["characters"] += len(characters)
        if UNK in sequence:
            sizes = _piece_lengths(vocabulary)
            counts["unknown"] += max(1, len(characters) - sum(sizes[token] for token in sequence))
            examples.setdefault("unknown", text)
        elif text != decoded and characters != "".join(decoded.split()):
            counts["changed"] += 1
            examples.setdefault("changed", text)
    return counts, examples


@functools.lru_cache(maxsize=4)
def _piece_lengths(vocabulary: Vocabulary) -> list[int]:
    """Returns the number of characters in each token's text; 0 for unknown ones."""
    return [0 if token == UNK else len(piece.replace("\u2581", "")) for token, piece in enumerate(vocabulary.pieces)]
