"""Finds bad sentence pairs of a corpus with a trained model, such as misaligned or copied pairs.

    python -m scripts.inspect_data --workdir=DIR [--reverse=DIR] [--source=FILE --target=FILE]
        [--worst=N] [--min_tokens=N] [--exclude=FILE --share=0.05]

Pairs are ranked by their pointwise mutual information (PMI), in nats per target token: log p(target
| source) minus log p(target | empty source). It is low for a target that is not a translation of
its source, even if the target is a likely sentence. With --reverse, a run of the other direction,
pairs are ranked by the mean over both directions. The run may have been trained on the corpus.

Prints the distributions and the worst pairs. --exclude writes a list of the worst pairs for
config.data.exclude. Each line has the number of a pair and its PMI.
"""

import argparse
import collections
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from absl import logging

import transformer
from transformer.config import cli
from transformer.config.types import Config, with_changes
from transformer.data.sources.lines import count_noun, read_parallel_files
from transformer.data.sources.source import open_source
from transformer.support import cache, files
from transformer.support.errors import UserError
from transformer.workdir import split_names

if TYPE_CHECKING:
    from transformer.api import Model

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
DIRECTIONS = ("", "other direction: ")
CHUNK = 2048  # pairs that are scored together
# Pairs with at least these values are counted in the report.
MIN_RATIO = 3.0
MIN_COPIED = 0.5


class Scores(NamedTuple):
    """A model's scores of a pair, in nats per target token; NaN if a side is too long.

    Attributes:
      loss: -log p(target | source).
      pmi: log p(target | source) - log p(target | empty source), an estimate of the pointwise
        mutual information.
      tokens: of the target, with end-of-sentence.
    """

    loss: float
    pmi: float
    tokens: int


class ScoredPair(NamedTuple):
    """A pair with its scores.

    Attributes:
      number: of the pair in its corpus, from 1.
      scores: by the model, and then by the model of the other direction if there is one.
      length_ratio: words of the longer side per word of the shorter side; infinite if only one side
        is empty.
      copied_fraction: the fraction of the target's words that the source has too.
    """

    number: int
    source: str
    target: str
    scores: tuple[Scores, ...]
    length_ratio: float
    copied_fraction: float

    @property
    def pmi(self) -> float:
        """The mean over the directions. NaN if a side is too long for a model."""
        return statistics.mean(scores.pmi for scores in self.scores)


def main(arguments: argparse.Namespace) -> None:
    check(arguments)
    from transformer.support.progress_bar import bar

    cache.enable_compilation_cache()
    model = transformer.load(
        split_names(arguments.workdir), arguments.checkpoint, arguments.average
    )
    reverse = None
    if arguments.reverse is not None:
        reverse = transformer.load(split_names(arguments.reverse))
        check_direction(arguments, model, reverse)
    name, pairs = read_corpus(arguments, model.config.data)
    logging.info("Scoring %s.", count_noun(len(pairs), "pair"))
    with bar("Scoring pairs", len(pairs)) as report:
        scored_pairs = list(score_pairs(pairs, model, reverse, report))

    # More than min_tokens, because the tokens of a pair include end-of-sentence.
    ranked = [
        pair
        for pair in scored_pairs
        if pair.scores[0].tokens > arguments.min_tokens and math.isfinite(pair.pmi)
    ]
    ranked.sort(key=lambda pair: pair.pmi)

    text = make_text(name, scored_pairs, ranked[: arguments.worst])
    # Bytes, since sentences may have characters that the terminal's encoding lacks.
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    if arguments.exclude is not None:
        worst = sorted(ranked[: round(arguments.share * len(ranked))])  # in the order of the corpus
        lines = [f"{pair.number}\t{pair.pmi:.4f}\n" for pair in worst]
        files.write_text(arguments.exclude, "".join(lines))
        logging.info("%s: %s.", arguments.exclude, count_noun(len(worst), "pair"))


def check(arguments: argparse.Namespace) -> None:
    """Raises UserError for impossible values or combinations of flags."""
    if not 0 < arguments.share <= 1:
        raise UserError(f"--share={arguments.share}: must be above 0 and at most 1")
    if (arguments.source is None) != (arguments.target is None):
        raise UserError(
            "--source and --target: give both files, or neither for the run's training data"
        )
    # Checked now, because scoring takes long.
    path = arguments.exclude
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise UserError(f"--exclude={path}: cannot be written; name a file in a folder that exists")


def check_direction(arguments: argparse.Namespace, model: "Model", reverse: "Model") -> None:
    """Raises UserError if the other run does not translate in the other direction."""
    forward = [model.config.data[name] for name in cli.LANGUAGES]
    backward = [reverse.config.data[name] for name in cli.LANGUAGES]
    if backward[::-1] != forward:
        raise UserError(
            f"--reverse={arguments.reverse}: translates {' to '.join(backward)}, must translate "
            f"{' to '.join(forward[::-1])}"
        )


def read_corpus(
    arguments: argparse.Namespace, data_config: Config
) -> tuple[str, list[tuple[str, str]]]:
    """Returns the name and the pairs of the files, or of all training data.

    Training data include the pairs that the run leaves out, so that a pair's number is its number
    in the data. Bytes that are not UTF-8 become U+FFFD in training data, and raise UserError in
    files.
    """
    if arguments.source is not None:
        sides = read_parallel_files(Path(arguments.source), Path(arguments.target))
        return f"{arguments.source} and {arguments.target}", list(zip(*sides, strict=True))
    # Numbers of pairs refer to one corpus.
    if data_config.mixture:
        raise UserError(
            "config.data.mixture: inspect one corpus at a time; give --source=FILE --target=FILE"
        )
    # The data without exclusions, limits or document context.
    all_pairs = with_changes(data_config, exclude="", train_pairs=0, context=0)
    source = open_source(all_pairs, "train")
    return source.name, [tuple(side.decode(errors="replace") for side in pair) for pair in source]


