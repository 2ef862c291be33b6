"""Cleaning of text pairs, their encoding into arrays, and the files of these arrays, which are
memory-mapped.
"""

import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Integer, UInt64

from transformer.data.corpus.annotations import read_annotations
from transformer.data.sources import Source
from transformer.data.sources.lines import count_documents, counted
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

# The type and row width of each file's entries. `tokens` has the smallest type that holds the
# vocabulary.
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


def token_dtype(vocab_sizes: tuple[int, int]) -> np.dtype:
    return np.dtype(np.uint16 if max(vocab_sizes) <= 1 << 16 else np.int32)


def open_array(folder: Path, name: str, dtype: str | None = None, mode: str = "r") -> np.ndarray:
    """Maps a nonempty file into memory. Only `tokens` needs the `dtype`."""
    fixed, width = _LAYOUT[name]
    array = np.memmap(folder / name, fixed or dtype, mode)
    return array if width == 1 else array.reshape(-1, width)


@dataclass(frozen=True)
class Rules:
    """The limits for training pairs, from the group `config.data`.

    By default there are none, as for held-out pairs.
    """

    max_length: int = sys.maxsize
    max_length_ratio: float = 0.0
    deduplicate: bool = False


def drop_reason(lengths: Sequence[int], rules: Rules, tag_length: int = 0) -> str | None:
    """Returns the reason to drop a pair, or None. The lengths of its sides do not count
    end-of-sentence.

    The first of them counts a tag of `tag_length`, which is no part of the text.
    """
    texts = [lengths[0] - tag_length, *lengths[1:]]
    longer = max(texts)
    shorter = min(texts)
    if shorter <= 0:
        return "empty"
    if max(lengths) + 1 > rules.max_length:
        return "too_long"
    if rules.max_length_ratio and longer > rules.max_length_ratio * shorter:
        return "length_ratio"
    return None


