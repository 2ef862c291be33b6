"""Evaluates a model of several languages in all directions, and prints a matrix of scores.

    python -m scripts.directions --workdir=DIR --languages=en,de,fr [--split=test]
        [--metric=bleu] [--scorer=NAME:COMMAND] [--checkpoint=...] [--average=N]
        [--decoding.KEY=VALUE ...]
    python -m scripts.directions --workdir=records/NAME/RUN.json --languages=en,de,fr [...]

Reads the files STEM.LANG of the split in the run's data folder. A score has half the width of its
95 % interval, as scripts.compare computes it, if the metric is BLEU, chrF or a mean over sentences,
such as the metric of a --scorer. A star marks directions that the run was not trained on. The
column of a language that is only a source of the run is empty, unless the vocabulary has its tag.
Prints the results as one JSON object, as transformer.evaluate writes them to the workdir, with the
intervals. The second form evaluates nothing: it shows the evaluations in a record.
"""

import argparse
import contextlib
import functools
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts import score_flags
from transformer.config import cli
from transformer.config.types import Config
from transformer.data.sources import source
from transformer.support.errors import UserError

Direction = tuple[str, str]  # the source language and the target language


def main(arguments: argparse.Namespace) -> None:
    # These imports take seconds, which --help should not.
    from scripts.reporting.directions import make_directions
    from scripts.results.records import read_record_file
    from scripts.results.sentence_scores import parse_flags
    from transformer.decoding.metrics import METRICS, applicable
    from transformer.workdir import open_existing, split_names

    metric = arguments.metric
    path = Path(split_names(arguments.workdir)[0])
    languages = [code.strip() for code in arguments.languages.split(",")]
    if len(set(languages)) < max(2, len(languages)) or not all(languages):
        raise UserError(
            f"--languages={arguments.languages}: must be two or more codes, each once: en,de,fr"
        )
    directions = list(itertools.permutations(languages, 2))
    if path.suffix == ".json":
        record = read_record_file(path)
        config = record.config
        find_results = functools.partial(read_directions, record)
    else:
        workdir, config = open_existing(path)
        find_results = functools.partial(evaluate_directions, workdir, config)
    metrics = applicable(METRICS, config.data.target_form)
    # A record may have scores of other programs.
    metrics += [scorer.name for scorer in parse_flags("scorer", arguments.scorer)]
    if metric not in metrics and path.suffix != ".json":
        raise UserError(f"--metric={metric}: must be one of {', '.join(metrics)}")
    results = find_results(arguments, directions)
    print(make_directions(results, metric, config), file=sys.stderr)
    print(json.dumps({"-".join(pair): result for pair, result in results.items()}))


def read_directions(
    run: Any, arguments: argparse.Namespace, directions: Sequence[Direction]
) -> dict[Direction, dict[str, Any]]:
    """Returns the evaluations in a record that these flags would make.

    Raises UserError if there are none.
    """
    from scripts.results.runs import best_of
    from transformer.config.loading import override

    steps = {"best": best_of(run)["step"], "last": run.record[-1]["step"]}
    step = str(steps.get(arguments.checkpoint, arguments.checkpoint))
    decoding = override(run.config, arguments.overrides).decoding.to_dict()
    results = {}
    for evaluation in run.evaluations:
        facts = (evaluation.split, str(evaluation.result["step"]), evaluation.average)
        if facts == (arguments.split, step, arguments.average) and evaluation.decoding == decoding:
            results[tuple(evaluation.languages.values())] = evaluation.result
    results = {pair: results[pair] for pair in directions if pair in results}
    if not results:
        raise UserError(
            f"{run.path}: has no evaluation of these languages on {arguments.split} at step {step} "
            "with these flags; give those that made one"
        )
    return results


def evaluate_directions(
    workdir: Any, config: Config, arguments: argparse.Namespace, directions: Sequence[Direction]
) -> dict[Direction, dict[str, Any]]:
    """Evaluates a model in all directions that it can translate, and saves the evaluations.

    The results have the interval of `--metric` as METRIC_interval, if it can be resampled.
    """
    from scripts.results.evaluations import read_evaluation
    from scripts.results.external_scores import attach
    from transformer import evaluate
    from transformer.config.types import with_changes
    from transformer.data.languages import source_tag
    from transformer.data.sources.mixture import check_direction, listed_corpora
    from transformer.data.tokenizers.tokenizer import Tokenizer
    from transformer.decoding.bleu import bleu_language

    # A run may translate into fewer languages than it reads.
    corpora = [corpus.data for corpus in listed_corpora(config.data)]
    only_sources = {data.source_language for data in corpora}
    only_sources -= {data.target_language for data in corpora}

    # All directions are checked first, because each takes long to evaluate.
    tokenizer = Tokenizer.load(workdir.path, config)
    pairs = {}  # the group `data` by direction
    for pair in directions:
        data_config = with_changes(config.data, **dict(zip(cli.LANGUAGES, pair, strict=True)))
        try:
            check_direction(config.data, data_config)
            tokenizer.with_tag(source_tag(data_config))
        except UserError:
            if pair[1] in only_sources:
                continue
            raise
        source.read_pairs(data_config, arguments.split)
        pairs[pair] = data_config

    flags = {
        name: getattr(arguments, name) for name in ("workdir", "split", "checkpoint", "average")
    }
    results = {}
    metric = arguments.metric
    for pair, data_config in pairs.items():
        items = [*flags.items(), *zip(cli.LANGUAGES, pair, strict=True), *arguments.overrides]
        evaluation = evaluate.evaluate(
            evaluate.make_parser().parse([f"--{key}={value}" for key, value in items])
        )
        evaluation.save()
        (scored,) = attach([read_evaluation(Path(f"{evaluation.path}.json"))], arguments)
        # Without the tokenizer of the language there is no interval.
        with contextlib.suppress(UserError):
            interval = _interval(metric, scored, bleu_language(data_config))
            if interval is not None:
                evaluation.result[f"{metric}_interval"] = interval
                evaluation.save()
        results[pair] = scored.result | evaluation.result
    return results


def _interval(metric: str, evaluation: Any, language: Any) -> tuple[float, float] | None:
    """Returns the 95 % interval of a score; None for a metric that cannot be resampled.

    Raises UserError if the tokenizer of the language is not installed.
    """
    from scripts.results import sufficient_statistics
    from scripts.results.significance import bootstrap_interval

    texts = evaluation.texts
    if metric in evaluation.sentence_scores:
        values = evaluation.sentence_scores[metric].values
        statistics = sufficient_statistics.given_statistics(values, texts.are_sentences)
        return bootstrap_interval(sufficient_statistics.GIVEN_SCORES, statistics)
    additive = sufficient_statistics.additive_metrics(language, [metric])
    if metric not in additive:
        return None
    statistics = additive[metric].statistics(texts.hypothesis, texts.reference)
    statistics = statistics[texts.are_sentences]
    return bootstrap_interval(additive[metric], statistics)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.directions", __doc__, overrides="decoding")
    parser.add_model_flags()
    parser.add_argument("--languages", metavar="CODE,CODE,...", required=True, help="all languages")
    parser.add_argument(
        "--split", choices=source.SPLITS, default="test", help="the split to translate (test)"
    )
    parser.add_argument("--metric", default="bleu", help="the score in the matrix (bleu)")
    score_flags.add_flags(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
