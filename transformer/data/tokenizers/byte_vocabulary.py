"""A vocabulary of bytes, which needs no training (Xue et al. 2022, ByT5)."""

import functools
import json
import re
from collections.abc import Sequence

from transformer.support.special_tokens import SPECIAL, SPECIAL_PIECES, WORD_START

NUM_BYTES = 256


class ByteVocabulary:
    """The bytes of UTF-8, and symbols, one token each.

    Byte b is token b + 4, and the symbols follow the bytes. No text has unknown tokens, and
    decoding restores every text except the spaces at its ends. As in SentencePiece, U+2581 at the
    start of a symbol is the space before it. Bytes of an output that are not UTF-8 are left out.
    """

    def __init__(self, symbols: Sequence[str] = ()) -> None:
        self.symbols = list(dict.fromkeys(symbols))
        texts = [
            f" {symbol[1:]}" if symbol.startswith(WORD_START) else symbol for symbol in self.symbols
        ]
        self._token_of = {text: SPECIAL + NUM_BYTES + i for i, text in enumerate(texts)}
        bytes_of_bytes = [bytes([byte]) for byte in range(NUM_BYTES)]
        self._bytes_of = [*[b""] * SPECIAL, *bytes_of_bytes, *map(str.encode, texts)]

        # Among symbols that begin alike, the longest one counts.
        longest_first = sorted(map(re.escape, texts), key=len, reverse=True)
        self._symbol = re.compile(f"({'|'.join(longest_first)})") if texts else None

    @property
    def size(self) -> int:
        """The number of tokens, including the special tokens."""
        return len(self._bytes_of)

    @functools.cached_property
    def pieces(self) -> list[str]:
        """The strings of the tokens: U+2581 for a space, ASCII characters, \\xNN, and symbols."""
        characters = [
            chr(byte) if 0x20 < byte < 0x7F else f"\\x{byte:02X}" for byte in range(NUM_BYTES)
        ]
        characters[ord(" ")] = WORD_START
        return [*SPECIAL_PIECES, *characters, *self.symbols]

    @property
    def serialized(self) -> bytes:
        """The file content that `vocabulary.load` reads."""
        return json.dumps({"kind": "byte", "symbols": self.symbols}).encode()

    @staticmethod
    def parse(content: dict) -> "ByteVocabulary":
        """Reads the content of a file. Raises ValueError for symbols that are not strings."""
        symbols = content["symbols"]
        if not all(isinstance(symbol, str) and symbol for symbol in symbols):
            raise ValueError(symbols)
        return ByteVocabulary(symbols)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._encode(text.strip()) for text in texts]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each sequence, without special tokens."""
        contents = [b"".join(map(self._bytes_of.__getitem__, tokens)) for tokens in sequences]
        return [content.decode(errors="ignore").removeprefix(" ") for content in contents]

    def _encode(self, text: str) -> list[int]:
        if self._symbol is None:
            return _tokens_of_bytes(text)
        # A symbol with a space may begin a text. Every second part is a symbol.
        tokens = []
        for i, part in enumerate(self._symbol.split(f" {text}")):
            tokens += [self._token_of[part]] if i % 2 else _tokens_of_bytes(part)
        is_space = tokens[:1] == _tokens_of_bytes(" ")
        return tokens[1:] if is_space else tokens


def _tokens_of_bytes(text: str) -> list[int]:
    return [SPECIAL + byte for byte in text.encode()]
