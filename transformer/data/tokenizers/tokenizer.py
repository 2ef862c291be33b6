"""The tokenizer of a run: a vocabulary for each side, or one that both share (section 5.1)."""

import dataclasses
import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece
from absl import logging

from transformer.config.types import Config, with_changes
from transformer.data.languages import source_tag
from transformer.data.sources.mixture import MixedSource, source_tags
from transformer.data.sources.source import SEPARATOR, open_source
from transformer.data.tokenizers import vocabulary
from transformer.data.tokenizers.vocabulary import (
    PieceVocabulary,
    SentencePieceVocabulary,
    TaggedVocabulary,
    Vocabulary,
)
from transformer.data.tokenizers.vocabulary_training import train
from transformer.support import cache, files
from transformer.support.environment import VOCABULARY, check_fingerprints
from transformer.support.errors import UserError, first_of
from transformer.support.special_tokens import SPECIAL, UNK, WORD_START
from transformer.workdir import TOKENIZER_FILES

# Part of every key in the cache: raise it when the same inputs would give other vocabularies.
_FORMAT = 1

# What other tools leave in text. The keys name the counts of its lines.
TRACES = {
    "subwords": re.compile(r"\S@@(?= |$)|\u2581"),  # of subword-nmt and SentencePiece
    "entities": re.compile(r"&(?:[A-Za-z]{2,8}|#[0-9]{2,6}|#x[0-9A-Fa-f]{2,5});"),
}