def make_text(name: str, pairs: Sequence[ScoredPair], worst: Sequence[ScoredPair]) -> str:
    """Returns the distributions of scores, the counts of suspicious pairs, and the worst pairs."""
    lines = [f"{name}: {count_noun(len(pairs), 'pair')}"]
    # Each direction has the scores of all pairs.
    by_direction = zip(*(pair.scores for pair in pairs), strict=True)
    for direction, scores in zip(DIRECTIONS, by_direction, strict=False):
        lines.append(_quantiles(f"{direction}loss", [score.loss for score in scores]))
        lines.append(_quantiles(f"{direction}PMI", [score.pmi for score in scores]))

    counts = {
        "too long for the model": sum(math.isnan(pair.pmi) for pair in pairs),
        "with an empty side": sum(
            not (pair.source.strip() and pair.target.strip()) for pair in pairs
        ),
        f"with one side {MIN_RATIO:.0f} times as long as the other": sum(
            pair.length_ratio >= MIN_RATIO for pair in pairs
        ),
        f"with {MIN_COPIED:.0%} of the words copied": sum(
            pair.copied_fraction >= MIN_COPIED for pair in pairs
        ),
        "with the target equal to the source": sum(
            pair.source.strip() == pair.target.strip() for pair in pairs
        ),
    }
    for description, count in counts.items():
        if count:
            lines.append(f"{count_noun(count, 'pair')} {description}")
    lines.append("")

    for pair in worst:
        # Scores in one direction, or in both.
        facts = "".join(
            f"{direction}loss {score.loss:.2f}, PMI {score.pmi:.2f}, "
            for direction, score in zip(DIRECTIONS, pair.scores, strict=False)
        )
        facts += f"lengths 1:{pair.length_ratio:.1f}, {pair.copied_fraction:.0%} copied"
        lines.append(f"pair {pair.number}: {facts}")
        lines.append(f"  source  {pair.source}")
        lines.append(f"  target  {pair.target}")
    return "\n".join(lines) + "\n"


def _quantiles(name: str, values: Sequence[float]) -> str:
    # Pairs that are too long have no scores.
    finite = [value for value in values if not math.isnan(value)]
    if not finite:
        return f"{name}: none"
    quantiles = zip(QUANTILES, np.quantile(finite, QUANTILES), strict=True)
    return f"{name} in nats per token: " + ", ".join(
        f"{part:.0%} at most {value:.2f}" for part, value in quantiles
    )


def score_pairs(
    pairs: Sequence[tuple[str, str]],
    model: "Model",
    reverse: "Model | None",
    report: Callable[[int], None],
) -> Iterator[ScoredPair]:
    """Yields the pairs with their scores, in order.

    Calls `report` with the number of pairs that it has scored.
    """
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        scores = [score(model, chunk)]
        if reverse is not None:
            # The other model reads the target and scores the source.
            scores.append(score(reverse, [pair[::-1] for pair in chunk]))
        report(len(chunk))
        # From the scores of each direction to the scores of each pair.
        by_pair = zip(*scores, strict=True)
        for number, (pair, pair_scores) in enumerate(zip(chunk, by_pair, strict=True), start + 1):
            yield ScoredPair(
                number, *pair, pair_scores, length_ratio(*pair), copied_fraction(*pair)
            )


def score(model: "Model", pairs: Sequence[tuple[str, str]]) -> list[Scores]:
    """Scores the pairs that are short enough for the model. Longer pairs have NaN and 0 tokens."""
    # The import takes seconds, which --help should not.
    from transformer.decoding.forced_decoding import is_scorable

    scores = [Scores(math.nan, math.nan, 0)] * len(pairs)
    short = [i for i, pair in enumerate(pairs) if is_scorable(model.decoder, pair)]
    with_source = model.score([pairs[i] for i in short])
    # The probability of the target as a sentence: translated from an empty source.
    without_source = model.score([("", pairs[i][1]) for i in short])
    for i, conditional, prior in zip(short, with_source, without_source, strict=True):
        gain = conditional.log_probability - prior.log_probability
        tokens = len(conditional.tokens)
        scores[i] = Scores(-conditional.log_probability / tokens, gain / tokens, tokens)
    return scores


def length_ratio(source: str, target: str) -> float:
    short, long = sorted((len(source.split()), len(target.split())))
    # Two empty sides are equally long.
    if not long:
        return 1.0
    return long / short if short else math.inf


def copied_fraction(source: str, target: str) -> float:
    words = collections.Counter(target.split())
    # The intersection of multisets: a word counts as often as both sides have it.
    return (words & collections.Counter(source.split())).total() / max(words.total(), 1)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.inspect_data", __doc__)
    parser.add_model_flags()
    parser.add_argument("--reverse", help="the same for the other direction")
    parser.add_argument("--source", help="sources of another corpus, one per line")
    parser.add_argument("--target", help="its targets")
    parser.add_number("--worst", 20, "pairs to print", least=0)
    parser.add_number("--min_tokens", 5, "tokens of the shortest target to rank", least=0)
    parser.add_argument("--exclude", type=Path, help="write a list of the worst pairs")
    parser.add_argument(
        "--share", type=float, default=0.05, help="fraction of the pairs in the list (0.05)"
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
