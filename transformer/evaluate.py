"""Translates a split of the data, or any pair of files, and scores the translations.

python -m transformer.evaluate --workdir=DIR [--split=test] [--data=FOLDER]
    [--checkpoint=best|last|STEP] [--average=N] [--source=FILE --reference=FILE ...]
    [--output=FOLDER] [--confidence] [--source_language=CODE] [--target_language=CODE]
    [--decoding.KEY=VALUE ...]

Prints the result as one JSON object and logs the scores in words. docs/decoding.md explains the
keys. The result, the sources, the references and the hypotheses are written to the workdir's folder
`evaluations`, or to --output=FOLDER. A language model has no hypotheses: its result is the
perplexity.
"""

import argparse
import json
import math
import shlex
from pathlib import Path
from typing import Any, NoReturn

from absl import logging

from transformer.config import cli
from transformer.config.types import Config, with_changes
from transformer.data.corpus.sanity_checks import find_losses
from transformer.data.languages import base_code
from transformer.data.sources import source
from transformer.data.sources.lines import (
    count_documents,
    count_noun,
    log_documents,
    read_parallel_files,
)
from transformer.data.tokenizers.tokenizer import losses_of_pairs
from transformer.support import files
from transformer.support.errors import UserError
from transformer.support.progress_bar import bar
from transformer.workdir import Workdir, open_existing, split_names


def main(arguments: argparse.Namespace) -> None:
    evaluation = evaluate(arguments)
    # Printed first, since the disk may be full. The reader of the output may have gone.
    try:
        print(json.dumps(evaluation.result), flush=True)
    finally:
        evaluation.save()


def evaluate(arguments: argparse.Namespace) -> Any:
    """Runs the evaluation of these flags and logs the scores.

    Returns `EvaluationFiles` that are not saved yet.
    """
    # These imports take seconds, which --help and a wrong flag should not.
    from transformer.checkpoints import loaded_models
    from transformer.checkpoints.calibration import read_calibration
    from transformer.decoding.confidence import estimate
    from transformer.decoding.evaluation import translate_and_score
    from transformer.decoding.metrics import METRICS, describe_scores
    from transformer.run import evaluation_files
    from transformer.support.cache import enable_compilation_cache
    from transformer.training.objectives import OBJECTIVES

    check_flags(arguments)
    enable_compilation_cache()
    models = loaded_models.load(
        split_names(arguments.workdir), arguments.checkpoint, arguments.average, arguments.overrides
    )
    config = models.config
    calibration = None
    if arguments.confidence:
        calibration = read_calibration(config, models.checkpoints)
    if not OBJECTIVES[config.training.objective].has_both_sides:
        return evaluate_perplexity(arguments, models)

    # The texts, from the model's own data, other data, or files.
    workdir: Workdir | None = models.workdir
    data_config = config.data
    if arguments.data is not None:
        workdir, data_config = open_data(arguments, config.data)
    sources, references = read_texts(arguments, workdir, data_config)
    path = evaluation_files.make_path(arguments, models)
    name = arguments.source or arguments.split
    # The decoder names a line that is not of integers.
    if config.tokenizer.kind != "ids":
        losses = losses_of_pairs(models.tokenizer, zip(sources, references[0], strict=True))
        for warning in find_losses(config, models.tokenizer, name, losses, is_train=False):
            logging.warning("%s", warning)
    if config.data.context:
        log_documents(name, count_documents(bool(text.strip()) for text in sources))

    # What can be wrong with the texts has been reported before this slow part.
    decoder, parameters = models.decoder()
    logging.info("Translating %s.", count_noun(len(sources), "sentence"))
    with bar("Translating", len(sources)) as report:
        scored = translate_and_score(
            decoder, parameters, sources, references, data_config, METRICS, report
        )
    confidences = []
    if calibration:
        rows = [[translation] for translation in scored.translations]
        estimates = estimate(calibration, decoder, parameters, sources, rows)
        confidences = [best.confidence for (best,) in estimates]
    evaluation = evaluation_files.of_translations(
        arguments, models, path, sources, references, scored, confidences
    )
    if calibration:
        evaluation.result["confidence_threshold"] = calibration.threshold
    log_result(evaluation.result, describe_scores(evaluation.result, METRICS))
    return evaluation


def evaluate_perplexity(arguments: argparse.Namespace, models: Any) -> Any:
    """Evaluates a model that does not translate, by its loss on a split.

    Raises UserError for flags that only apply to translation.
    """
    from transformer.run import evaluation_files
    from transformer.training.held_out import held_out_means

    config = models.config
    # Decoding keys and files have no meaning for the loss on a split.
    model = f"a model of training.objective={config.training.objective}"
    if arguments.source or arguments.data or len(models.checkpoints) > 1:
        raise UserError(
            f"--workdir={arguments.workdir}: {model} is evaluated by itself on a split of its own "
            "data; give --split only"
        )
    for key, text in arguments.overrides:
        raise UserError(
            f"--{key}={text}: has no meaning for the perplexity of {model}; leave it out"
        )
    path = evaluation_files.make_path(arguments, models)
    split = arguments.split
    means = held_out_means(config, models.tokenizer, models.graphs[0], models.parameters[0], split)
    if not all(map(math.isfinite, means.values())):
        raise UserError(
            f"--workdir={arguments.workdir}: the loss is not finite; name another --checkpoint"
        )
    logging.info(
        "%s: perplexity %.3f, accuracy %.1f %%", split, means["perplexity"], 100 * means["accuracy"]
    )
    result = {
        **files.six_digits(means),
        "split": split,
        **evaluation_files.describe_models(models),
    }
    return evaluation_files.EvaluationFiles(path, result, {})


