"""Cleaning of text pairs, and their encoding into the memory-mapped files of a corpus."""

import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int32, Integer, UInt64

from transformer.data.corpus.annotations import check_candidates, read_annotations
from transformer.data.sources import Source
from transformer.data.sources.lines import count_documents, count_noun
from transformer.data.sources.mixture import MixedSource
from transformer.data.sources.source import DocumentSource, select_pairs
from transformer.data.tokenizers.tokenizer import Tokenizer, losses_of_pairs
from transformer.support import files, progress_bar, workers
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS

REPORT = "corpus.json"
_CHUNK = 8192  # pairs encoded at once
_SAMPLE = 10_000  # pairs, spread over the source, whose losses are counted
_SMALL = 50_000  # pairs that one process encodes in about the time it takes to start others

# The type and row width of each file. The type of `tokens` depends on the vocabulary.
_LAYOUT: dict[str, tuple[Any, int]] = {
    "tokens": (None, 1),  # source, EOS, target, EOS, source, EOS, ...
    "offsets": (np.int64, 1),  # the index of a pair's first token
    "lengths": (np.int32, 2),  # tokens of source and target, EOS included
    "weights": (np.float32, 1),  # of pairs in the loss, where the source has any
    "rewards": (np.float32, 1),  # of candidates, where the source has any
    "links": (np.uint16, 2),  # source and target words of all links, where the source has any
    "link_spans": (np.int64, 2),  # begin and end of a pair's links
    "hashes": (np.uint64, 1),  # of the pairs, sorted, to find them in other splits
    "source_hashes": (np.uint64, 1),  # of the sources, or of the only side
}
HASHES = ("hashes", "source_hashes")

# Reasons to drop a pair, in the order of the checks, and their names in the log.
REASONS = {
    "invalid_utf8": "not UTF-8",
    "empty": "with an empty side",
    "too_long": "longer than data.max_length",
    "length_ratio": "beyond data.max_length_ratio",
    "duplicate": "repeated",
    "candidate": "beside another candidate that is dropped",
}


def open_array(
    folder: Path, name: str, dtype: str = "", mode: Literal["r", "r+"] = "r"
) -> np.ndarray:
    """Maps a nonempty file into memory. Only `tokens` needs the `dtype`."""
    fixed_dtype, width = _LAYOUT[name]
    array = np.memmap(folder / name, fixed_dtype or dtype, mode)
    return array if width == 1 else array.reshape(-1, width)


@dataclass(frozen=True)
class Rules:
    """The limits for training pairs, from the group `config.data`.

    The defaults are those of held-out pairs, which have no limits. `candidates` consecutive pairs
    are kept or dropped together.
    """

    max_length: int = sys.maxsize
    max_length_ratio: float = 0.0
    deduplicate: bool = False
    candidates: int = 1


def drop_reason(lengths: Sequence[int], rules: Rules, tag_length: int = 0) -> str | None:
    """Returns the reason to drop a pair, or None.

    The lengths of its sides do not count end-of-sentence. The first length includes a tag of
    `tag_length` tokens, which is not a part of the text.
    """
    text_lengths = [lengths[0] - tag_length, *lengths[1:]]
    longer = max(text_lengths)
    shorter = min(text_lengths)
    if shorter <= 0:
        return "empty"
    if max(lengths) + 1 > rules.max_length:
        return "too_long"
    if rules.max_length_ratio and longer > rules.max_length_ratio * shorter:
        return "length_ratio"
    return None


