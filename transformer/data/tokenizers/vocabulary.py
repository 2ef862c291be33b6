"""The vocabulary of one language.

In every kind, tokens 0 to 3 are special; of these `encode` returns only UNK.
"""

import functools
import itertools
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import (  # type: ignore[attr-defined]  # made at import
    ModelProto,
    TrainerSpec,
)

from transformer.data.sources.lines import is_natural_number
from transformer.data.tokenizers.byte_vocabulary import ByteVocabulary
from transformer.data.tokenizers.piece_vocabulary import PieceVocabulary
from transformer.data.tokenizers.subword_sampling import BpeDropout, UnigramSampler
from transformer.support.errors import MALFORMED, UserError
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL, SPECIAL_PIECES, UNK

_SPECIAL_TYPES = (
    ModelProto.SentencePiece.CONTROL,
    ModelProto.SentencePiece.UNKNOWN,
    ModelProto.SentencePiece.UNUSED,
)
_INVISIBLE = (PAD, BOS, EOS)  # decoding skips these
_WORDS = re.compile("\u2581?[^\u2581]+|\u2581")  # in normalized text
_UNKNOWN = "\uffff"  # no character of any text, so no piece has it

QUIET = 2  # SentencePiece's log level: only errors
sentencepiece.set_min_log_level(QUIET)


class SentencePieceVocabulary:
    """A SentencePiece model, with the ids renumbered so that the special tokens come first.

    model_ids: the id of each token in the model; -1 for PAD, BOS and EOS.
    """

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.load_from_serialized_proto(model)
        self._proto = ModelProto.FromString(self.serialized)

        # The model's own padding, BOS and EOS are never used.
        ordinary = [
            model_id
            for model_id, piece in enumerate(self._proto.pieces)
            if piece.type not in _SPECIAL_TYPES
        ]
        self.model_ids = [-1, self._processor.unk_id(), -1, -1, *ordinary]

        # From the ids and from the pieces of the model to tokens.
        self._tokens = {
            model_id: token for token, model_id in enumerate(self.model_ids) if model_id >= 0
        }
        self._token_of_piece = {piece: token for token, piece in enumerate(self.pieces)}
        self._sampler = functools.cache(self._make_sampler)

    def __reduce__(self):
        return SentencePieceVocabulary, (self.serialized,)

    @property
    def size(self) -> int:
        """The number of tokens, including the special tokens."""
        return len(self.model_ids)

    @functools.cached_property
    def pieces(self) -> list[str]:
        """The string of each token. A token that starts a word begins with U+2581."""
        return [*SPECIAL_PIECES, *map(self._processor.id_to_piece, self.model_ids[SPECIAL:])]

    @functools.cached_property
    def serialized(self) -> bytes:
        """The file content that `load` reads."""
        return self._processor.serialized_model_proto()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each text in its best segmentation."""
        # SentencePiece starts a thread for a list, which takes five times as long as a text.
        encode = self._processor.encode
        return [[self._tokens[model_id] for model_id in encode(text)] for text in texts]

    def sample(
        self, sequences: Iterable[Sequence[int]], seeds: Iterable[int], rate: float
    ) -> list[list[int]]:
        """Segments the text of each sequence of tokens again, by BPE-dropout or unigram sampling.

        The result is a pure function of (sequence, seed, rate).
        """
        sampler = self._sampler(rate)
        symbols = self._user_symbols
        samples = []
        for tokens, seed in zip(sequences, seeds, strict=True):
            pieces = []
            generator = random.Random(seed)
            for is_symbol, run in itertools.groupby(tokens, symbols.__contains__):
                # Symbols of the user stay whole. The text between them is segmented word by word.
                if is_symbol:
                    pieces += [symbols[token] for token in run]
                    continue
                text = b"".join([self._normalized[token] for token in run]).decode()
                for word in _WORDS.findall(text):
                    pieces += sampler.segment(word, generator)
            samples.append(self._tokens_of(pieces))
        return samples

    @functools.cached_property
    def _user_symbols(self) -> dict[int, str]:
        """The pieces, by token, that SentencePiece never splits or merges."""
        return {
            self._tokens[model_id]: piece.piece
            for model_id, piece in enumerate(self._proto.pieces)
            if piece.type == piece.USER_DEFINED
        }

    @functools.cached_property
    def _normalized(self) -> list[bytes]:
        """The part of a normalized text for each token: with byte fallback, part of a character."""
        is_byte = self._processor.is_byte
        parts = [b"", _UNKNOWN.encode(), b"", b""]  # of PAD, UNK, BOS and EOS
        for model_id, piece in zip(self.model_ids[SPECIAL:], self.pieces[SPECIAL:], strict=True):
            parts.append(bytes.fromhex(piece[3:5]) if is_byte(model_id) else piece.encode())
        return parts

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each sequence, without PAD, BOS and EOS."""
        model_ids = [
            [self.model_ids[token] for token in tokens if token not in _INVISIBLE]
            for tokens in sequences
        ]
        return [self._processor.decode(ids) for ids in model_ids]

    def _make_sampler(self, rate: float) -> BpeDropout | UnigramSampler:
        # Merges and probabilities concern only ordinary pieces.
        scores = {
            piece.piece: piece.score for piece in self._proto.pieces if piece.type == piece.NORMAL
        }
        is_bpe = self._proto.trainer_spec.model_type == TrainerSpec.BPE
        return BpeDropout(scores, rate) if is_bpe else UnigramSampler(scores, rate)

    def _tokens_of(self, pieces: Iterable[str]) -> list[int]:
        """Encodes pieces.

        As in SentencePiece, consecutive unknown pieces become one UNK, or bytes with byte fallback.
        """
        tokens: list[int] = []
        for piece in pieces:
            token = self._token_of_piece.get(piece, UNK)
            if token != UNK:
                tokens.append(token)
            elif "<0x00>" in self._token_of_piece:
                tokens += [self._token_of_piece[f"<0x{byte:02X}>"] for byte in piece.encode()]
            elif not tokens or tokens[-1] != UNK:
                tokens.append(UNK)
        return tokens