def open_data(
    arguments: argparse.Namespace, model_data_config: Config
) -> tuple[Workdir | None, Config]:
    """Returns the workdir of --data and its group `data`, with the overridden keys.

    A folder of text is not a workdir (None). Its splits have the names in `model_data_config`.
    Raises UserError if the languages of a run differ from `model_data_config`.
    """
    from transformer.config.loading import override

    path = Path(arguments.data)
    if path.is_dir() and not Workdir(path).config.exists():
        source = "ids" if model_data_config.source == "ids" else "text"
        return None, with_changes(model_data_config, source=source, path=arguments.data)
    workdir, config = open_existing(path, "--data")
    overrides = [(key, value) for key, value in arguments.overrides if key.startswith("data.")]
    data_config = override(config, overrides).data
    text_direction = describe_direction(data_config)
    model_direction = describe_direction(model_data_config)
    if text_direction != model_direction:
        raise UserError(
            f"--data={arguments.data}: is text from {text_direction}, and the model translates "
            f"{model_direction}; name a run of these languages, or a direction of the model with "
            "--target_language"
        )
    return workdir, data_config


def describe_direction(data_config: Config) -> str:
    return f"{base_code(data_config.source_language)} to {base_code(data_config.target_language)}"


def check_flags(arguments: argparse.Namespace) -> None:
    """Sets the split to test if the flags give neither a split nor files.

    Raises UserError for flags that exclude each other.
    """
    if arguments.source is None:
        if arguments.reference:
            raise UserError(
                f"--reference={arguments.reference[0]}: needs --source=FILE, "
                "the sentences to translate"
            )
        arguments.split = arguments.split or "test"
        return
    # Files exclude the data of a run.
    name = f"--source={arguments.source}"
    if not arguments.reference:
        workdir, file = map(shlex.quote, (arguments.workdir, arguments.source))
        command = f"python -m transformer.translate --workdir={workdir} < {file}"
        raise UserError(
            f"{name}: scores need --reference=FILE; to translate without one: {command}"
        )
    for flag in ("split", "data"):
        value = getattr(arguments, flag)
        if value is not None:
            raise UserError(f"--{flag}={value} {name}: give a run's data or files, not both")


def read_texts(
    arguments: argparse.Namespace, workdir: Workdir | None, data_config: Config
) -> tuple[list[str], list[list[str]]]:
    """Returns the source texts and the lists of raw references.

    Raises UserError if their numbers differ or are 0.
    """
    if arguments.source is None:
        try:
            sources, references = source.read_pairs(data_config, arguments.split)
            return sources, [references]
        # The data of a run may have moved since its training.
        except UserError as error:
            if workdir is None:
                raise
            flags = [
                f"--config={workdir.config}",
                f"--workdir={workdir.path}",
                "--config.data.path=FOLDER",
            ]
            raise UserError(
                f"{error}; if the data has moved, run transformer.train {shlex.join(flags)}, which "
                "records its place and resumes a run that is not complete, or evaluate files with "
                "--source=FILE --reference=FILE"
            ) from error
    pairs = [
        read_parallel_files(Path(arguments.source), Path(name)) for name in arguments.reference
    ]
    if not any(text.strip() for text in pairs[0][0]):
        raise UserError(
            f"--source={arguments.source}: the file has no text; give at least one sentence"
        )
    return pairs[0][0], [references for _, references in pairs]


def log_result(result: dict, scores: list[str]) -> None:
    """Logs the result for a person to read."""
    name = result["split"] or result["data"] or result["source"]
    logging.info("%s: %s", name, ", ".join(scores))
    # The compilation is reported apart from the speed.
    speed = [result[key] for key in ("output_tokens_per_second", "seconds", "compile_seconds")]
    sentences = count_noun(result["sentences"], "sentence")
    logging.info("%s; %.0f tokens/s for %.1f s, after %.1f s of compilation", sentences, *speed)
    for model in result["models"]:
        mean = f" (mean of {len(model['averaged'])})" if len(model["averaged"]) > 1 else ""
        logging.info("model: %s at step %d%s", model["workdir"], model["step"], mean)
    logging.info("translations: %s", result["hypotheses"])


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.evaluate", __doc__, overrides="decoding")
    parser.add_model_flags(languages=True)
    parser.add_argument(
        "--split", choices=source.SPLITS, help="the split of the run's data to translate (test)"
    )
    parser.add_argument(
        "--data", metavar="FOLDER", help="another run, or STEM.LANG files: translate its split"
    )
    parser.add_argument(
        "--source", metavar="FILE", help="a file to translate instead, one sentence a line"
    )
    parser.add_argument(
        "--reference",
        metavar="FILE",
        action="append",
        default=[],
        help="its references; repeatable",
    )
    parser.add_argument(
        "--confidence", action="store_true", help="store the confidence in each translation"
    )
    parser.add_argument(
        "--output", metavar="FOLDER", help="the folder of the files (evaluations in the workdir)"
    )
    return parser


def command() -> NoReturn:
    cli.run(make_parser(), main)


if __name__ == "__main__":
    command()
