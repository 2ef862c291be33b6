"""The text that does not survive a vocabulary: unknown characters, and lines that its normalization changes."""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence

from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.errors import UserError
from transformer.special_tokens import UNK

MAX_UNKNOWN = 0.01  # fraction of the characters that may be unknown without a warning
MAX_UNKNOWN_IN_WORDS = 0.2  # the same for a vocabulary of words, which leaves out rare ones by design
ABSURD = 0.5  # the fraction from which training is refused
MAX_CHANGED = 0.01  # fraction of the target lines that normalization may change without a warning


def count_losses(vocabulary: Vocabulary, texts: Sequence[str], tokens: Sequence[list[int]]) -> tuple[Counter, dict]:
    """Counts characters and lines that decoding does not restore, without regard to spaces.

    Returns:
      The numbers of `characters`, of those `unknown`, of `lines`, and of the lines without unknown characters that
      `changed`; and the first line of each of the last kinds, by `unknown` and `changed`.
    """
    counts, examples, sizes = Counter(lines=len(texts)), {}, None
    for text, sequence, decoded in zip(texts, tokens, vocabulary.decode(tokens), strict=True):
        characters = "".join(text.split())
        counts["characters"] += len(characters)
        if UNK in sequence:
            sizes = sizes or _piece_lengths(vocabulary)
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


def unknown_rate(counts: dict[str, int]) -> float:
    return counts.get("unknown", 0) / max(counts["characters"], 1)


def find_unknown(name: str, kind: str, vocabulary: Vocabulary, losses: tuple[dict, dict], key: str) -> Iterator[str]:
    """Yields a line if too many characters of `name` are unknown; `key` is the setting that chose the vocabulary."""
    counts, examples = losses
    rate = unknown_rate(counts)
    if rate > (MAX_UNKNOWN_IN_WORDS if kind == "word" else MAX_UNKNOWN):
        text = examples["unknown"]
        yield (
            f"{name}: {rate:.1%} of the characters are unknown to the vocabulary; {show(vocabulary, text)}; check "
            f"that {key} suits this text, or train a vocabulary with tokenizer.byte_fallback=True"
        )


def refuse_absurd(name: str, vocabulary: Vocabulary, losses: tuple[dict, dict], key: str) -> None:
    """Raises UserError if most characters of the training text are unknown."""
    counts, examples = losses
    if (rate := unknown_rate(counts)) > ABSURD:
        raise UserError(
            f"{key}: {rate:.0%} of the characters of {name} are unknown to the vocabulary; "
            f"{show(vocabulary, examples['unknown'])}; take a vocabulary that was trained on this language"
        )


def show(vocabulary: Vocabulary, text: str) -> str:
    (decoded,) = vocabulary.decode(vocabulary.encode([text]))
    return f"'{_start(text)}' becomes '{_start(decoded.strip())}'"


def _start(text: str) -> str:
    shown = "".join(character if character.isprintable() else f"\\u{ord(character):04x}" for character in text)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
