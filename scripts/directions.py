"""Evaluates a model of several languages in all directions, and shows a matrix of scores.

    python -m scripts.directions --workdir=DIR --languages=en,de,fr [--split=test]
        [--metric=bleu] [--checkpoint=...] [--average=N] [--decoding.KEY=VALUE ...]

Reads the files STEM.LANG of the split in the run's data folder. A score has half the width of its
95 % interval, as scripts.compare computes it, if the metric is BLEU, chrF or a mean over sentences.
A star marks directions that the run was not trained on. The column of a language that is only a
source of the run is empty, unless the vocabulary has its tag. Prints one JSON object with the
results that transformer.evaluate writes to the workdir, and the intervals.
"""

import argparse
import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer.config import cli
from transformer.data.sources import source
from transformer.support.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    # These imports take seconds, which --help should not.
    from scripts.results.significance import bootstrap_interval
    from scripts.results.sufficient_statistics import additive_metrics
    from transformer import evaluate
    from transformer.config.types import with_changes
    from transformer.data.languages import source_tag
    from transformer.data.sources.mixture import check_direction, listed_corpora
    from transformer.data.tokenizers.tokenizer import Tokenizer
    from transformer.decoding.bleu import METRICS, bleu_language
    from transformer.workdir import open_existing, split_names

    metric = arguments.metric
    if metric not in METRICS:
        raise UserError(f"--metric={metric}: must be one of {', '.join(METRICS)}")
    workdir, config = open_existing(Path(split_names(arguments.workdir)[0]))
    languages = [code.strip() for code in arguments.languages.split(",")]
    if len(set(languages)) < max(2, len(languages)) or not all(languages):
        raise UserError(
            f"--languages={arguments.languages}: must be two or more codes, each once: en,de,fr"
        )
    training_pairs = {
        (corpus.data.source_language, corpus.data.target_language)
        for corpus in listed_corpora(config.data)
    }
    # A run may translate into fewer languages than it reads.
    sources, targets = map(set, zip(*training_pairs, strict=True))

    # All directions are checked first, because each takes long to evaluate.
    tokenizer = Tokenizer.load(workdir.path, config)
    pairs = {}  # the group `data` by direction
    for pair in itertools.permutations(languages, 2):
        data_config = with_changes(config.data, **dict(zip(cli.LANGUAGES, pair, strict=True)))
        try:
            check_direction(config.data, data_config)
            tokenizer.with_tag(source_tag(data_config))
        except UserError:
            if pair[1] in sources - targets:
                continue
            raise
        source.read_pairs(data_config, arguments.split)
        pairs[pair] = data_config

    flags = {
        name: getattr(arguments, name) for name in ("workdir", "split", "checkpoint", "average")
    }
    results = {}
    cells = {}
    for pair, data_config in pairs.items():
        items = [*flags.items(), *zip(cli.LANGUAGES, pair, strict=True), *arguments.overrides]
        evaluation = evaluate.evaluate(
            evaluate.make_parser().parse([f"--{key}={value}" for key, value in items])
        )
        evaluation.save()
        result = results["-".join(pair)] = dict(evaluation.result)
        form = METRICS[metric].format
        cells[pair] = f"{result[metric]:{form}}"
        # Without the tokenizer of the language there is no interval.
        with contextlib.suppress(UserError):
            additive = additive_metrics(bleu_language(data_config), [metric])
            if metric in additive:
                low, high = bootstrap_interval(
                    additive[metric],
                    evaluation.lines["hypotheses.txt"],
                    evaluation.lines["references.txt"],
                )
                result["interval"] = [low, high]
                cells[pair] += f" ±{(high - low) / 2:{form}}"
        # A star marks directions that were not trained.
        if pair not in training_pairs:
            cells[pair] += " *"

    show_matrix(languages, cells)
    print(json.dumps(results))


def show_matrix(languages: Sequence[str], cells: Mapping[tuple[str, str], str]) -> None:
    """Prints the cells to standard error, with source languages as rows and targets as columns."""
    from rich.console import Console
    from rich.table import Table

    table = Table("from", *(f"to {code}" for code in languages))
    for code in languages:
        table.add_row(code, *(cells.get((code, target), "") for target in languages))
    Console(stderr=True).print(table)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.directions", __doc__, overrides="decoding")
    parser.add_model_flags()
    parser.add_argument("--languages", metavar="CODE,CODE,...", required=True, help="all languages")
    parser.add_argument(
        "--split", choices=source.SPLITS, default="test", help="the split to translate (test)"
    )
    parser.add_argument("--metric", default="bleu", help="the score in the matrix (bleu)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
