"""Fits the confidence of a model in its translations, and writes it to WORKDIR/calibration.json.

    python -m scripts.calibrate --workdir=DIR [--threshold=50] [--dropout_passes=N]
        [--split=valid|train] [--checkpoint=best|last|STEP] [--average=N] [--decoding.KEY=VALUE ...]
    python -m transformer.translate --workdir=DIR --format=jsonl --confidence

The model translates the split. A translation is right if its sentence chrF is at least --threshold.
A logistic regression maps the log-probabilities of its tokens to the probability that it is right.
With --dropout_passes, the model also scores each translation N times with dropout, here and
whenever the confidence is computed. The command prints the content of the file: the weights, and
measures by cross-validation. docs/confidence.md explains them.

The file applies only to the checkpoints, the languages and the search of these flags.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from absl import logging

from transformer.config import cli
from transformer.config.types import Config
from transformer.support import cache, files
from transformer.support.errors import UserError
from transformer.support.progress_bar import bar
from transformer.workdir import split_names

LEAST = 10  # right translations, and wrong ones


def main(arguments: argparse.Namespace) -> None:
    import numpy as np
    from sacrebleu.metrics import CHRF

    from scripts.results import calibration
    from transformer.checkpoints import loaded_models
    from transformer.checkpoints.calibration import calibration_settings
    from transformer.data.sources import source
    from transformer.decoding import confidence

    cache.enable_compilation_cache()
    models = loaded_models.load(
        split_names(arguments.workdir), arguments.checkpoint, arguments.average, arguments.overrides
    )
    check_has_confidence(models.config, arguments.workdir)
    texts, references = source.read_pairs(models.config.data, arguments.split)
    decoder, parameters = models.decoder()
    with bar("Translating", len(texts)) as report:
        translations = decoder.translate(parameters, texts, report=report)

    # A translation without tokens has no features: its source is blank, or nothing was found.
    pairs = []
    targets = []
    sources = decoder.source_tokens(texts, 1)
    for tokens, (best,), reference in zip(sources, translations, references, strict=True):
        if best.tokens:
            pairs.append((tokens, best))
            targets.append(reference)
    chrf = CHRF()
    scores = [
        chrf.sentence_score(best.text, [reference]).score
        for (_, best), reference in zip(pairs, targets, strict=True)
    ]
    check_balance(arguments.threshold, scores)
    features = confidence.compute_features(decoder, parameters, pairs, arguments.dropout_passes)
    check_features(features, arguments)
    is_right = np.array(scores) >= arguments.threshold
    confidences = calibration.cross_validate(features, is_right)
    measures = calibration.measure(confidences, is_right)
    # The order of translations by one feature needs no weights.
    for name, values in features.items():
        measures[f"auc_of_{name}"] = calibration.auc(calibration.SIGNS[name] * values, is_right)

    record = {
        "settings": calibration_settings(models.config, models.checkpoints),
        "split": arguments.split,
        "threshold": arguments.threshold,
        "dropout_passes": arguments.dropout_passes,
        "penalty": calibration.PENALTY,
        "weights": calibration.fit(features, is_right),
        "measures": measures,
        "measures_of_words": measure_words(pairs, targets, decoder.tokenizer.target),
    }
    print(json.dumps(record), flush=True)  # first, since the disk may be full
    files.write_json(models.workdir.calibration, record)
    logging.info("%s: written.", models.workdir.calibration)


def check_has_confidence(config: Config, workdir: str) -> None:
    """Raises UserError unless the search computes log-probabilities of tokens of sentences."""
    from transformer.checkpoints.loaded_models import check_translates_sentences
    from transformer.training.objectives import OBJECTIVES

    check_translates_sentences(config, workdir)
    objective = config.training.objective
    if "confidence" not in OBJECTIVES[objective].methods:
        raise UserError(
            f"--workdir={workdir}: a model of training.objective={objective} has no confidence, "
            "which needs the log-probabilities of output tokens given a source"
        )


def check_balance(threshold: float, scores: Sequence[float]) -> None:
    """Raises UserError if too few translations are right, or too few are wrong."""
    count = len(scores)
    num_right = sum(score >= threshold for score in scores)
    if min(num_right, count - num_right) < LEAST:
        median = sorted(scores)[count // 2] if scores else math.nan
        raise UserError(
            f"--threshold={threshold:g}: {num_right} of {count} translations have at least this "
            f"chrF, and {LEAST} with more and {LEAST} with less are needed; the median is "
            f"{median:.1f}"
        )


def check_features(features: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Raises UserError for features that are not finite, and for dropout without an effect."""
    for name, values in features.items():
        if not all(map(math.isfinite, values)):
            raise UserError(
                f"--workdir={arguments.workdir}: {name} of the log-probabilities is not finite; "
                "the model has diverged"
            )
    if arguments.dropout_passes and not any(features["deviation_of_passes"]):
        raise UserError(
            f"--dropout_passes={arguments.dropout_passes}: all passes are equal, since the model "
            "was trained without dropout; leave the flag out"
        )


def measure_words(
    pairs: Sequence[tuple[Any, Any]], references: Sequence[str], vocabulary: Any
) -> dict[str, Any]:
    """Returns the measures of the probabilities of all words. The reference has the right ones."""
    import numpy as np

    from scripts.results import calibration
    from transformer.decoding.confidence import split_words

    probabilities = []
    is_found = []
    sentences = []
    for number, ((_, translation), reference) in enumerate(zip(pairs, references, strict=True)):
        words, word_probabilities = split_words(translation, vocabulary)
        probabilities += word_probabilities
        is_found += find_words(words, reference)
        sentences += [number] * len(words)
    return calibration.measure(*map(np.array, (probabilities, is_found, sentences)))


def find_words(words: Sequence[str], reference: str) -> list[bool]:
    """Returns which words the reference has. Each of its words is found once."""
    remaining = Counter(reference.split())
    is_found = []
    for word in words:
        is_found.append(remaining[word] > 0)
        remaining[word] -= 1
    return is_found


def chrf_score(text: str) -> float:
    """Returns the value of --threshold."""
    value = float(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text}: must be a chrF above 0 and at most 100")
    return value


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.calibrate", __doc__, overrides="decoding")
    parser.add_model_flags(languages=True)
    parser.add_argument(
        "--split", choices=("valid", "train"), default="valid", help="the split to fit on (valid)"
    )
    parser.add_argument(
        "--threshold", type=chrf_score, default=50.0, help="chrF of a right translation (50)"
    )
    parser.add_number("--dropout_passes", 0, "passes with dropout", least=0)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
