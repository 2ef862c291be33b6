"""Makes vocabularies from the training split alone."""

import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator

import sentencepiece

from transformer.data.sources.source import Source
from transformer.data.tokenizers import vocabulary
from transformer.data.tokenizers.vocabulary import IdsVocabulary, SentencePieceVocabulary
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS, PAD, SPECIAL, UNK

_BLOCK = 1024  # consecutive pairs taken from one place of a large corpus
_THREADS = 16  # fixed: unigram's sums, and so its pieces, could depend on it


def train(options, source: Source) -> tuple[vocabulary.Vocabulary, vocabulary.Vocabulary]:
    """The vocabularies of both sides, as `options` (the config's group `tokenizer`) ask; one object if shared.

    Raises:
      UserError: there is no text, or it cannot give the vocabulary asked for.
    """
    if options.kind == "ids":
        return _count_ids(options, source)
    if options.shared:
        both = _train_one(options, itertools.chain.from_iterable(sample(source, options.sample_size)))
        return both, both
    sides = [_train_one(options, (pair[side] for pair in sample(source, options.sample_size))) for side in (0, 1)]
    return sides[0], sides[1]


def sample(source: Source, limit: int) -> Iterator[tuple[str, str]]:
    """At most `limit` pairs, in blocks spread evenly over the source; those that are not UTF-8 are left out."""
    for line_pair in _sample_bytes(source, limit):
        try:
            yield line_pair[0].decode(), line_pair[1].decode()
        except UnicodeDecodeError:
            continue


def _sample_bytes(source: Source, limit: int) -> Iterator[tuple[bytes, bytes]]:
    total = len(source)
    if total <= limit:
        yield from source.pairs(0, total)
        return
    blocks = math.ceil(limit / _BLOCK)
    size = limit // blocks
    starts = [block * total // blocks for block in range(blocks)]
    if source.seekable:
        for start in starts:
            yield from source.pairs(start, start + size)
        return
    pairs, position = source.pairs(0, total), 0
    for start in starts:
        yield from itertools.islice(pairs, start - position, start - position + size)
        position = start + size


def _train_one(options, sentences: Iterable[str]) -> SentencePieceVocabulary:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=options.kind,
            vocab_size=options.vocab_size,
            hard_vocab_limit=options.kind in ("bpe", "unigram"),
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
        raise UserError(_explain(options, str(error))) from error
    return SentencePieceVocabulary(model.getvalue())


def _explain(options, message: str) -> str:
    received = f"tokenizer.vocab_size={options.vocab_size}"
    if largest := re.search(r"set it to a value <= (\d+)", message):
        return f"{received}: the training text allows at most {largest[1]} {options.kind} pieces; lower it"
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"{received}: the characters of the training text need at least {needed[1]}; raise it, or lower "
            f"tokenizer.character_coverage={options.character_coverage}"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return (
            f"tokenizer.kind={options.kind}: the training text has no line to learn from: none of at most 4,192 bytes "
            "of UTF-8, without NULs, that is not blank"
        )
    reason = " ".join(message.split())
    return f"tokenizer.kind={options.kind}, {received}: SentencePiece cannot train on this text: {reason}"


def _count_ids(options, source: Source) -> tuple[IdsVocabulary, IdsVocabulary]:
    """Vocabularies as large as the largest integer of the whole training split requires."""
    largest = [-1, -1]
    for pair in source.pairs(0, len(source)):
        for side, line in enumerate(pair):
            largest[side] = max(largest[side], max(map(int, line.split()), default=-1))
    if options.shared:
        largest = [max(largest)] * 2
    sizes = [SPECIAL + 1 + number for number in largest]
    if max(sizes) > options.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={options.vocab_size}: the largest integer in {source.name} is {max(largest)}, "
            f"which needs at least {max(sizes)}; raise it"
        )
    if options.shared:
        both = IdsVocabulary(sizes[0])
        return both, both
    return IdsVocabulary(sizes[0]), IdsVocabulary(sizes[1])
