"""One language's pieces and their ids. The four special ids are fixed here, for every kind of vocabulary."""

import json
import random
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import sentencepiece

from transformer.data.sources.lines import is_number
from transformer.data.tokenizers.subword_sampling import BpeDropout, UnigramSampler
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS, PAD, SPECIAL, SPECIAL_PIECES, UNK

_UNSEEN = (PAD, BOS, EOS)  # what decoding leaves out

_WORDS = re.compile("\u2581?[^\u2581]+|\u2581")  # in normalised text

QUIET = 2  # SentencePiece's log level: errors alone
sentencepiece.set_min_log_level(QUIET)


@runtime_checkable
class Vocabulary(Protocol):
    """Turns text into ids and back. Ids 0 to 3 are PAD, UNK, BOS and EOS; `encode` gives UNK at most of these."""

    @property
    def size(self) -> int:
        """How many ids there are, the special ones included."""

    @property
    def pieces(self) -> list[str]:
        """What each id stands for; a piece that starts a word begins with U+2581."""

    @property
    def serialized(self) -> bytes:
        """What `load` makes it from."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, in its one best segmentation."""

    def sample(self, texts: Sequence[str], seeds: Iterable[int], rate: float) -> list[list[int]]:
        """The ids of each text, in a segmentation that is a pure function of (text, seed, rate)."""

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids. PAD, BOS and EOS are left out."""


class SentencePieceVocabulary:
    """A SentencePiece model. Its own ids may be any: here they are numbered anew, the special ones first."""

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.load_from_serialized_proto(model)
        ids = range(self._processor.get_piece_size())
        special = (self._processor.is_control, self._processor.is_unknown, self._processor.is_unused)
        ordinary = [id_ for id_ in ids if not any(test(id_) for test in special)]
        self._model_ids = [-1, self._processor.unk_id(), -1, -1, *ordinary]
        self._ids = {model_id: id_ for id_, model_id in enumerate(self._model_ids) if model_id >= 0}
        self._id_of_piece = {self._processor.id_to_piece(model_id): id_ for model_id, id_ in self._ids.items()}
        self._has_bytes = "<0x00>" in self._id_of_piece
        self._samplers: dict[float, BpeDropout | UnigramSampler] = {}
        self._same_ids = all(id_ == model_id for model_id, id_ in self._ids.items())

    def __reduce__(self):
        return SentencePieceVocabulary, (self.serialized,)

    @property
    def size(self) -> int:
        return len(self._model_ids)

    @property
    def pieces(self) -> list[str]:
        return [*SPECIAL_PIECES, *map(self._processor.id_to_piece, self._model_ids[SPECIAL:])]

    @cached_property
    def serialized(self) -> bytes:
        return self._processor.serialized_model_proto()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._renumber(self._processor.encode(list(texts), num_threads=1))

    def sample(self, texts: Sequence[str], seeds: Iterable[int], rate: float) -> list[list[int]]:
        """BPE merges are dropped with probability `rate`; unigram segmentations have probability p^rate, normalised."""
        sampler = self._sampler(rate)
        sequences = []
        for text, seed in zip(self._processor.normalize(list(texts)), seeds, strict=True):
            generator = random.Random(seed)
            pieces = (piece for word in _WORDS.findall(text) for piece in sampler.segment(word, generator))
            sequences.append(self._ids_of(pieces))
        return sequences

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return [
            self._processor.decode([self._model_ids[id_] for id_ in ids if id_ not in _UNSEEN]) for ids in sequences
        ]

    def _sampler(self, rate: float) -> BpeDropout | UnigramSampler:
        if rate not in self._samplers:
            ids = [id_ for id_ in self._model_ids[SPECIAL:] if not self._processor.is_byte(id_)]
            scores = {self._processor.id_to_piece(id_): self._processor.get_score(id_) for id_ in ids}
            # The scores of byte-pair encoding are ranks, 0, -1, -2 and so on; unigram's are log-probabilities.
            ranks = all(score == round(score) for score in scores.values())
            self._samplers[rate] = BpeDropout(scores, rate) if ranks else UnigramSampler(scores, rate)
        return self._samplers[rate]

    def _ids_of(self, pieces: Iterable[str]) -> list[int]:
        """As SentencePiece does it: unknown pieces in a row are one UNK, or where the model has bytes all of these."""
        ids: list[int] = []
        for piece in pieces:
            id_ = self._id_of_piece.get(piece, UNK)
            if id_ != UNK:
                ids.append(id_)
            elif self._has_bytes:
                ids += [self._id_of_piece[f"<0x{byte:02X}>"] for byte in piece.encode()]
            elif not ids or ids[-1] != UNK:
                ids.append(UNK)
        return ids

    def _renumber(self, sequences: list[list[int]]) -> list[list[int]]:
        if self._same_ids:
            return sequences
        return [[self._ids[model_id] for model_id in sequence] for sequence in sequences]


class IdsVocabulary:
    """Text that is integers already: n is id n + 4, and a number beyond the last one is UNK."""

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def pieces(self) -> list[str]:
        return [*SPECIAL_PIECES, *map(str, range(self.size - SPECIAL))]

    @property
    def serialized(self) -> bytes:
        return json.dumps({"kind": "ids", "size": self.size}).encode()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Raises UserError if a text has anything but integers from 0 on."""
        return [[self._id(token) for token in text.split()] for text in texts]

    def sample(self, texts: Sequence[str], seeds: Iterable[int], rate: float) -> list[list[int]]:
        """Integers have one segmentation only."""
        return self.encode(texts)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(self._token(id_) for id_ in ids if id_ not in _UNSEEN) for ids in sequences]

    def _token(self, id_: int) -> str:
        return SPECIAL_PIECES[UNK] if id_ == UNK else str(id_ - SPECIAL)

    def _id(self, token: str) -> int:
        if not is_number(token):
            raise UserError(f"'{token:.40}': tokenizer.kind=ids takes space-separated integers from 0 on")
        id_ = int(token) + SPECIAL
        return id_ if id_ < self.size else UNK


def _checked_size(size: object) -> int:
    if type(size) is not int or not SPECIAL <= size < 2**31:
        raise ValueError(size)
    return size


def load(serialized: bytes, where: str) -> Vocabulary:
    """The vocabulary that a file holds. Raises UserError, saying `where`, if it is not one."""
    try:
        if serialized.startswith(b"{"):
            return IdsVocabulary(_checked_size(json.loads(serialized)["size"]))
        return SentencePieceVocabulary(serialized)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{where}: not a SentencePiece model, or damaged; give a .model file") from error
