"""Encoding of text pairs into token arrays, chunk by chunk, in worker processes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Integer

from transformer.data.corpus import cleaning, storage
from transformer.data.corpus.coverage import count_losses
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.special_tokens import EOS

TextPair = tuple[str, str]
TokenPair = tuple[list[int], list[int]]


class Encoded(NamedTuple):
    """The encoded pairs of a chunk.

    Attributes:
      arrays: by the names of `storage`.
      dropped: the number of dropped pairs by reason.
      losses: of each side, as `coverage.count_losses` returns them.
    """

    arrays: dict[str, np.ndarray]
    dropped: Counter
    losses: list[tuple[Counter, dict[str, str]]]


@dataclass(frozen=True)
class Encoder:
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
        for text, source, target in zip(texts, sources, targets, strict=True):
            if reason := cleaning.drop_reason([len((source, target)[side]) for side in self.sides], self.rules):
                dropped[reason] += 1
            else:
                kept_tokens.append((source, target))
                kept_texts.append(text)
        arrays = _token_arrays(kept_tokens, self.tokenizer)
        if self.keep_text:
            arrays |= _text_arrays(kept_texts)
        if self.keep_hashes:
            arrays["hashes"] = np.array([cleaning.content_hash(*text) for text in kept_texts], np.uint64)
            sources = [cleaning.content_hash(source, "") for source, _ in kept_texts]
            arrays["source_hashes"] = np.array(sources, np.uint64)
        losses = [
            count_losses(vocabulary, [text[side] for text in kept_texts], [tokens[side] for tokens in kept_tokens])
            for side, vocabulary in enumerate(self.tokenizer.sides)
        ]
        return Encoded(arrays, dropped, losses)


def _token_arrays(pairs: list[TokenPair], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    # An empty side is one that monolingual pairs do not have: pairs with an empty side have been dropped.
    tokens, lengths = end_sentences(chain.from_iterable(pairs), storage.token_dtype(tokenizer.vocab_sizes))
    return {"tokens": tokens, "lengths": lengths.reshape(-1, 2)}


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


def _text_arrays(texts: list[TextPair]) -> dict[str, np.ndarray]:
    encoded = [(source.encode(), target.encode()) for source, target in texts]
    return {
        "text": np.frombuffer(b"".join(source + target for source, target in encoded), np.uint8),
        "text_lengths": np.array([[len(source), len(target)] for source, target in encoded], np.int32).reshape(-1, 2),
    }
