"""Translates a split of the data, or any pair of files, with a trained model and scores the translations.

python -m transformer.evaluate --workdir=DIR [--split=test] [--data=WORKDIR] [--checkpoint=best|last|STEP] [--average=N]
    [--source=FILE --reference=FILE ...] [--output=FOLDER] [--decoding.KEY=VALUE ...]

Prints the result as one JSON object, whose keys docs/experiments.md explains, and logs the scores in words. The result,
the sources, the references and the hypotheses are written to the workdir's folder `evaluations`, or to --output=FOLDER.
--data=WORKDIR translates the split of another run's data. A language model has no hypotheses: its result is the
perplexity.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from absl import logging

from transformer import cli
from transformer.config_types import Config
from transformer.data.corpus.encoding import count_losses
from transformer.data.corpus.sanity_checks import find_unknown
from transformer.data.sources import source
from transformer.data.sources.lines import counted, read_parallel_files
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.errors import UserError
from transformer.progress_bar import bar
from transformer.workdir import Workdir, open_existing, split_names


def main(arguments: argparse.Namespace) -> None:
    evaluate(arguments, lambda result: print(json.dumps(result), flush=True))


def evaluate(
    arguments: argparse.Namespace, show: Callable[[dict[str, Any]], None] = lambda result: None
) -> dict[str, Any]:
    """Runs the evaluation of these flags. Logs the scores, writes the files, and returns the result.

    `show` is called with the result even if the files cannot be written, which raises UserError.
    """
    import jax  # these imports take seconds, which --help and a wrong flag should not

    from transformer.cache import enable_compilation_cache
    from transformer.checkpoints import trained
    from transformer.decoding.bleu import METRICS
    from transformer.decoding.evaluation import translate_and_score
    from transformer.decoding.text_decoder import TextDecoder
    from transformer.evaluation_files import EvaluationFiles
    from transformer.training.objectives import OBJECTIVES
    from transformer.training.validation import held_out_means

    check_flags(arguments)
    enable_compilation_cache()
    models = trained.load(split_names(arguments.workdir), arguments.checkpoint, arguments.average, arguments.overrides)
    workdir, config = models.workdir, models.config
    if not OBJECTIVES[config.training.objective].translates:
        check_flags_of_language_model(arguments, config.training.objective)
        evaluation = EvaluationFiles(arguments, models, show)
        means = held_out_means(config, models.tokenizer, models.graphs[0], models.parameters[0], arguments.split)
        result = evaluation.save_means(means)
        logging.info(
            "%s: perplexity %.3f, accuracy %.1f %%", arguments.split, result["perplexity"], 100 * result["accuracy"]
        )
        return result
    if arguments.data is not None:
        workdir, config = open_existing(Path(arguments.data), "--data")
    texts, references = read_texts(arguments, workdir, config.data)
    evaluation = EvaluationFiles(arguments, models, show)
    decoding, devices = models.config.decoding, jax.local_devices()
    decoder = TextDecoder(models.graphs, models.tokenizer, decoding, devices, models.shortlist)
    parameters = decoder.place(models.parameters)
    warn_about_unknown(arguments, models.tokenizer.source, models.config.tokenizer.kind, texts)
    logging.info("Translating %s.", counted(len(texts), "sentence"))
    with bar("Translating", len(texts)) as report:
        translated = translate_and_score(decoder, parameters, texts, references, config.data, METRICS, report)
    result = evaluation.save_translations(texts, references, translated)
    log_scores(result)
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


def check_flags_of_language_model(arguments: argparse.Namespace, objective: str) -> None:
    """Raises UserError for flags that are for translations: a language model has none."""
    model = f"a model of training.objective={objective}"
    if arguments.source is not None or arguments.data is not None or len(split_names(arguments.workdir)) > 1:
        raise UserError(
            f"--workdir={arguments.workdir}: {model} is evaluated by itself on a split of its own data; give "
            "--split only"
        )
    if arguments.overrides:
        key, text = arguments.overrides[0]
        raise UserError(f"--{key}={text}: has no meaning for the perplexity of {model}; leave it out")


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
    pairs = [read_parallel_files(Path(arguments.source), Path(name)) for name in arguments.reference]
    texts = pairs[0][0]
    if not texts:
        raise UserError(f"--source={arguments.source}: the file is empty; give at least one sentence")
    return texts, [references for _, references in pairs]


def warn_about_unknown(arguments: argparse.Namespace, vocabulary: Vocabulary, kind: str, texts: list[str]) -> None:
    """Warns if the vocabulary lacks characters of the sources. The decoder names a line that is not of integers.

    `kind` is `config.tokenizer.kind`.
    """
    if kind == "ids":
        return
    losses = count_losses(vocabulary, texts, vocabulary.encode(texts))
    name = f"--source={arguments.source}" if arguments.source else f"the sources of {arguments.split}"
    for line in find_unknown(name, kind, vocabulary, losses, f"--workdir={arguments.workdir}"):
        logging.warning("%s", line)


def log_scores(result: Mapping[str, Any]) -> None:
    """Logs the scores for a person to read."""
    from transformer.decoding.bleu import METRICS, describe_scores

    text = result["split"] or result["data"] or result["source"]
    logging.info("%s: %s", text, ", ".join(describe_scores(result, METRICS)))
    if isinstance(result["reference"], list):
        logging.info("each sentence has %d references; every metric takes all of them", len(result["reference"]))
    logging.info(
        "%s; %.0f tokens/s for %.1f s, after %.1f s of compilation",
        counted(result["sentences"], "sentence"),
        *(result["output_tokens_per_second"], result["seconds"], result["compile_seconds"]),
    )
    for model in result["models"]:
        mean = f" (mean of {len(model['averaged'])})" if len(model["averaged"]) > 1 else ""
        logging.info("model: %s at step %d%s", model["workdir"], model["step"], mean)
    logging.info("translations: %s", result["hypotheses"])


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.evaluate", __doc__, overrides="decoding")
    parser.add_model_flags()
    parser.add_argument("--split", choices=source.SPLITS, help="the split of the run's data to translate (test)")
    parser.add_argument("--data", metavar="WORKDIR", help="another run, whose split is translated instead")
    parser.add_argument("--source", metavar="FILE", help="a file to translate instead, one sentence a line")
    parser.add_argument(
        "--reference", metavar="FILE", action="append", default=[], help="its reference translations; may be repeated"
    )
    parser.add_argument("--output", metavar="FOLDER", help="the folder of the files (evaluations in the workdir)")
    return parser


def command() -> NoReturn:
    cli.run(make_parser(), main)


if __name__ == "__main__":
    command()
