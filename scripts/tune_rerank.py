"""Prints the weights of `decoding.rerank` with the best validation score, from a grid of 0 to 2.

    python -m scripts.tune_rerank --workdir=DIR --rerank=WORKDIR ... [--metric=bleu|chrf]
        [--checkpoint=best|last|STEP] [--average=N] [--decoding.KEY=VALUE ...]

The search runs once, and each model scores the hypotheses once. The grid of N models has 21^N
points.
"""

import argparse
import itertools
import json

import numpy as np

from transformer.config import cli
from transformer.support import cache, files
from transformer.workdir import split_names

GRID = [i / 10 for i in range(21)]


def main(arguments: argparse.Namespace) -> None:
    from scripts.results.sufficient_statistics import additive_metrics
    from transformer.checkpoints import loaded_models
    from transformer.data.sources import source
    from transformer.decoding.bleu import bleu_language
    from transformer.decoding.reranking import with_output

    cache.enable_compilation_cache()
    # With weights of 0, the decoder returns the terms of each score but does not add them.
    rerank = ",".join(f"{name}:0" for name in arguments.models)
    overrides = [*arguments.overrides, ("decoding.rerank", rerank)]
    workdirs = split_names(arguments.workdir)
    models = loaded_models.load(workdirs, arguments.checkpoint, arguments.average, overrides)
    loaded_models.check_translates(models.config, arguments.workdir)
    texts, references = source.read_pairs(models.config.data, "valid")
    decoder, parameters = models.decoder()
    hypotheses = decoder.find_hypotheses(parameters, texts)
    found = with_output(hypotheses)
    terms = decoder.terms([texts[i] for i in found], [hypotheses[i] for i in found])

    metric = additive_metrics(bleu_language(models.config.data))[arguments.metric]
    # A row for each hypothesis of each sentence, with the reference of the sentence.
    outputs = [hypothesis.text for row in hypotheses for hypothesis in row]
    targets = [
        reference for row, reference in zip(hypotheses, references, strict=True) for _ in row
    ]
    statistics = metric.statistics(outputs, targets)
    # The hypotheses of sentence i begin at row firsts[i] of the statistics.
    firsts = np.cumsum([0, *map(len, hypotheses[:-1])])
    scores = {}
    for weights in itertools.product(GRID, repeat=len(models.scorers)):
        best = firsts.copy()
        best[found] += np.array([np.argmax([1.0, *weights] @ row) for row in terms], int)
        scores[weights] = float(metric.score(statistics[best].sum(axis=0)))
    # Of equal scores, the first one has the smallest weights.
    weights = max(scores, key=scores.get)
    names = [f"{name}:{weight}" for name, weight in zip(arguments.models, weights, strict=True)]
    result = {
        "rerank": ",".join(names),
        arguments.metric: scores[weights],
        "unranked": scores[(0.0,) * len(weights)],
    }
    print(json.dumps(files.six_digits(result)))


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.tune_rerank", __doc__, overrides="decoding")
    parser.add_model_flags()
    parser.add_argument(
        "--rerank",
        dest="models",
        metavar="WORKDIR",
        action="append",
        default=[],
        required=True,
        help="another model, without a weight; repeatable",
    )
    parser.add_argument(
        "--metric", choices=("bleu", "chrf"), default="bleu", help="the score to raise (bleu)"
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
