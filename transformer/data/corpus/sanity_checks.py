"""Sanity checks of a run's data, which yield a line for each warning, and examples for the log."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from rich.text import Text

from transformer.config.types import Config, output_limit
from transformer.data.corpus.corpus import Corpus
from transformer.data.sources import Source
from transformer.data.sources.lines import count_noun
from transformer.data.sources.mixture import listed_corpora, source_tags
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.support.errors import UserError

_SAMPLE = 1000  # pairs, spread evenly over the corpus
_MAX_EQUAL = 0.2  # fraction of pairs whose sides may be equal
_MAX_UNREACHABLE = 0.01  # fraction of targets that may be longer than an output
_MAX_UNKNOWN = 0.01  # fraction of the characters that may be unknown without a warning
# The same for a vocabulary of words, which leaves out rare words by design.
_MAX_UNKNOWN_IN_WORDS = 0.2
_ABSURD = 0.5  # fraction of unknown characters from which training is refused
_MAX_CHANGED = 0.01  # fraction of the target lines that normalization may change without a warning
_MAX_TRACES = 0.01  # fraction of the lines that may have what other tools leave in text
_TRACES = {"subwords": "words split by another vocabulary", "entities": "entities of HTML"}
_MAX_SHARED = 0.01  # fraction of held-out sources that may be training sources, with other targets


def pair_lines(data: Config, tokenizer: Tokenizer, corpus: Corpus, columns: int) -> Iterator[str]:
    """Yields the first and the middle pair, decoded from their tokens, a line for each side."""
    parts = listed_corpora(data)
    ends = np.cumsum(corpus.report["parts"])  # the first pair after each part
    sides = _sample(tokenizer, corpus, 2)
    for number, source, target in zip(corpus.spread(2), *sides, strict=True):
        part = parts[np.searchsorted(ends, number, side="right")].data
        if part.source_language:
            yield _shorten(f"{part.source_language}: {source}", columns)
        if part.target_language:
            yield _shorten(f"{part.target_language}: {target}", columns)


def find_untranslated(config: Config, tokenizer: Tokenizer, corpus: Corpus) -> Iterator[str]:
    """Yields a line if many sampled training pairs have equal sides."""
    if config.data.source == "ids":  # copying integers is a common exercise
        return
    sources, targets = _sample(tokenizer, corpus, _SAMPLE)
    for tag in source_tags(config.data):
        sources = [source.removeprefix(f"{tag} ") for source in sources]
    equal = [source for source, target in zip(sources, targets, strict=True) if source == target]
    if len(equal) > _MAX_EQUAL * len(sources):
        yield (
            f"{len(equal):,} of {len(sources):,} sampled training pairs have equal sides, such as "
            f"'{_shorten(equal[0])}'; check that the targets are translated"
        )


def find_unreachable(config: Config, corpus: Corpus) -> Iterator[str]:
    """Yields a line if sampled targets are longer than outputs can be, or than CTC has frames."""
    # The limit of each target depends on the length of its source. Neither counts end-of-sentence.
    lengths = (corpus.lengths[corpus.spread(_SAMPLE)] - 1).tolist()
    if config.decoding.strategy == "ctc":  # each source token has a fixed number of frames
        limits = [config.model.ctc_frames * (source + 1) for source, _ in lengths]
        advice = "model.ctc_frames x source length), so the loss leaves them out; raise ctc_frames"
    else:
        limits = [output_limit(source, config.decoding) for source, _ in lengths]
        advice = (
            "decoding.max_length_factor x source length + decoding.max_extra_length); raise one "
            "of them"
        )
    num_longer = sum(target > limit for (_, target), limit in zip(lengths, limits, strict=True))
    if num_longer > _MAX_UNREACHABLE * len(lengths):
        yield (
            f"{num_longer:,} of {len(lengths):,} sampled training targets have more tokens than "
            f"outputs may have ({advice}"
        )


def find_losses(
    config: Config, tokenizer: Tokenizer, name: str, losses: Sequence, is_train: bool
) -> Iterator[str]:
    """Yields a line for each kind of text that a split loses, or should not have, on each side.

    The kinds are unknown characters, tokens or entities that other tools left in the text, and
    targets that the vocabulary cannot produce. `losses` is the result of `losses_of_pairs`. Raises
    UserError if most characters of a side of the training split are unknown.
    """
    kind = config.tokenizer.kind
    for side, vocabulary, (side_counts, examples) in zip(
        ("source", "target"), tokenizer.sides, losses, strict=True
    ):
        counts = Counter(side_counts)
        if not counts["characters"]:
            continue
        label = f"{name}, {config.data[f'{side}_language']}"

        # Any text has a few characters that are not in the vocabulary.
        unknown = counts["unknown"] / counts["characters"]
        if unknown > (_MAX_UNKNOWN_IN_WORDS if kind == "word" else _MAX_UNKNOWN):
            line = (
                f"{label}: {unknown:.1%} of the characters are unknown to the vocabulary; "
                f"{_decoded(vocabulary, examples['unknown'])}; check that tokenizer.model_file, "
                "training.init_from or tokenizer.character_coverage suits this text, or train a "
                "vocabulary with tokenizer.byte_fallback=True, and with "
                "training.init_vocabulary=own if there is a parent"
            )
            if is_train and kind != "word" and unknown > _ABSURD:
                raise UserError(line)
            yield line

        # Marks of other tools are not text that people read.
        traces = [trace for trace in _TRACES if counts[trace] > _MAX_TRACES * counts["lines"]]
        if traces:
            descriptions = " and ".join(
                f"{_TRACES[trace]}, such as '{_shorten(examples[trace])}'" for trace in traces
            )
            yield (
                f"{label}: many lines have {descriptions}; restore the text as people read it, or "
                "translations and scores are of such text"
            )

        changed = counts["changed"] / counts["lines"]
        if side == "target" and config.data.source != "ids" and changed > _MAX_CHANGED:
            yield (
                f"{name}: the vocabulary's normalization changes {changed:.1%} of the targets, so "
                "the model can never produce them: "
                f"{_decoded(vocabulary, examples['changed'])}; convert the text to Unicode's form "
                "NFC, or train a vocabulary with tokenizer.normalization=identity, which keeps them"
            )


def find_shared(corpus: Corpus, source: Source, texts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yields a line if a held-out split shares pairs, or many sources, with the training corpus."""
    texts = [(text.strip(), translation.strip()) for text, translation in texts]
    pairs, sources = corpus.find_texts(texts)
    # A mixture may have the pairs in the other direction.
    swapped_pairs, _ = corpus.find_texts([pair[::-1] for pair in texts])
    pairs |= swapped_pairs
    if pairs.any() or sources.mean() > _MAX_SHARED:
        # The example is the first shared pair, or else the first shared source.
        index = int(np.argmax(pairs if pairs.any() else sources))
        where = source.where(index, int(not texts[index][0]))
        num_pairs = count_noun(int(pairs.sum()), "pair")
        num_sources = count_noun(int(sources.sum()), "source")
        yield (
            f"{source.name}: {num_pairs} of {len(texts):,} and {num_sources} are in the training "
            f"data, such as {where}: '{_shorten(' '.join(texts[index]))}'; remove them from the "
            "training data, or scores on this split are too high"
        )


def _decoded(vocabulary: Vocabulary, text: str) -> str:
    (decoded,) = vocabulary.decode(vocabulary.encode([text]))
    return f"'{_shorten(text)}' becomes '{_shorten(decoded.strip())}'"


def _sample(tokenizer: Tokenizer, corpus: Corpus, count: int) -> list[list[str]]:
    """Returns the sources and the targets of at most `count` pairs, decoded from their tokens."""
    pairs = corpus.spread(count)
    return [
        vocabulary.decode(corpus.sentences(side, pairs))
        for side, vocabulary in enumerate(tokenizer.sides)
    ]


def _shorten(text: str, columns: int = 60) -> str:
    """Cuts text to a width on the terminal, and escapes invisible characters.

    Some characters take two columns.
    """
    characters = (
        character if character.isprintable() else f"\\u{ord(character):04x}" for character in text
    )
    visible = Text("".join(characters))
    visible.truncate(columns, overflow="ellipsis")
    return visible.plain
