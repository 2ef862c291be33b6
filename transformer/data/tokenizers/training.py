"""Training of vocabularies, on the training split only."""

import collections
import contextlib
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence

import sentencepiece

from transformer.config_types import Config
from transformer.data.sources.source import Source, decoded
from transformer.data.tokenizers import vocabulary
from transformer.data.tokenizers.vocabulary import IdsVocabulary, SentencePieceVocabulary, Vocabulary
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS, PAD, SPECIAL, UNK

_BLOCK = 1024  # most consecutive pairs that are selected from a corpus larger than tokenizer.sample_size
_LONGEST = 4192  # bytes: SentencePiece leaves out longer lines
# The parts of a longer line, at most 4 bytes a character: they end at a space, if there is one.
_PARTS = re.compile(rf".{{1,{_LONGEST // 4 - 1}}}(?:\s|\Z)|.{{1,{_LONGEST // 4}}}", re.DOTALL)
_THREADS = 16  # fixed, since the pieces of unigram may depend on the order of its sums


def train(options: Config, source: Source) -> tuple[Vocabulary, Vocabulary]:
    """Makes the vocabularies of both sides as the group `config.tokenizer` says; a shared one is the same object.

    Raises UserError if there is no text, or it does not allow such a vocabulary.
    """
    make = TOKENIZERS[options.kind]
    if options.shared:
        return (make(options, source, (0, 1)),) * 2
    return make(options, source, (0,)), make(options, source, (1,))


def select_pairs(source: Source, limit: int) -> Iterator[tuple[str, str]]:
    """Yields at most `limit` pairs, in blocks spread evenly over the source, and skips those that are not UTF-8."""
    total, blocks = len(source), math.ceil(limit / _BLOCK)
    for index, pair in enumerate(source):
        block = ((index + 1) * blocks - 1) // total  # the last that starts at this index or before
        if total <= limit or index - block * total // blocks < limit // blocks:
            with contextlib.suppress(UnicodeDecodeError):
                yield pair[0].decode(), pair[1].decode()


def _parts(text: str) -> list[str]:
    """Divides a line that SentencePiece would leave out of its training."""
    is_long = len(text) > _LONGEST // 4 and len(text.encode()) > _LONGEST
    return _PARTS.findall(text) if is_long else [text]


def _train_sentencepiece(options: Config, source: Source, sides: Sequence[int]) -> SentencePieceVocabulary:
    pairs = select_pairs(source, options.sample_size)
    texts = (part for pair in pairs for side in sides if pair[side] for part in _parts(pair[side]))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=texts,
            model_writer=model,
            model_type=options.kind,
            vocab_size=options.vocab_size,
            hard_vocab_limit=options.kind in ("bpe", "unigram"),  # exactly vocab_size pieces
            normalization_rule_name=options.normalization,
            character_coverage=options.character_coverage,
            byte_fallback=options.byte_fallback,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=_THREADS,
            minloglevel=vocabulary.QUIET,
        )
    except RuntimeError as error:
        raise UserError(_explain(options, source, str(error))) from error
    return SentencePieceVocabulary(model.getvalue())


def _explain(options: Config, source: Source, message: str) -> str:
    received = f"tokenizer.vocab_size={options.vocab_size}"
    if largest := re.search(r"set it to a value <= (\d+)", message):
        return f"{received}: the training text allows at most {largest[1]} {options.kind} pieces; lower it"
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"{received}: the characters of the training text need at least {needed[1]}; raise it, or lower "
            f"tokenizer.character_coverage={options.character_coverage}"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        collections.deque(decoded(source), maxlen=0)  # raises UserError, with the encoding, if a line is not UTF-8
        return (
            f"{source.name}: no line can train tokenizer.kind={options.kind}; one must be UTF-8, not only spaces, and "
            "without NUL"
        )
    reason = " ".join(message.split())
    return f"tokenizer.kind={options.kind}, {received}: SentencePiece cannot train on this text: {reason}"


def _count_ids(options: Config, source: Source, sides: Sequence[int]) -> IdsVocabulary:
    """Makes a vocabulary just large enough for the largest integer of the whole training split."""
    largest = max((int(token) for pair in source for side in sides for token in pair[side].split()), default=-1)
    needed = largest + SPECIAL + 1
    if needed > options.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={options.vocab_size}: the largest integer in {source.name} is {largest}, "
            f"which needs at least {needed}; raise it"
        )
    return IdsVocabulary(needed)


# The kinds that `tokenizer.kind` can name, with the functions that make a vocabulary of the text on these sides.
TOKENIZERS: dict[str, Callable[[Config, Source, Sequence[int]], Vocabulary]] = {
    "bpe": _train_sentencepiece,
    "unigram": _train_sentencepiece,
    "word": _train_sentencepiece,
    "char": _train_sentencepiece,
    "ids": _count_ids,
}
