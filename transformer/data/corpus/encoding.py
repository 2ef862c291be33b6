"""Cleaning of text pairs, their encoding into arrays, and the files of these arrays, which are memory-mapped."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Integer, UInt64

from transformer.data.sources.lines import counted
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.special_tokens import EOS, UNK

# The type and row width of each file's entries. `tokens` has the smallest type that holds the vocabulary.
_LAYOUT = {
    "tokens": (None, 1),  # source, EOS, target, EOS, source, EOS, ...
    "offsets": (np.int64, 1),  # the index of a pair's first token
    "lengths": (np.int32, 2),  # tokens of source and target, EOS included
    "weights": (np.float32, 1),  # of pairs in the loss, where the source has any
    "links": (np.uint16, 2),  # source and target words of all links, where the source has any
    "link_spans": (np.int64, 2),  # begin and end of a pair's links
    "hashes": (np.uint64, 1),  # of the pairs, sorted, to find them in other splits
    "source_hashes": (np.uint64, 1),  # of the sources, or of the only side
}
HASHES = ("hashes", "source_hashes")

# Reasons to drop a pair, in the order in which they are checked, and their names in the log.
REASONS = {
    "invalid_utf8": "not UTF-8",
    "empty": "with an empty side",
    "too_long": "longer than data.max_length",
    "length_ratio": "beyond data.max_length_ratio",
    "duplicate": "repeated",
}

# The text of one side that decoding does not restore: counts, and an example of each kind.
Losses = tuple[dict[str, int], dict[str, str]]


def token_dtype(vocab_sizes: tuple[int, int]) -> np.dtype:
    return np.dtype(np.uint16 if max(vocab_sizes) <= 1 << 16 else np.int32)


def open_array(folder: Path, name: str, dtype: str | None = None, mode: str = "r") -> np.ndarray:
    """Maps a nonempty file into memory. Only `tokens` needs the `dtype`."""
    fixed, width = _LAYOUT[name]
    array = np.memmap(folder / name, fixed or dtype, mode)
    return array if width == 1 else array.reshape(-1, width)


@dataclass(frozen=True)
class Rules:
    """The limits for training pairs, from the group `config.data`. By default there are none, as for held-out pairs."""

    max_length: int = sys.maxsize
    max_length_ratio: float = 0.0
    deduplicate: bool = False


def drop_reason(lengths: Sequence[int], rules: Rules, tag_length: int = 0) -> str | None:
    """Returns the reason to drop a pair, or None. The lengths of its sides do not count end-of-sentence.

    The first of them counts a tag of `tag_length`, which is no part of the text.
    """
    texts = [lengths[0] - tag_length, *lengths[1:]]
    longer, shorter = max(texts), min(texts)
    if shorter <= 0:
        return "empty"
    if max(lengths) + 1 > rules.max_length:
        return "too_long"
    if rules.max_length_ratio and longer > rules.max_length_ratio * shorter:
        return "length_ratio"
    return None


def content_hash(source: str, target: str) -> int:
    """Hashes a pair to 64 bits. Among 36 million different pairs the chance of any collision is 4 in 100,000."""
    digest = blake2b(source.encode() + b"\n" + target.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def content_hashes(pairs: Sequence[tuple[str, str]]) -> dict[str, UInt64[np.ndarray, " N"]]:
    """Returns the hashes of pairs, and those of their sources or only sides, by the names in `HASHES`."""
    hashes = [content_hash(*pair) for pair in pairs], [content_hash(source or target, "") for source, target in pairs]
    return {name: np.array(values, np.uint64) for name, values in zip(HASHES, hashes, strict=True)}


def summary(kept: int, dropped: dict[str, int]) -> str:
    """Returns a line for the log: "28,990 pairs kept, 10 dropped: 7 repeated, 3 with an empty side"."""
    counts = sorted(((count, REASONS[reason]) for reason, count in dropped.items() if count), reverse=True)
    reasons = ", ".join(f"{count:,} {words}" for count, words in counts)
    total = f"{sum(dropped.values()):,} dropped: {reasons}" if counts else "none dropped"
    return f"{counted(kept, 'pair')} kept, {total}"


@dataclass(frozen=True)
class PairEncoder:
    """Encodes pairs of a source by the `rules`. Monolingual pairs have one of the `sides`; the other has no tokens.

    Sources of corpus number N begin with tags[N].
    """

    tokenizer: Tokenizer
    rules: Rules
    sides: tuple[int, ...]
    tags: tuple[str, ...]

    def __call__(
        self, corpus_and_pairs: tuple[int, list[tuple[bytes, bytes]]]
    ) -> tuple[int, dict[str, np.ndarray], list[int], Counter]:
        """Returns the corpus, arrays by name, the pairs that are kept, and the numbers of dropped ones by reason."""
        (corpus, pairs), texts, kept, dropped = corpus_and_pairs, {}, {}, Counter()  # by the numbers of the pairs
        for number, pair in enumerate(pairs):
            try:
                texts[number] = tuple(line.decode().strip() for line in pair)
            except UnicodeDecodeError:
                dropped["invalid_utf8"] += 1
        tokenizer = replace(self.tokenizer, source_tag=self.tags[corpus])
        encoders, tag_length = tokenizer.encoders, tokenizer.tag_length if 0 in self.sides else 0
        sources, targets = (encoders[side].encode([text[side] for text in texts.values()]) for side in (0, 1))
        for number, *pair in zip(texts, sources, targets, strict=True):
            if reason := drop_reason([len(pair[side]) for side in self.sides], self.rules, tag_length):
                dropped[reason] += 1
            else:
                kept[number] = pair
        # An empty side is one that monolingual pairs do not have: pairs with an empty side have been dropped.
        dtype = token_dtype(self.tokenizer.vocab_sizes)
        tokens, lengths = end_sentences(chain.from_iterable(kept.values()), dtype)
        hashes = content_hashes([texts[number] for number in kept])
        return corpus, {"tokens": tokens, "lengths": lengths.reshape(-1, 2)} | hashes, list(kept), dropped


def end_sentences(
    sentences: Iterable[list[int]], dtype: np.dtype
) -> tuple[Integer[np.ndarray, " P"], Int32[np.ndarray, " N"]]:
    """Returns the concatenated tokens of the sentences, each with EOS unless it is empty, and their lengths."""
    ended = [[*sentence, EOS] if sentence else [] for sentence in sentences]
    return np.fromiter(chain.from_iterable(ended), dtype), np.array([len(sentence) for sentence in ended], np.int32)


def losses_of_pairs(tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]]) -> list[Losses]:
    """Returns `count_losses` of sources and targets."""
    sides = zip(tokenizer.sides, zip(*pairs, strict=True), strict=True)
    return [count_losses(vocabulary, [text.strip() for text in texts]) for vocabulary, texts in sides]


def count_losses(vocabulary: Vocabulary, texts: Sequence[str]) -> Losses:
    """Counts characters and lines that decoding does not restore, without regard to spaces.

    The counts are of `characters`, of those `unknown`, of `lines`, and of the lines without unknown characters that
    `changed`. The examples are the first lines with an `unknown` character and that `changed`.
    """
    counts, examples, tokens = Counter(lines=len(texts)), {}, vocabulary.encode(texts)
    for text, sequence, decoded in zip(texts, tokens, vocabulary.decode(tokens), strict=True):
        characters = "".join(text.split())
        counts["characters"] += len(characters)
        if UNK in sequence:
            (known,) = vocabulary.decode([[token for token in sequence if token != UNK]])
            counts["unknown"] += max(1, len(characters) - len("".join(known.split())))
            examples.setdefault("unknown", text)
        elif text != decoded and characters != "".join(decoded.split()):
            counts["changed"] += 1
            examples.setdefault("changed", text)
    return counts, examples
