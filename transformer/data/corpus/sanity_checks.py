"""Sanity checks of a run's data, which yield a line for each warning, and its first pairs for the
log.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.text import Text

from transformer.config.types import Config, output_limit
from transformer.data.corpus.corpus import Corpus
from transformer.data.corpus.encoding import content_hashes
from transformer.data.sources import Source
from transformer.data.sources.lines import counted
from transformer.data.sources.mixture import listed_corpora, tags
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.support.errors import UserError

_SAMPLE = 1000  # pairs, spread evenly over the corpus
_MAX_EQUAL = 0.2  # fraction of pairs whose sides may be equal
_MAX_UNREACHABLE = 0.01  # fraction of targets that may be longer than an output
_MAX_UNKNOWN = 0.01  # fraction of the characters that may be unknown without a warning
# the same for a vocabulary of words, which leaves out rare ones by design
_MAX_UNKNOWN_IN_WORDS = 0.2
_ABSURD = 0.5  # fraction of unknown characters from which training is refused
_MAX_CHANGED = 0.01  # fraction of the target lines that normalization may change without a warning
_MAX_TRACES = 0.01  # fraction of the lines that may have what other tools leave in text
_TRACES = {"subwords": "words split by another vocabulary", "entities": "entities of HTML"}
_MAX_SHARED = 0.01  # fraction of held-out sources that may be training sources, with other targets


def pair_lines(data: Config, tokenizer: Tokenizer, corpus: Corpus, columns: int) -> Iterator[str]:
    """Yields the first and the middle pair, as decoded from their tokens, in one line for each
    side.
    """
    parts = listed_corpora(data)
    ends = np.cumsum(corpus.report["parts"])
    for number, *pair in zip(corpus.spread(2), *_sample(tokenizer, corpus, 2), strict=True):
        own = parts[np.searchsorted(ends, number, side="right")].data
        for language, text in zip((own.source_language, own.target_language), pair, strict=True):
            if language:
                yield _shorten(f"{language}: {text}", columns)


def find_untranslated(config: Config, tokenizer: Tokenizer, corpus: Corpus) -> Iterator[str]:
    """Yields a line if many sampled training pairs have equal sides."""
    if config.data.source == "ids":  # copying integers is a common exercise
        return
    sources, targets = _sample(tokenizer, corpus, _SAMPLE)
    for tag in tags(config.data):
        sources = [source.removeprefix(f"{tag} ") for source in sources]
    equal = [source for source, target in zip(sources, targets, strict=True) if source == target]
    if len(equal) > _MAX_EQUAL * len(sources):
        yield (
            f"{len(equal):,} of {len(sources):,} sampled training pairs have equal sides, such as "
            f"'{_shorten(equal[0])}'; check that the targets are translated"
        )


def find_unreachable(config: Config, corpus: Corpus) -> Iterator[str]:
    """Yields a line if sampled training targets have more tokens than outputs may have, or than CTC
    has frames.
    """
    lengths = (corpus.lengths[corpus.spread(_SAMPLE)] - 1).tolist()  # without end-of-sentence
    if config.decoding.strategy == "ctc":
        limits = [config.model.ctc_frames * (source + 1) for source, _ in lengths]
        advice = "model.ctc_frames x source length), so the loss leaves them out; raise ctc_frames"
    else:
        limits = [output_limit(source, config.decoding) for source, _ in lengths]
        advice = "decoding.max_length_factor x source length + decoding.max_extra_length); raise one of them"
    longer = sum(target > limit for (_, target), limit in zip(lengths, limits, strict=True))
    if longer > _MAX_UNREACHABLE * len(lengths):
        yield (
            f"{longer:,} of {len(lengths):,} sampled training targets have more tokens than outputs may have ({advice}"
        )


def find_losses(
    config: Config, tokenizer: Tokenizer, name: str, losses: Sequence, is_train: bool
) -> Iterator[str]:
    """Yields a line for each side of a split with unknown characters, and for targets that cannot
    be produced.

    Yields a line for each side with tokens of other tools, or with entities of HTML.

    `losses` are those of `losses_of_pairs`. Raises UserError if most characters of a side of the
    training split are unknown.
    """
    kind = config.tokenizer.kind
    for side, vocabulary, (counts, examples) in zip(
        ("source", "target"), tokenizer.sides, losses, strict=True
    ):
        if not counts.get("characters"):
            continue
        unknown = counts.get("unknown", 0) / counts["characters"]
        if unknown > (_MAX_UNKNOWN_IN_WORDS if kind == "word" else _MAX_UNKNOWN):
            line = (
                f"{name}, {config.data[f'{side}_language']}: {unknown:.1%} of the characters are unknown to the "
                f"vocabulary; {_decoded(vocabulary, examples['unknown'])}; check that tokenizer.model_file, "
                "training.init_from or tokenizer.character_coverage suits this text, or train a vocabulary with "
                "tokenizer.byte_fallback=True, and with training.init_vocabulary=own if there is a parent"
            )
            if is_train and kind != "word" and unknown > _ABSURD:
                raise UserError(line)
            yield line
        frequent = [name for name in _TRACES if counts.get(name, 0) > _MAX_TRACES * counts["lines"]]
        if frequent:
            listed = " and ".join(
                f"{_TRACES[name]}, such as '{_shorten(examples[name])}'" for name in frequent
            )
            yield (
                f"{name}, {config.data[f'{side}_language']}: many lines have {listed}; restore the text as people read "
                "it, or translations and scores are of such text"
            )
        changed = counts.get("changed", 0) / counts["lines"]
        if side == "target" and config.data.source != "ids" and changed > _MAX_CHANGED:
            yield (
                f"{name}: the vocabulary's normalization changes {changed:.1%} of the targets, so the model can never "
                f"produce them: {_decoded(vocabulary, examples['changed'])}; convert the text to Unicode's form NFC, "
                "or train a vocabulary with tokenizer.normalization=identity, which keeps them"
            )


def find_shared(corpus: Corpus, source: Source, texts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yields a line if pairs of a held-out split occur in the training corpus, or many of their
    sources do.

    A mixture may have them in the other direction.
    """
    texts = [tuple(side.strip() for side in pair) for pair in texts]
    pairs, sources = (
        corpus.find_hashes(name, hashes) for name, hashes in content_hashes(texts).items()
    )
    pairs |= corpus.find_hashes("hashes", content_hashes([pair[::-1] for pair in texts])["hashes"])
    if pairs.any() or sources.mean() > _MAX_SHARED:
        index = int(np.argmax(pairs if pairs.any() else sources))
        example = (
            f"{source.where(index, int(not texts[index][0]))}: '{_shorten(' '.join(texts[index]))}'"
        )
        yield (
            f"{source.name}: {counted(int(pairs.sum()), 'pair')} of {len(texts):,} and "
            f"{counted(int(sources.sum()), 'source')} are in the training data, such as {example}; remove them from "
            "the training data, or scores on this split are too high"
        )


def _decoded(vocabulary: Vocabulary, text: str) -> str:
    (decoded,) = vocabulary.decode(vocabulary.encode([text]))
    return f"'{_shorten(text)}' becomes '{_shorten(decoded.strip())}'"


def _sample(tokenizer: Tokenizer, corpus: Corpus, count: int) -> list[list[str]]:
    """Returns the sources and the targets of at most `count` pairs, as decoded from their tokens."""
    pairs = corpus.spread(count)
    return [
        vocabulary.decode(corpus.sentences(side, pairs))
        for side, vocabulary in enumerate(tokenizer.sides)
    ]


def _shorten(text: str, columns: int = 60) -> str:
    """Cuts text to a width on the terminal, where some characters take two columns, and escapes
    invisible ones.
    """
    shown = Text(
        "".join(
            character if character.isprintable() else f"\\u{ord(character):04x}"
            for character in text
        )
    )
    shown.truncate(columns, overflow="ellipsis")
    return shown.plain
