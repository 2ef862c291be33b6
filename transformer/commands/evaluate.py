"""Implementation of `transformer.evaluate`; transformer/evaluate.py defines its flags."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from absl import logging

from transformer import cli
from transformer.cache import enable_compilation_cache
from transformer.checkpoints import trained
from transformer.checkpoints.trained import Trained
from transformer.config_types import Config
from transformer.data.corpus.encoding import count_losses
from transformer.data.corpus.sanity_checks import find_unknown
from transformer.data.sources import source
from transformer.data.sources.lines import counted, read_parallel_files
from transformer.decoding.bleu import METRICS, bleu_language, describe_scores
from transformer.decoding.evaluation import translate_and_score
from transformer.decoding.replicas import Replicas
from transformer.decoding.translator import Translator
from transformer.errors import UserError
from transformer.progress_bar import bar
from transformer.run.evaluations import Show, check_writable, save_means, save_translations
from transformer.run.held_out import held_out_means
from transformer.training.objectives import OBJECTIVES
from transformer.workdir import Workdir, open_existing, split_names


def main(arguments: argparse.Namespace) -> None:
    evaluate(arguments, lambda result: print(json.dumps(result), flush=True))


def evaluate(arguments: argparse.Namespace, show: Show = lambda result: None) -> dict[str, Any]:
    """Runs the evaluation of these flags. Logs the scores, writes the files, and returns the result.

    `show` is called with the result even if the files cannot be written, which raises UserError.
    """
    check_flags(arguments)
    enable_compilation_cache()
    models = trained.load(split_names(arguments.workdir), arguments.checkpoint, arguments.average, arguments.overrides)
    workdir, config = models.workdir, models.config
    if not OBJECTIVES[config.training.objective].translates:
        return evaluate_language_model(arguments, models, show)
    if arguments.data is not None:
        workdir, config = open_existing(Path(arguments.data), "--data")
    texts, references = read_texts(arguments, workdir, config.data)
    check_writable(arguments, models)
    devices = jax.local_devices()
    translator = Translator(models.graphs, models.tokenizer, models.config.decoding, 1, devices, models.shortlist)
    replicas = Replicas(models.graphs, models.parameters, devices[0])
    warn_about_unknown(arguments, models, texts)
    logging.info("Translating %s.", counted(len(texts), "sentence"))
    with bar("Translating", len(texts)) as report:
        language = bleu_language(config.data)
        translated = translate_and_score(translator, replicas, texts, references, language, METRICS, report)
    translator.log_cut_lines()
    result = save_translations(arguments, models, texts, references, translated, show)
    log_scores(result)
    return result


def evaluate_language_model(arguments: argparse.Namespace, models: Trained, show: Show) -> dict[str, Any]:
    """Returns and writes the loss and perplexity of a split. Raises UserError for flags that are for translations."""
    objective = f"a model of training.objective={models.config.training.objective}"
    if arguments.source is not None or arguments.data is not None or len(models.graphs) > 1:
        raise UserError(
            f"--workdir={arguments.workdir}: {objective} is evaluated by itself on a split of its own data; give "
            "--split only"
        )
    if arguments.overrides:
        key, text = arguments.overrides[0]
        raise UserError(f"--{key}={text}: has no meaning for the perplexity of {objective}; leave it out")
    check_writable(arguments, models)
    result = save_means(arguments, models, held_out_means(models, arguments.split), show)
    logging.info(
        "%s: perplexity %.3f, accuracy %.1f %%", arguments.split, result["perplexity"], 100 * result["accuracy"]
    )
    return result


def check_flags(arguments: argparse.Namespace) -> None:
    """Sets the split to test if neither it nor files are given. Raises UserError for flags that exclude each other."""
    if arguments.source is None and arguments.reference:
        raise UserError(f"--reference={arguments.reference[0]}: needs --source=FILE, the sentences to translate")
    if arguments.source is not None and not arguments.reference:
        command = f"python -m transformer.translate --workdir={arguments.workdir} < {arguments.source}"
        raise UserError(
            f"--source={arguments.source}: scores need --reference=FILE; to translate without one: {command}"
        )
    if arguments.source is not None and arguments.split is not None:
        raise UserError(f"--split={arguments.split} --source={arguments.source}: give a split or two files, not both")
    if arguments.source is not None and arguments.data is not None:
        raise UserError(f"--data={arguments.data} --source={arguments.source}: give a run's data or files, not both")
    if arguments.source is None and arguments.split is None:
        arguments.split = "test"


def read_texts(arguments: argparse.Namespace, workdir: Workdir, data: Config) -> tuple[list[str], list[list[str]]]:
    """Returns the source texts and the lists of raw references: of the files, or of a split of the data of `workdir`.

    Raises UserError if there are none or their numbers differ.
    """
    if arguments.source is None:
        try:
            texts, references = source.read_pairs(data, arguments.split)
            return texts, [references]
        except UserError as error:
            files_instead = "or evaluate files with --source=FILE --reference=FILE"
            raise UserError(f"{error}{cli.moved_data(workdir.path)}, {files_instead}") from error
    files = [read_parallel_files(Path(arguments.source), Path(name)) for name in arguments.reference]
    texts = files[0][0]
    if not texts:
        raise UserError(f"--source={arguments.source}: the file is empty; give at least one sentence")
    return texts, [references for _, references in files]


def warn_about_unknown(arguments: argparse.Namespace, models: Trained, texts: list[str]) -> None:
    """Warns if the vocabulary lacks characters of the sources. The translator names a line that is not of integers."""
    vocabulary, kind = models.tokenizer.source, models.config.tokenizer.kind
    if kind == "ids":
        return
    losses = count_losses(vocabulary, texts, vocabulary.encode(texts))
    name = f"--source={arguments.source}" if arguments.source else f"the sources of {arguments.split}"
    for line in find_unknown(name, kind, vocabulary, losses, f"--workdir={arguments.workdir}"):
        logging.warning("%s", line)


def log_scores(result: Mapping[str, Any]) -> None:
    """Logs the scores for a person to read."""
    text = result["split"] or result["data"] or result["source"]
    logging.info("%s: %s", text, ", ".join(describe_scores(result, METRICS)))
    if isinstance(result["reference"], list):
        logging.info("each sentence has %d references; every metric takes all of them", len(result["reference"]))
    logging.info(
        "%s; %.0f tokens/s for %.1f s, after %.1f s of compilation",
        counted(result["sentences"], "sentence"),
        *(result["output_tokens_per_second"], result["seconds"], result["compile_seconds"]),
    )
    logging.info("model: %s", " and ".join(describe_model(model) for model in result["models"]))
    logging.info("translations: %s", result["hypotheses"])


def describe_model(model: Mapping[str, Any]) -> str:
    mean = f" (mean of {len(model['averaged'])})" if len(model["averaged"]) > 1 else ""
    return f"{model['workdir']} at step {model['step']}{mean}"
