"""The tokenizer of a run, a vocabulary for each side or one that both share (section 5.1), and its training."""

import contextlib
import dataclasses
import hashlib
import io
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import sentencepiece
from absl import logging

from transformer import cache, files
from transformer.config_types import Config, with_changes
from transformer.data.languages import source_tag
from transformer.data.sources.documents import SEPARATOR
from transformer.data.sources.mixture import MixedSource, tags
from transformer.data.sources.source import Source, decoded, open_source
from transformer.data.tokenizers import vocabulary
from transformer.data.tokenizers.vocabulary import (
    IdsVocabulary,
    PieceVocabulary,
    SentencePieceVocabulary,
    TaggedVocabulary,
    Vocabulary,
)
from transformer.environment import VOCABULARY, check_fingerprints
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS, PAD, SPECIAL, UNK
from transformer.workdir import TOKENIZER_FILES

_FORMAT = 1  # part of every key in the cache: raise it when the same inputs would give other vocabularies
_BLOCK = 1024  # most consecutive pairs that are selected from a corpus larger than tokenizer.sample_size
_LONGEST = 4192  # bytes: SentencePiece leaves out longer lines
# The parts of a longer line, at most 4 bytes a character: they end at a space, if there is one.
_PARTS = re.compile(rf".{{1,{_LONGEST // 4 - 1}}}(?:\s|\Z)|.{{1,{_LONGEST // 4}}}", re.DOTALL)
_THREADS = 16  # fixed, since the pieces of unigram may depend on the order of its sums


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The vocabularies of both sides. A shared one is the same object, or the views of one `PieceVocabulary`.

    `source_tag` begins each source that `encoders` encode, unless it is empty.
    """

    source: Vocabulary
    target: Vocabulary
    source_tag: str = ""

    @staticmethod
    def load(workdir: Path, config: Config) -> "Tokenizer":
        """Reads the tokenizer saved in `workdir`. Raises UserError if it is missing, damaged or not that of its run."""
        tokenizer = _read([workdir / name for name in model_names(config.tokenizer.shared)], source_tag(config.data))
        check_fingerprints(workdir, {VOCABULARY: tokenizer.fingerprint})
        return tokenizer

    def save(self, workdir: Path) -> None:
        """Writes each file atomically, except those that exist."""
        for name, side in zip(model_names(self.is_shared), self.sides, strict=False):
            if not (workdir / name).exists():
                files.write_bytes(workdir / name, side.serialized)

    @property
    def sides(self) -> tuple[Vocabulary, Vocabulary]:
        return self.source, self.target

    def tagged(self, tag: str) -> "Tokenizer":
        """Returns the tokenizer with another tag of sources. Raises UserError if the vocabulary has no such token."""
        if tag and not _has_token(self.source, tag):
            ends, pieces = (tag[0], tag[-1]), self.source.pieces
            alike = [piece for piece in pieces if (piece[:1], piece[-1:]) == ends and len(piece) > 2]
            known = f"; it has {', '.join(alike[:20])}" if alike else ""
            raise UserError(f"{tag}: the vocabulary has no such token for data.source_tag{known}")
        return dataclasses.replace(self, source_tag=tag)

    @property
    def encoders(self) -> tuple[TaggedVocabulary, Vocabulary]:
        """The vocabularies as a model reads them: the source begins with its tag."""
        return TaggedVocabulary(self.source, self.source_tag), self.target

    @property
    def tag_length(self) -> int:
        """The number of tokens of the tag, at the start of each source."""
        if not self.source_tag:
            return 0
        with_tag, without = (vocabulary.encode(["x"])[0] for vocabulary in (self.encoders[0], self.source))
        return len(with_tag) - len(without)

    @property
    def is_shared(self) -> bool:
        """Whether the tokens of both sides are the same."""
        return self.target is _target_view(self.source)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """The vocabulary sizes of source and target."""
        return self.source.size, self.target.size

    @property
    def fingerprint(self) -> str:
        """A digest that is equal for tokenizers with the same vocabularies."""
        digests = [hashlib.sha256(side.serialized).hexdigest() for side in self.sides]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _has_token(vocabulary: Vocabulary, word: str) -> bool:
    """Tells whether a text with the word has a token for it. Some vocabularies have pieces that no text has."""
    (encoded,) = vocabulary.encode([f"{word} x"])
    return word in {vocabulary.pieces[token].removeprefix("\u2581") for token in encoded}


def model_names(is_shared: bool) -> tuple[str, ...]:
    """Returns the names of the tokenizer's files in a workdir: only one if the vocabulary is shared."""
    return TOKENIZER_FILES[:1] if is_shared else TOKENIZER_FILES


