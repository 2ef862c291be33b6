"""Prints the weights of `decoding.rerank` with which a run has the best validation score, from a
grid of 0 to 2.

    python -m scripts.tune_rerank --workdir=DIR --rerank=WORKDIR ... [--metric=bleu|chrf] [--checkpoint=best|last|STEP]
        [--average=N] [--decoding.KEY=VALUE ...]

The search runs once, and each model scores its hypotheses once. The grid of N models has 21^N
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
    from transformer.checkpoints import trained
    from transformer.data.sources import source
    from transformer.decoding.bleu import bleu_language

    cache.enable_compilation_cache()
    overrides = [
        *arguments.overrides,
        ("decoding.rerank", ",".join(f"{name}:0" for name in arguments.models)),
    ]
    models = trained.load(
        split_names(arguments.workdir), arguments.checkpoint, arguments.average, overrides
    )
    trained.check_translates(models.config, arguments.workdir)
    texts, references = source.read_pairs(models.config.data, "valid")
    decoder, parameters = models.decoder()
    found, terms = decoder.hypotheses(parameters, texts)
    metric = additive_metrics(bleu_language(models.config.data))[arguments.metric]
    pairs = [
        (x.text, reference) for row, reference in zip(found, references, strict=True) for x in row
    ]
    statistics = metric.statistics(*zip(*pairs, strict=True))
    firsts = np.cumsum([0, *map(len, found[:-1])])
    values = {}
    for weights in itertools.product(GRID, repeat=len(models.scorers)):
        best = [np.argmax([1.0, *weights] @ row) for row in terms]
        values[weights] = float(metric.score(statistics[firsts + best].sum(axis=0)))
    best = max(values, key=values.get)  # the first of equal ones, with the smallest weights
    weighted = [f"{name}:{weight}" for name, weight in zip(arguments.models, best, strict=True)]
    result = {
        "rerank": ",".join(weighted),
        arguments.metric: values[best],
        "unranked": values[(0.0,) * len(best)],
    }
    print(json.dumps(files.six_digits(result)))


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.tune_rerank", __doc__, overrides="decoding")
    parser.add_model_flags()
    options = {"dest": "models", "action": "append", "default": [], "required": True}
    parser.add_argument(
        "--rerank", metavar="WORKDIR", help="another model, without a weight; repeatable", **options
    )
    parser.add_argument(
        "--metric", choices=("bleu", "chrf"), default="bleu", help="the score to raise (bleu)"
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