def content_hash(source: str, target: str) -> int:
    """Hashes a pair to 64 bits.

    The chance of any collision among 36 million different pairs is 4 in 100,000.
    """
    digest = hashlib.blake2b(source.encode() + b"\n" + target.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def content_hashes(pairs: Sequence[tuple[str, str]]) -> dict[str, UInt64[np.ndarray, " N"]]:
    """Returns the hashes of pairs, and of their sources or only sides, by the names in `HASHES`."""
    hashes = [content_hash(source, target) for source, target in pairs]
    source_hashes = [content_hash(source or target, "") for source, target in pairs]
    return {
        "hashes": np.array(hashes, np.uint64),
        "source_hashes": np.array(source_hashes, np.uint64),
    }


def summary(num_kept: int, dropped: dict[str, int]) -> str:
    """Describes the counts, as in "28,990 pairs kept, 10 dropped: 7 repeated, 3 not UTF-8"."""
    counts = [(count, REASONS[reason]) for reason, count in dropped.items() if count]
    counts.sort(reverse=True)
    reasons = ", ".join(f"{count:,} {words}" for count, words in counts)
    total = f"{sum(dropped.values()):,} dropped: {reasons}" if counts else "none dropped"
    return f"{count_noun(num_kept, 'pair')} kept, {total}"


class EncodedChunk(NamedTuple):
    """The encoded pairs of a chunk of one corpus."""

    corpus: int
    arrays: dict[str, np.ndarray]  # by the names in `_LAYOUT`
    numbers: list[int]  # of the pairs in the chunk, without dropped pairs
    dropped: Counter  # the number of dropped pairs by reason


@dataclass(frozen=True)
class PairEncoder:
    """Encodes the pairs of a source that satisfy the `rules`.

    Monolingual pairs have only one of the `sides`; the other side has no tokens. The sources of
    corpus N begin with tags[N].
    """

    tokenizer: Tokenizer
    rules: Rules
    sides: tuple[int, ...]
    tags: tuple[str, ...]

    @property
    def dtype(self) -> np.dtype:
        """The smallest type that holds the tokens of both vocabularies."""
        return np.dtype(np.uint16 if max(self.tokenizer.vocab_sizes) <= 1 << 16 else np.int32)

    def __call__(self, chunk: tuple[int, list[tuple[bytes, bytes]]]) -> EncodedChunk:
        """Encodes (corpus, pairs)."""
        corpus, pairs = chunk
        reasons = {}  # of dropped pairs, by their number
        texts = {}  # by the number of the pair
        for number, (source, target) in enumerate(pairs):
            try:
                texts[number] = source.decode().strip(), target.decode().strip()
            except UnicodeDecodeError:
                reasons[number] = "invalid_utf8"

        # Encode all texts of a side at once.
        tokenizer = replace(self.tokenizer, source_tag=self.tags[corpus])
        tag_length = tokenizer.tag_length if 0 in self.sides else 0
        sources, targets = (
            encoder.encode([text[side] for text in texts.values()])
            for side, encoder in enumerate(tokenizer.encoders)
        )

        encoded = dict(zip(texts, zip(sources, targets, strict=True), strict=True))
        for number, pair in encoded.items():
            counts = [len(pair[side]) for side in self.sides]
            reason = drop_reason(counts, self.rules, tag_length)
            if reason:
                reasons[number] = reason

        # A chunk has whole groups of candidates.
        size = self.rules.candidates
        for group in {number // size for number in reasons}:
            for number in range(group * size, (group + 1) * size):
                reasons.setdefault(number, "candidate")

        numbers = [number for number in encoded if number not in reasons]
        sentences = []  # source, target, source, ...
        for number in numbers:
            sentences += encoded[number]

        # Only the side that monolingual pairs do not have is empty: the rules drop pairs with any
        # other empty side.
        tokens, lengths = end_sentences(sentences, self.dtype)
        arrays = {"tokens": tokens, "lengths": lengths.reshape(-1, 2)}  # lengths: (pairs, 2)
        arrays |= content_hashes([texts[number] for number in numbers])
        return EncodedChunk(corpus, arrays, numbers, Counter(reasons.values()))


def end_sentences(
    sentences: Iterable[list[int]], dtype: np.dtype
) -> tuple[Integer[np.ndarray, " P"], Int32[np.ndarray, " N"]]:
    """Returns the concatenated tokens of the sentences, and their lengths.

    Each sentence ends with EOS unless it is empty.
    """
    ended = [[*sentence, EOS] if sentence else [] for sentence in sentences]
    tokens = np.fromiter(itertools.chain.from_iterable(ended), dtype)
    return tokens, np.array([len(sentence) for sentence in ended], np.int32)


def encode(folder: Path, source: Source, encoder: PairEncoder, num_workers: int) -> None:
    """Fills `folder` with the encoded pairs of a source.

    Raises UserError if no pair is left, or if groups of candidates are not complete.
    """
    parts = source.sources if isinstance(source, MixedSource) else [source]
    if encoder.rules.candidates > 1:
        for part in parts:
            check_candidates(part, encoder.rules.candidates)
    counts, dropped = _write(folder, source, encoder, num_workers)
    total = sum(counts)
    if not total:
        raise UserError(f"{source.name}: no pair is left of {len(source)}; {summary(0, dropped)}")
    if encoder.rules.deduplicate:
        counts = _remove_duplicates(folder, source, counts)
        dropped["duplicate"] = total - sum(counts)
    for name in HASHES:  # for lookups by bisection
        open_array(folder, name, mode="r+").sort()

    documents = {
        part.name: count_documents(part.mask) for part in parts if isinstance(part, DocumentSource)
    }
    report = {
        "kept": sum(counts),
        "parts": counts,
        "dropped": {reason: dropped[reason] for reason in REASONS},
        "digest": _digest(folder),
        "documents": documents,
        "dtype": str(encoder.dtype),
        "losses": losses_of_pairs(encoder.tokenizer, select_pairs(source, _SAMPLE)),
        "sizes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    files.write_json(folder / REPORT, report)


def _remove_duplicates(folder: Path, source: Source, counts: list[int]) -> list[int]:
    """Removes repeated pairs from the files, and returns the number of pairs left of each part."""
    hashes = open_array(folder, "hashes")

    # Equal pairs of different translation directions are not repetitions.
    if isinstance(source, MixedSource):
        directions = [
            content_hash(corpus.data.source_language, corpus.data.target_language)
            for corpus in source.corpora
        ]
        hashes = hashes ^ np.repeat(np.array(directions, np.uint64), counts)
    _, first = np.unique(hashes, return_index=True)
    first.sort()

    # The tokens and links of repeated pairs stay in their files, unused.
    for name in ("offsets", "lengths", "weights", "link_spans"):
        if (folder / name).exists():
            (folder / name).write_bytes(open_array(folder, name)[first].tobytes())
    return np.diff(np.searchsorted(first, np.cumsum(counts)), prepend=0).tolist()


def _digest(folder: Path) -> str:
    """Returns a digest that is equal for folders with the same arrays, without their hashes."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name not in HASHES:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()


def _write(
    folder: Path, source: Source, encoder: PairEncoder, num_workers: int
) -> tuple[list[int], Counter]:
    """Writes the encoded pairs to files in `folder`.

    Returns the number of pairs written of each part, and the number dropped by reason.
    """
    parts = source.sources if isinstance(source, MixedSource) else [source]
    total = len(source)

    # A small source is encoded by this process, unless the user asks for workers.
    processes = workers.num_workers(num_workers) if total > _SMALL or num_workers else 1
    annotations = read_annotations(source) if isinstance(source, MixedSource) else {}
    if "links" in annotations:  # has no row for each pair: `link_spans` tells the rows of a pair
        (folder / "links").write_bytes(annotations.pop("links").tobytes())

    counts = [0] * len(parts)
    dropped = Counter()
    num_read = 0
    num_tokens = 0
    # A group of candidates is not split between chunks.
    size = _CHUNK // encoder.rules.candidates * encoder.rules.candidates
    chunks = ((number, pairs) for number, part in enumerate(parts) for pairs in _chunks(part, size))
    with progress_bar.bar(f"Encoding {source.name}", total) as advance:
        for chunk in workers.map_ordered(encoder, chunks, processes):
            # Add the columns that depend on the chunks before this one.
            arrays = chunk.arrays
            pairs = num_read + np.array(chunk.numbers, int)
            for name, column in annotations.items():
                arrays[name] = column[pairs]
            sizes = arrays["lengths"].sum(axis=1, dtype=np.int64)
            arrays["offsets"] = num_tokens + np.cumsum(sizes) - sizes
            for name, array in arrays.items():
                with (folder / name).open("ab") as file:
                    file.write(array.tobytes())

            counts[chunk.corpus] += len(pairs)
            dropped += chunk.dropped
            num_tokens += int(sizes.sum())
            chunk_size = len(pairs) + chunk.dropped.total()
            num_read += chunk_size
            advance(chunk_size)
    return counts, dropped


def _chunks(pairs: Iterable, size: int) -> Iterator[list[tuple[bytes, bytes]]]:
    pairs = iter(pairs)
    return iter(lambda: list(itertools.islice(pairs, size)), [])