class IdsVocabulary:
    """A vocabulary for text of integers: n is token n + 4. Integers beyond the largest are UNK."""

    def __init__(self, size: int) -> None:
        self.size = size

    @functools.cached_property
    def pieces(self) -> list[str]:
        return [*SPECIAL_PIECES, *map(str, range(self.size - SPECIAL))]

    @property
    def serialized(self) -> bytes:
        return json.dumps({"kind": "ids", "size": self.size}).encode()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens. Raises UserError for anything but non-negative integers."""
        return [[self._token(number) for number in text.split()] for text in texts]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return [
            " ".join(self.pieces[token] for token in tokens if token not in _INVISIBLE)
            for tokens in sequences
        ]

    def _token(self, number: str) -> int:
        if not is_natural_number(number):
            raise UserError(
                f"'{number:.40}': tokenizer.kind=ids reads space-separated non-negative integers "
                "of at most 18 digits"
            )
        token = int(number) + SPECIAL
        return token if token < self.size else UNK


Vocabulary = SentencePieceVocabulary | IdsVocabulary | PieceVocabulary | ByteVocabulary


@dataclass(frozen=True)
class TaggedVocabulary:
    """A vocabulary that encodes each text after a tag, unless the tag is empty.

    A text of spaces and invisible characters takes no tag, so most vocabularies give it no tokens.
    """

    vocabulary: Vocabulary
    tag: str

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.vocabulary.encode(self.tagged(texts))

    def tagged(self, texts: Sequence[str]) -> Sequence[str]:
        if not self.tag:
            return texts
        return [f"{self.tag} {text}" if _is_visible(text) else text for text in texts]


def _is_visible(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)


def load(serialized: bytes, where: str) -> Vocabulary:
    """Reads the content of a vocabulary's file.

    Raises UserError, with the file's name `where`, if it is damaged.
    """
    try:
        if not serialized.startswith(b"{"):
            return SentencePieceVocabulary(serialized)

        # Vocabularies of other kinds are JSON.
        content = json.loads(serialized)
        if content["kind"] == "pieces":
            return PieceVocabulary.parse(content)
        if content["kind"] == "byte":
            return ByteVocabulary.parse(content)
        size = content["size"]
        if type(size) is int and SPECIAL <= size < 2**31:
            return IdsVocabulary(size)
        raise ValueError(size)
    except (*MALFORMED, RuntimeError) as error:
        reason = f"; {error}" if isinstance(error, UserError) else ""
        message = f"{where}: not a SentencePiece model, or damaged{reason}; name a .model file"
        raise UserError(message) from error