def content_hash(source: str, target: str) -> int:
    """Hashes a pair to 64 bits.

    Among 36 million different pairs the chance of any collision is 4 in 100,000.
    """
    digest = hashlib.blake2b(source.encode() + b"\n" + target.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def content_hashes(pairs: Sequence[tuple[str, str]]) -> dict[str, UInt64[np.ndarray, " N"]]:
    """Returns the hashes of pairs, and those of their sources or only sides, by the names in
    `HASHES`.
    """
    hashes = (
        [content_hash(*pair) for pair in pairs],
        [content_hash(source or target, "") for source, target in pairs],
    )
    return {name: np.array(values, np.uint64) for name, values in zip(HASHES, hashes, strict=True)}


def summary(kept: int, dropped: dict[str, int]) -> str:
    """Returns a line for the log: "28,990 pairs kept, 10 dropped: 7 repeated, 3 with an empty
    side".
    """
    counts = sorted(
        ((count, REASONS[reason]) for reason, count in dropped.items() if count), reverse=True
    )
    reasons = ", ".join(f"{count:,} {words}" for count, words in counts)
    total = f"{sum(dropped.values()):,} dropped: {reasons}" if counts else "none dropped"
    return f"{counted(kept, 'pair')} kept, {total}"


@dataclass(frozen=True)
class PairEncoder:
    """Encodes pairs of a source by the `rules`. Monolingual pairs have one of the `sides`; the
    other has no tokens.

    Sources of corpus number N begin with tags[N].
    """

    tokenizer: Tokenizer
    rules: Rules
    sides: tuple[int, ...]
    tags: tuple[str, ...]

    def __call__(
        self, corpus_and_pairs: tuple[int, list[tuple[bytes, bytes]]]
    ) -> tuple[int, dict[str, np.ndarray], list[int], Counter]:
        """Returns the corpus, arrays by name, the pairs that are kept, and the numbers of dropped
        ones by reason.
        """
        corpus, pairs = corpus_and_pairs
        texts = {}  # by the numbers of the pairs
        kept = {}
        dropped = Counter()
        for number, pair in enumerate(pairs):
            try:
                texts[number] = tuple(line.decode().strip() for line in pair)
            except UnicodeDecodeError:
                dropped["invalid_utf8"] += 1
        tokenizer = replace(self.tokenizer, source_tag=self.tags[corpus])
        encoders = tokenizer.encoders
        tag_length = tokenizer.tag_length if 0 in self.sides else 0
        sources, targets = (
            encoders[side].encode([text[side] for text in texts.values()]) for side in (0, 1)
        )
        for number, *pair in zip(texts, sources, targets, strict=True):
            if reason := drop_reason(
                [len(pair[side]) for side in self.sides], self.rules, tag_length
            ):
                dropped[reason] += 1
            else:
                kept[number] = pair
        # An empty side is one that monolingual pairs do not have: pairs with an empty side have
        # been dropped.
        dtype = token_dtype(self.tokenizer.vocab_sizes)
        tokens, lengths = end_sentences(itertools.chain.from_iterable(kept.values()), dtype)
        hashes = content_hashes([texts[number] for number in kept])
        return (
            corpus,
            {"tokens": tokens, "lengths": lengths.reshape(-1, 2)} | hashes,
            list(kept),
            dropped,
        )


def end_sentences(
    sentences: Iterable[list[int]], dtype: np.dtype
) -> tuple[Integer[np.ndarray, " P"], Int32[np.ndarray, " N"]]:
    """Returns the concatenated tokens of the sentences, each with EOS unless it is empty, and their
    lengths.
    """
    ended = [[*sentence, EOS] if sentence else [] for sentence in sentences]
    tokens = np.fromiter(itertools.chain.from_iterable(ended), dtype)
    return tokens, np.array([len(sentence) for sentence in ended], np.int32)


def encode(folder: Path, source: Source, encoder: PairEncoder, wanted_workers: int) -> None:
    """Fills `folder` with the pairs of the source that satisfy the encoder's rules."""
    counts, dropped = _write(folder, source, encoder, wanted_workers)
    kept = sum(counts)
    if not kept:
        raise UserError(f"{source.name}: no pair is left of {len(source)}; {summary(0, dropped)}")
    if encoder.rules.deduplicate:
        hashes = open_array(folder, "hashes")
        # equal pairs of different directions are no repetitions
        if isinstance(source, MixedSource):
            parts = [part.data for part in source.corpora]
            directions = [
                content_hash(data.source_language, data.target_language) for data in parts
            ]
            hashes = hashes ^ np.repeat(np.array(directions, np.uint64), counts)
        first = np.sort(np.unique(hashes, return_index=True)[1])
        # The tokens and links of repeated pairs stay in their files, unused.
        for name in ("offsets", "lengths", "weights", "link_spans"):
            if (folder / name).exists():
                (folder / name).write_bytes(open_array(folder, name)[first].tobytes())
        dropped["duplicate"] = kept - len(first)
        counts = np.diff(np.searchsorted(first, np.cumsum(counts)), prepend=0).tolist()
    for name in HASHES:
        open_array(folder, name, mode="r+").sort()
    parts = source.sources if isinstance(source, MixedSource) else [source]
    report = {
        "kept": sum(counts),
        "parts": counts,
        "dropped": {reason: dropped[reason] for reason in REASONS},
        "digest": _digest(folder),
        "documents": {
            part.name: count_documents(part.kept)
            for part in parts
            if isinstance(part, DocumentSource)
        },
        "dtype": str(token_dtype(encoder.tokenizer.vocab_sizes)),
        "losses": losses_of_pairs(encoder.tokenizer, select_pairs(source, _SAMPLE)),
        "sizes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    files.write_json(folder / REPORT, report)


def _digest(folder: Path) -> str:
    """Returns a digest that is equal for folders with the same arrays, without their hashes."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.name not in HASHES):
        with path.open("rb") as file:
            total.update(
                f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode()
            )
    return total.hexdigest()


def _write(
    folder: Path, source: Source, encoder: PairEncoder, wanted_workers: int
) -> tuple[list[int], Counter]:
    """Writes the encoded pairs to files in `folder`.

    Returns the pairs kept of each part, and dropped by reason.
    """
    is_mixed = isinstance(source, MixedSource)
    total = len(source)
    parts = source.sources if is_mixed else [source]
    chunks = ((number, chunk) for number, part in enumerate(parts) for chunk in _chunks(part))
    counts = [0] * len(parts)
    processes = workers.num_workers(wanted_workers) if total > _SMALL or wanted_workers else 1
    columns = read_annotations(source) if is_mixed else {}
    if "links" in columns:  # no column: `link_spans` tells which are those of a pair
        (folder / "links").write_bytes(columns.pop("links").tobytes())
    dropped = Counter()
    read = 0
    end = 0
    with progress_bar.bar(f"Encoding {source.name}", total) as advance:
        for part, arrays, kept, more_dropped in workers.map_ordered(encoder, chunks, processes):
            counts[part] += len(kept)
            arrays |= {name: column[read + np.array(kept, int)] for name, column in columns.items()}
            count = len(kept) + more_dropped.total()
            read += count
            sizes = arrays["lengths"].sum(axis=1, dtype=np.int64)
            arrays["offsets"] = end + np.cumsum(sizes) - sizes
            end += int(sizes.sum())
            for name, array in arrays.items():
                with (folder / name).open("ab") as file:
                    file.write(array.tobytes())
            dropped += more_dropped
            advance(count)
    return counts, dropped


def _chunks(pairs: Iterable) -> Iterator[list[tuple[bytes, bytes]]]:
    pairs = iter(pairs)
    return iter(lambda: list(itertools.islice(pairs, _CHUNK)), [])