def prepare(config: Config, workdir: Path) -> Tokenizer:
    """Returns the tokenizer in `workdir`, made if missing. Raises UserError if its model file or text is unusable."""
    if not all((workdir / name).exists() for name in model_names(config.tokenizer.shared)):
        make = read_model_files if config.tokenizer.model_file else _load_or_train
        make(config).save(workdir)
    tokenizer = Tokenizer.load(workdir, config)
    for tag in tags(config.data):
        tokenizer.tagged(tag)
    words = dict.fromkeys(config.tokenizer.user_symbols, "tokenizer.user_symbols")
    words |= {SEPARATOR: f"data.context={config.data.context}"} if config.data.context else {}
    for word, key in words.items():
        if not all(_has_token(side, word) for side in tokenizer.sides):
            raise UserError(
                f"config.{key}: the vocabulary has no token {word}; set config.training.init_vocabulary=own, or leave "
                "config.tokenizer.model_file empty"
            )
    return tokenizer


def read_model_files(config: Config) -> Tokenizer:
    """Reads `config.tokenizer.model_file`. Raises UserError if a file is missing or damaged."""
    paths = [files.expanded(name.strip()) for name in config.tokenizer.model_file.split(",")]
    return _read(paths, source_tag(config.data))


def _read(paths: Sequence[Path], tag: str) -> Tokenizer:
    try:
        vocabularies = [vocabulary.load(path.read_bytes(), str(path)) for path in paths]
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; name or restore the tokenizer's model") from error
    return Tokenizer(vocabularies[0], _target_view(vocabularies[-1]), tag)


def _target_view(vocabulary: Vocabulary) -> Vocabulary:
    """Returns the vocabulary for the target side, whose text a `PieceVocabulary` may segment by another model."""
    return vocabulary.target_view if isinstance(vocabulary, PieceVocabulary) else vocabulary


def _load_or_train(config: Config) -> Tokenizer:
    """Trains a tokenizer, unless the cache has one with the same training text and settings."""
    source = open_source(config.data, "train")
    separators = [SEPARATOR] if config.data.context else []
    user_symbols = [*config.tokenizer.user_symbols, *tags(config.data), *separators]
    options = with_changes(config.tokenizer, user_symbols=user_symbols)
    settings = {key: value for key, value in options.items() if key not in ("model_file", "subword_sampling")}
    weights = source.weigh(source.sizes) if isinstance(source, MixedSource) else ()
    key = cache.key([_FORMAT, settings, source.identity, sentencepiece.__version__, *weights])
    folder = cache.folder(config.data.cache_dir) / "tokenizers" / f"{config.data.name.replace('/', '-')}-{key}"

    def fill(unfinished: Path) -> None:
        began = time.perf_counter()
        tokenizer = Tokenizer(*train(options, source))
        sizes = " and ".join(f"{size:,}" for size in sorted(set(tokenizer.vocab_sizes)))
        seconds = time.perf_counter() - began
        logging.info("Tokenizer: %s %s tokens, made in %.1f s.", sizes, config.tokenizer.kind, seconds)
        tokenizer.save(unfinished)

    cache.make_once(folder, fill, config.data.wait_seconds)
    return Tokenizer.load(folder, config)


def train(options: Config, source: Source) -> tuple[Vocabulary, Vocabulary]:
    """Makes the vocabularies of both sides by `config.tokenizer`. Raises UserError if the text does not allow them."""
    groups = ((0, 1),) if options.shared else ((0,), (1,))
    vocabularies = [TOKENIZERS[options.kind](options, source, sides) for sides in groups]
    return vocabularies[0], vocabularies[-1]


def training_pairs(source: Source, limit: int) -> Iterator[tuple[str, str]]:
    """Returns about `limit` pairs at most; those of a mixture as often as an epoch reads them, in proportion."""
    if not isinstance(source, MixedSource):
        return select_pairs(source, limit)
    counts = source.sizes
    read = [weight * count for weight, count in zip(source.weigh(counts), counts, strict=True)]
    scale, chosen = min(1.0, limit / max(sum(read), 1)), []
    for part, count, number in zip(source.sources, counts, read, strict=True):
        times, rest = divmod(round(scale * number), max(count, 1))
        chosen += [select_pairs(part, size) for size in (*[count] * times, rest) if size]
    return itertools.chain(*chosen)


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
    pairs = training_pairs(source, options.sample_size)
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
            user_defined_symbols=list(dict.fromkeys(options.user_symbols)),
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
        list(decoded(source))  # raises UserError, with the encoding, if a line is not UTF-8
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


def _refuse_training(options: Config, source: Source, sides: Sequence[int]) -> PieceVocabulary:
    raise UserError(
        f"tokenizer.kind={options.kind}: only imported models have this kind, and it cannot be trained; name the "
        "vocabulary in tokenizer.model_file or the imported model in training.init_from, or use kind=bpe"
    )


# The kinds that `tokenizer.kind` can name, with the functions that make a vocabulary of the text on these sides.
TOKENIZERS: dict[str, Callable[[Config, Source, Sequence[int]], Vocabulary]] = {
    **dict.fromkeys(("bpe", "unigram", "word", "char"), _train_sentencepiece),
    "ids": _count_ids,
    "pieces": _refuse_training,
}
