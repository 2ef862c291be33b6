"""Vocabularies of other toolkits: a list of pieces, and SentencePiece models that segment text."""

import base64
import functools
import json
import re
from collections.abc import Sequence

import sentencepiece

from transformer.support.errors import UserError
from transformer.support.special_tokens import SPECIAL, SPECIAL_PIECES, UNK, WORD_START

_LANGUAGE_TOKEN = re.compile(">>.*?<<", re.DOTALL)  # at the start of a text


class PieceVocabulary:
    """The pieces of all tokens, and for each side the SentencePiece model that segments its text.

    Encodes and decodes as Hugging Face's MarianTokenizer does, but `</s>` and the like are ordinary
    text. The piece `>>fra<<` at the start of a text is the token of a language. Without a model, a
    text is its pieces, separated by spaces. Decoding skips all special tokens.

    pieces: the strings of the tokens, the special tokens first.
    models: the content of the models of source and target, or None.
    side: the side of the texts, 0 for the source.

    Raises UserError if the pieces or a model are unusable.
    """

    def __init__(
        self, pieces: Sequence[str], models: Sequence[bytes | None], side: int = 0
    ) -> None:
        # The pieces may come from a damaged file.
        is_text = isinstance(pieces, list | tuple) and all(
            isinstance(piece, str) for piece in pieces
        )
        if (
            not is_text
            or tuple(pieces[:SPECIAL]) != SPECIAL_PIECES
            or len(set(pieces)) < len(pieces)
        ):
            raise UserError(
                "its pieces must be different strings, of which the first are "
                f"{', '.join(SPECIAL_PIECES)}"
            )

        self.pieces = list(pieces)
        self.models = tuple(models)
        self._side = side
        source, target = (None if model is None else _processor(model) for model in self.models)
        self._processor = target if side else source
        self._tokens = {piece: token for token, piece in enumerate(self.pieces) if token >= SPECIAL}

    @property
    def size(self) -> int:
        return len(self.pieces)

    @functools.cached_property
    def target_view(self) -> "PieceVocabulary":
        """The same vocabulary for texts of the target side.

        It is the same object if both sides have the same model.
        """
        is_target = self._side == 1 or self.models[0] == self.models[1]
        return self if is_target else PieceVocabulary(self.pieces, self.models, side=1)

    @functools.cached_property
    def serialized(self) -> bytes:
        """The file content, the same for both sides."""
        models = [
            None if model is None else base64.b64encode(model).decode() for model in self.models
        ]
        return json.dumps({"kind": "pieces", "pieces": self.pieces, "models": models}).encode()

    @staticmethod
    def parse(content: dict) -> "PieceVocabulary":
        """Returns the vocabulary of the source side.

        Raises an exception in MALFORMED if the content of a file is damaged.
        """
        models = [
            None if model is None else base64.b64decode(model, validate=True)
            for model in content["models"]
        ]
        return PieceVocabulary(content["pieces"], models)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each text. Pieces that are not in the vocabulary become UNK."""
        return [[self._tokens.get(piece, UNK) for piece in self._segment(text)] for text in texts]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        texts = []
        for tokens in sequences:
            pieces = [self.pieces[token] for token in tokens if token >= SPECIAL]
            texts.append(self._join(pieces))
        return texts

    def _segment(self, text: str) -> list[str]:
        if self._processor is None:
            return [piece for piece in text.split(" ") if piece]

        # SentencePiece would split the piece of a language.
        match = _LANGUAGE_TOKEN.match(text)
        language = match[0] if match else ""
        pieces = self._processor.encode(text.removeprefix(language), out_type=str)
        return [language, *pieces] if language else pieces

    def _join(self, pieces: list[str]) -> str:
        if self._processor is None:
            return " ".join(pieces)
        # SentencePiece leaves the mark of words in pieces that its model does not have.
        return self._processor.decode_pieces(pieces).replace(WORD_START, " ").strip()


@functools.lru_cache(4)  # the models of both sides, for both views
def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except (TypeError, RuntimeError) as error:
        raise UserError("its SentencePiece model is damaged") from error
    return processor
