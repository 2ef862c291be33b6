"""Training of vocabularies on the text of a run (section 5.1), and the table of their kinds."""

import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import sentencepiece

from transformer.config.types import Config
from transformer.data.sources import Source
from transformer.data.sources.mixture import MixedSource
from transformer.data.sources.source import decode_pairs, select_pairs
from transformer.data.tokenizers.byte_vocabulary import ByteVocabulary
from transformer.data.tokenizers.vocabulary import (
    QUIET,
    IdsVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
)
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL, UNK

_LONGEST = 4192  # bytes: SentencePiece leaves out longer lines
# The parts of a longer line, for characters of 4 bytes. They end at a space, if there is one.
_PARTS = re.compile(rf".{{1,{_LONGEST // 4 - 1}}}(?:\s|\Z)|.{{1,{_LONGEST // 4}}}", re.DOTALL)
_THREADS = 16  # fixed, since the pieces of unigram may depend on the order of its sums


def train(options: Config, source: Source) -> tuple[Vocabulary, Vocabulary]:
    """Makes the vocabularies of both sides with the options of `config.tokenizer`.

    Raises UserError if the text does not allow them.
    """
    # A shared vocabulary is trained on both sides together.
    groups = ((0, 1),) if options.shared else ((0,), (1,))
    vocabularies = [TOKENIZERS[options.kind](options, source, sides) for sides in groups]
    return vocabularies[0], vocabularies[-1]


def training_pairs(source: Source, limit: int) -> Iterator[tuple[str, str]]:
    """Returns about `limit` pairs at most, in the proportions of an epoch for a mixture."""
    if not isinstance(source, MixedSource):
        return select_pairs(source, limit)
    counts = source.sizes
    weights = source.weigh(counts)
    total = sum(weight * count for weight, count in zip(weights, counts, strict=True))
    scale = min(1.0, limit / total)
    selections = []
    for part, count, weight in zip(source.sources, counts, weights, strict=True):
        # All pairs of the part several times, then some of them.
        times, rest = divmod(round(scale * (weight * count)), count)
        sizes = [count] * times
        if rest:
            sizes.append(rest)
        selections += [select_pairs(part, size) for size in sizes]
    return itertools.chain(*selections)


def _parts(text: str) -> list[str]:
    """Divides a line that SentencePiece would leave out of its training."""
    is_long = len(text) > _LONGEST // 4 and len(text.encode()) > _LONGEST
    return _PARTS.findall(text) if is_long else [text]


def _train_sentencepiece(
    options: Config, source: Source, sides: Sequence[int]
) -> SentencePieceVocabulary:
    pairs = training_pairs(source, options.sample_size)

    def read_texts() -> Iterator[str]:
        for pair in pairs:
            for side in sides:
                if pair[side]:
                    yield from _parts(pair[side])

    # The special tokens have the same ids in the model as in all vocabularies.
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read_texts(),
            model_writer=model,
            model_type=options.kind,
            vocab_size=options.vocab_size,
            hard_vocab_limit=options.kind in ("bpe", "unigram"),  # exactly vocab_size pieces
            normalization_rule_name=options.normalization,
            character_coverage=options.character_coverage,
            byte_fallback=options.byte_fallback,
            user_defined_symbols=list(dict.fromkeys(options.user_symbols)),
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=_THREADS,
            minloglevel=QUIET,
        )
    except RuntimeError as error:
        raise UserError(_explain(options, source, str(error))) from error
    return SentencePieceVocabulary(model.getvalue())


def _explain(options: Config, source: Source, message: str) -> str:
    """Returns the error for the user, from the message of SentencePiece."""
    # At the first line that is not UTF-8, `decode_pairs` raises UserError with the encoding.
    total = min(len(source), options.sample_size)
    if 2 * sum(1 for _ in select_pairs(source, options.sample_size)) < total:
        list(decode_pairs(source))

    key = f"tokenizer.vocab_size={options.vocab_size}"
    largest = re.search(r"set it to a value <= (\d+)", message)
    if largest:
        return (
            f"{key}: the training text allows at most {largest[1]} {options.kind} pieces; lower it"
        )
    needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if needed:
        return (
            f"{key}: the characters of the training text need at least {needed[1]}; raise it, or "
            f"lower tokenizer.character_coverage={options.character_coverage}"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return (
            f"{source.name}: no line can train tokenizer.kind={options.kind}; one must be UTF-8, "
            "not only spaces, and without NUL"
        )
    return (
        f"tokenizer.kind={options.kind}, {key}: SentencePiece cannot train on this text: "
        f"{' '.join(message.split())}"
    )


def _count_ids(options: Config, source: Source, sides: Sequence[int]) -> IdsVocabulary:
    """Makes a vocabulary just large enough for the largest integer of the whole training split."""
    largest = -1
    for pair in source:
        for side in sides:
            largest = max([largest, *map(int, pair[side].split())])
    needed = largest + SPECIAL + 1
    if needed > options.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={options.vocab_size}: the largest integer in {source.name} is "
            f"{largest}, which needs at least {needed}; raise it"
        )
    return IdsVocabulary(needed)


def _make_bytes(options: Config, source: Source, sides: Sequence[int]) -> ByteVocabulary:
    vocabulary = ByteVocabulary(options.user_symbols)
    if vocabulary.size > options.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={options.vocab_size}: tokenizer.kind=byte has {vocabulary.size} "
            "tokens here; raise it"
        )
    return vocabulary


def _refuse_training(options: Config, source: Source, sides: Sequence[int]) -> NoReturn:
    raise UserError(
        f"tokenizer.kind={options.kind}: only imported models have this kind, and it cannot be "
        "trained; name the vocabulary in tokenizer.model_file or the imported model in "
        "training.init_from, or use kind=bpe"
    )


# The kinds that `tokenizer.kind` can name. Each function makes a vocabulary for the text of sides.
TOKENIZERS: dict[str, Callable[[Config, Source, Sequence[int]], Vocabulary]] = {
    **dict.fromkeys(("bpe", "unigram", "word", "char"), _train_sentencepiece),
    "ids": _count_ids,
    "byte": _make_bytes,
    "pieces": _refuse_training,
}
