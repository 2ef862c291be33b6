"""The work that is spread over processes: stretches of text pairs to arrays of ids."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transformer.data.corpus import cleaning, storage
from transformer.data.hashing import mix
from transformer.data.sources.lines import decode
from transformer.data.sources.source import Source
from transformer.data.tokenizers.tokenizer import Tokenizer

RawPairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Encoded:
    """Some pairs, ready to be appended to a corpus: its arrays by the names of `storage`, and what was left out."""

    arrays: dict[str, np.ndarray]
    read: int  # pairs taken from the source
    dropped: Counter


@dataclass(frozen=True)
class Encoder:
    """Encodes a stretch of a source. With `rules` it cleans, as training needs; without, it drops empty pairs alone."""

    source: Source
    tokenizer: Tokenizer
    rules: cleaning.Rules | None
    keep_text: bool

    def __call__(self, stretch: tuple[int, int, RawPairs | None]) -> Encoded:
        """`stretch` is (first pair, last pair + 1, the pairs themselves if the source cannot start there)."""
        start, stop, pairs = stretch
        dropped: Counter = Counter()
        texts = []
        for index, pair in enumerate(self.source.pairs(start, stop) if pairs is None else pairs, start):
            decoded = self._decode(index, pair)
            if isinstance(decoded, str):
                dropped[decoded] += 1
            else:
                texts.append(decoded)
        encoded = zip(
            self.tokenizer.encode_source([source for source, _ in texts]),
            self.tokenizer.encode_target([target for _, target in texts]),
            strict=True,
        )
        kept_ids, kept_texts = [], []
        for ids, text in zip(encoded, texts, strict=True):
            if fault := self._fault(ids):
                dropped[fault] += 1
            else:
                kept_ids.append(ids)
                kept_texts.append(text)
        return Encoded(self._arrays(kept_ids, kept_texts), stop - start, dropped)

    def _decode(self, index: int, pair: tuple[bytes, bytes]) -> tuple[str, str] | str:
        """The two texts, or the reason to drop the pair."""
        try:
            source, target = (line.decode().strip() for line in pair)
        except UnicodeDecodeError:
            if self.rules is None:
                for side, line in enumerate(pair):
                    decode(line, self.source.where(index, side))
            return "invalid_utf8"
        return (source, target) if source and target else "empty"

    def _fault(self, ids: tuple[list[int], list[int]]) -> str | None:
        source, target = ids
        if not source or not target:
            return "empty"  # of what the vocabulary can show
        return cleaning.length_fault(len(source), len(target), self.rules) if self.rules else None

    def _arrays(self, ids: list[tuple[list[int], list[int]]], texts: list[tuple[str, str]]) -> dict[str, np.ndarray]:
        arrays = id_arrays(ids, self.tokenizer)
        if self.keep_text:
            raw = [(source.encode(), target.encode()) for source, target in texts]
            arrays["text"] = np.frombuffer(b"".join(source + target for source, target in raw), np.uint8)
            arrays["text_lengths"] = _pairs_of_int32([(len(source), len(target)) for source, target in raw])
        if self.rules and self.rules.deduplicate:
            arrays["hashes"] = np.array([cleaning.content_hash(*text) for text in texts], np.uint64)
        return arrays


@dataclass(frozen=True)
class Resampler:
    """Encodes a stretch of a corpus anew for one epoch, in segmentations drawn by (seed, epoch, sentence)."""

    folder: Path  # of a corpus that keeps its text
    tokenizer: Tokenizer
    max_length: int
    seed: int
    epoch: int

    def __call__(self, stretch: tuple[int, int]) -> Encoded:
        start, stop = stretch
        text = storage.open_array(self.folder, "text")
        offsets = storage.open_array(self.folder, "text_offsets")[start:stop].tolist()
        lengths = storage.open_array(self.folder, "text_lengths")[start:stop].tolist()
        texts: tuple[list[str], list[str]] = ([], [])
        for offset, (source, target) in zip(offsets, lengths, strict=True):
            texts[0].append(text[offset : offset + source].tobytes().decode())
            texts[1].append(text[offset + source : offset + source + target].tobytes().decode())
        sampled = [self._sampled(side, texts[side], start, stop) for side in (0, 1)]
        return Encoded(id_arrays(list(zip(*sampled, strict=True)), self.tokenizer), stop - start, Counter())

    def _sampled(self, side: int, texts: list[str], start: int, stop: int) -> list[list[int]]:
        """One side. A draw longer than training allows gives way to the best segmentation, which was let in."""
        seeds = (mix(self.seed, self.epoch, side, np.arange(start, stop)) >> np.uint64(32)).tolist()
        tokenizer = self.tokenizer
        sample, encode = (
            (tokenizer.encode_source_sampled, tokenizer.encode_source)
            if side == 0
            else (tokenizer.encode_target_sampled, tokenizer.encode_target)
        )
        drawn = sample(texts, seeds)
        for index, ids in enumerate(drawn):
            if not 0 < len(ids) < self.max_length:
                (drawn[index],) = encode([texts[index]])
        return drawn


def id_arrays(ids: list[tuple[list[int], list[int]]], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    dtype = storage.ids_type(max(tokenizer.source_vocab_size, tokenizer.target_vocab_size))
    flat = [id_ for pair in ids for side in pair for id_ in side]
    lengths = _pairs_of_int32([(len(source) + 1, len(target) + 1) for source, target in ids])
    return {"ids": np.array(flat, dtype), "lengths": lengths}


def _pairs_of_int32(values: list[tuple[int, int]]) -> np.ndarray:
    return np.array(values, np.int32).reshape(-1, 2)