# The text of one side that decoding does not restore: counts, and an example of each count.
Losses = tuple[dict[str, int], dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The vocabularies of both sides.

    A shared vocabulary is the same object on both sides, or the views of one `PieceVocabulary`.
    `source_tag` begins each source that `encoders` encode, unless it is empty.
    """

    source: Vocabulary
    target: Vocabulary
    source_tag: str = ""

    @staticmethod
    def load(workdir: Path, config: Config) -> "Tokenizer":
        """Reads the tokenizer saved in `workdir`.

        Raises UserError if a file is missing or damaged, or if another run made it.
        """
        paths = [workdir / name for name in model_names(config.tokenizer.shared)]
        tokenizer = _read(paths, source_tag(config.data))
        check_fingerprints(workdir, {VOCABULARY: tokenizer.fingerprint})
        return tokenizer

    def save(self, workdir: Path) -> None:
        """Writes each file atomically, except files that exist."""
        for name, side in zip(model_names(self.is_shared), self.sides, strict=False):
            if not (workdir / name).exists():
                files.write_bytes(workdir / name, side.serialized)

    @property
    def sides(self) -> tuple[Vocabulary, Vocabulary]:
        return self.source, self.target

    def with_tag(self, tag: str) -> "Tokenizer":
        """Returns the tokenizer with another tag of sources.

        Raises UserError if the vocabulary has no such token. A text that ends with a colon may
        have any tokens.
        """
        if tag and not tag.endswith(":") and not _has_token(self.source, tag):
            message = f"{tag}: the vocabulary has no such token for data.source_tag"
            similar = self.tags_like(tag)
            if similar:
                message += f"; it has {first_of(similar, 20, ', ')}"
            raise UserError(message)
        return dataclasses.replace(self, source_tag=tag)

    def tags_like(self, tag: str) -> list[str]:
        """Returns the source tokens with the first and the last character of the tag."""
        pieces = [
            piece.removeprefix(WORD_START)
            for piece in self.source.pieces[SPECIAL:]
            if len(piece) > 2
        ]
        return [piece for piece in pieces if piece.startswith(tag[0]) and piece.endswith(tag[-1])]

    def find_typed_tag(self, texts: Sequence[str], first_line: int) -> str:
        """Returns a warning about the first text that begins with a tag, or ""."""
        brackets = re.fullmatch(r"([\W_]+).*?([\W_]+)", self.source_tag)
        if not brackets:
            return ""

        # For the tag <2de>, the pattern is <...> with a word of 2 to 12 characters.
        begin, end = map(re.escape, brackets.groups())
        pattern = re.compile(rf"\s*({begin}[\w-]{{2,12}}?{end})")  # not [1] or <b>
        for line, text in enumerate(texts, start=first_line):
            typed = pattern.match(text)
            if typed:
                tags = first_of(self.tags_like(self.source_tag), 20, ", ")
                return (
                    f"Line {line} begins with {typed[1]}, and the run's tag {self.source_tag} "
                    "precedes it; leave it out, and name a target language instead. The run has "
                    f"{tags}."
                )
        return ""

    @property
    def encoders(self) -> tuple[TaggedVocabulary, Vocabulary]:
        """The vocabularies as a model reads them: each source begins with the tag."""
        return TaggedVocabulary(self.source, self.source_tag), self.target

    @property
    def tag_length(self) -> int:
        """The number of tokens of the tag, at the start of each source."""
        (with_tag,) = self.encoders[0].encode(["0"])
        (without,) = self.source.encode(["0"])
        return len(with_tag) - len(without)

    @property
    def is_shared(self) -> bool:
        """True if the tokens of both sides are the same."""
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
    """True if a text with the word has a token for it.

    A piece in the vocabulary is not enough, because no text has the tokens of some pieces.
    """
    word = word.removeprefix(WORD_START)
    (encoded,) = vocabulary.encode([f"{word} x"])
    return word in {vocabulary.pieces[token].removeprefix(WORD_START) for token in encoded}


def model_names(is_shared: bool) -> tuple[str, ...]:
    """Returns the names of the tokenizer's files in a workdir, one if the vocabulary is shared."""
    return TOKENIZER_FILES[:1] if is_shared else TOKENIZER_FILES


def prepare(config: Config, workdir: Path) -> Tokenizer:
    """Returns the tokenizer in `workdir`, made if missing.

    Raises UserError if its model file or text is unusable, or if the vocabulary has no token for a
    word of the configuration.
    """
    # The files in the workdir take precedence, so that a resumed run keeps its vocabulary.
    if not all((workdir / name).exists() for name in model_names(config.tokenizer.shared)):
        make = read_model_files if config.tokenizer.model_file else _load_or_train
        make(config).save(workdir)
    tokenizer = Tokenizer.load(workdir, config)

    # A vocabulary of a file or of a parent may lack tokens that this configuration needs.
    advice = "set config.training.init_vocabulary=own, or leave config.tokenizer.model_file empty"
    for tag in source_tags(config.data):
        try:
            tokenizer.with_tag(tag)
        except UserError as error:
            raise UserError(f"{error}; {advice}") from None
    if config.tokenizer.subword_sampling and not all(
        isinstance(side, SentencePieceVocabulary) for side in tokenizer.sides
    ):
        raise UserError(
            "config.tokenizer.subword_sampling: the vocabulary has one segmentation of each text; "
            "set it to 0"
        )
    words = dict.fromkeys(config.tokenizer.user_symbols, "tokenizer.user_symbols")
    if config.data.context:
        words[SEPARATOR] = f"data.context={config.data.context}"
    for word, key in words.items():
        if not all(_has_token(side, word) for side in tokenizer.sides):
            raise UserError(f"config.{key}: the vocabulary has no token {word}; {advice}")
    return tokenizer


def read_model_files(config: Config) -> Tokenizer:
    """Reads `config.tokenizer.model_file`. Raises UserError if a file is missing or damaged."""
    paths = [files.expand_user(name.strip()) for name in config.tokenizer.model_file.split(",")]
    return _read(paths, source_tag(config.data))


def _read(paths: Sequence[Path], tag: str) -> Tokenizer:
    try:
        vocabularies = [vocabulary.load(path.read_bytes(), str(path)) for path in paths]
    except OSError as error:
        raise UserError(
            f"{error.filename}: {error.strerror}; name or restore the tokenizer's model"
        ) from error
    return Tokenizer(vocabularies[0], _target_view(vocabularies[-1]), tag)


def _target_view(vocabulary: Vocabulary) -> Vocabulary:
    """Returns the vocabulary for the target side.

    A `PieceVocabulary` may segment the texts of this side with another model.
    """
    return vocabulary.target_view if isinstance(vocabulary, PieceVocabulary) else vocabulary


def _load_or_train(config: Config) -> Tokenizer:
    """Trains a tokenizer, unless the cache has one with the same training text and settings."""
    # Each tag of one word and the separator of documents must be a single token.
    source = open_source(config.data, "train")
    tags = [tag for tag in source_tags(config.data) if " " not in tag]
    user_symbols = [*config.tokenizer.user_symbols, *tags]
    if config.data.context:
        user_symbols.append(SEPARATOR)
    options = with_changes(config.tokenizer, user_symbols=user_symbols)

    # The key has everything that the vocabularies depend on.
    settings = options.to_dict()
    del settings["model_file"], settings["subword_sampling"]
    weights = source.weigh(source.sizes) if isinstance(source, MixedSource) else ()
    key = cache.digest_of([_FORMAT, settings, source.identity, sentencepiece.__version__, *weights])
    name = f"{config.data.name.replace('/', '-')}-{key}"
    folder = cache.cache_folder(config.data.cache_dir) / "tokenizers" / name

    def fill(unfinished: Path) -> None:
        began = time.perf_counter()
        tokenizer = Tokenizer(*train(options, source))
        seconds = time.perf_counter() - began
        sizes = " and ".join(f"{size:,}" for size in sorted(set(tokenizer.vocab_sizes)))
        message = "Tokenizer: %s %s tokens, made in %.1f s."
        logging.info(message, sizes, config.tokenizer.kind, seconds)
        tokenizer.save(unfinished)

    cache.make_once(folder, fill, config.data.wait_seconds)
    return Tokenizer.load(folder, config)


def losses_of_pairs(tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]]) -> list[Losses]:
    """Returns `count_losses` of the sources and of the targets."""
    texts_of_sides = list(zip(*pairs, strict=True)) or [(), ()]
    sides = zip(tokenizer.sides, texts_of_sides, strict=True)
    return [count_losses(side, [text.strip() for text in texts]) for side, texts in sides]


def count_losses(vocabulary: Vocabulary, texts: Sequence[str]) -> Losses:
    """Counts characters and lines that decoding does not restore. Spaces do not count.

    The counts are `characters`, `unknown` characters, `lines`, and lines without unknown characters
    that `changed`. Lines with one of `TRACES` are counted too. The example of `unknown` and of
    `changed` is the first such line, and the example of a trace is the text around the first one.
    """
    counts = Counter(lines=len(texts))
    examples = {}
    tokens = vocabulary.encode(texts)
    for text, sequence, decoded in zip(texts, tokens, vocabulary.decode(tokens), strict=True):
        characters = "".join(text.split())
        counts["characters"] += len(characters)

        # Decode the known tokens only, since UNK becomes a mark that is not in the text.
        if UNK in sequence:
            known_tokens = [token for token in sequence if token != UNK]
            (known_text,) = vocabulary.decode([known_tokens])
            counts["unknown"] += max(1, len(characters) - len("".join(known_text.split())))
            examples.setdefault("unknown", text)
        elif text != decoded and characters != "".join(decoded.split()):
            counts["changed"] += 1
            examples.setdefault("changed", text)

        # The traces of other tools, whatever the vocabulary makes of them.
        for name, pattern in TRACES.items():
            match = pattern.search(text)
            if match:
                counts[name] += 1
                examples.setdefault(name, text[max(match.start() - 15, 0) : match.end() + 15])
    return counts, examples
