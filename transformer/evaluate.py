"""Translates a split of the data, or any pair of files, with a trained model and scores the translations.

python -m transformer.evaluate --workdir=DIR [--split=test] [--data=DIR] [--checkpoint=best|last|STEP] [--average=N]
    [--source=FILE --reference=FILE] [--decoding.KEY=VALUE ...]

Prints the result as one JSON object and logs the scores in words. The result, the hypotheses and the references are
written to the workdir's folder `evaluations`. A language model has no hypotheses: its result is the perplexity.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
from absl import logging

from transformer import cli, files
from transformer.checkpoints import trained
from transformer.checkpoints.trained import Trained
from transformer.compilation_cache import enable_compilation_cache
from transformer.config_types import Config
from transformer.data.sources import source
from transformer.data.sources.lines import read_text_file
from transformer.decoding.bleu import MEASURES, bleu_language
from transformer.decoding.evaluation import ScoredTranslations, translate_and_score
from transformer.decoding.replicas import Replicas
from transformer.decoding.translator import Translator
from transformer.errors import UserError
from transformer.progress_bar import bar
from transformer.run.held_out import held_out_means
from transformer.training.objectives import OBJECTIVES
from transformer.workdir import Workdir, open_existing, split_names


def main(arguments: argparse.Namespace) -> None:
    print(json.dumps(evaluate(arguments)))


def evaluate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the evaluation of these flags. Logs the scores, writes the files, and returns the result."""
    check_flags(arguments)
    enable_compilation_cache()
    models = trained.load(split_names(arguments.workdir), arguments.checkpoint, arguments.average, arguments.overrides)
    workdir, config = models.workdir, models.config
    if not OBJECTIVES[config.training.objective].translates:
        return evaluate_language_model(arguments, models)
    if arguments.data is not None:
        workdir, config = open_existing(Path(arguments.data), "--data")
    texts, references = read_texts(arguments, workdir, config.data)
    devices = jax.local_devices()
    translator = Translator(models.graphs, models.tokenizer, models.config.decoding, n_best=1, devices=devices)
    replicas = Replicas(models.graphs, models.parameters, devices[0])
    logging.info("Translating %d sentences.", len(texts))
    with bar("Translating", len(texts)) as report:
        language = bleu_language(config.data)
        translated = translate_and_score(translator, replicas, texts, references, language, MEASURES, report)
    result = save(arguments, models, references, translated)
    log_scores(result)
    return result


def evaluate_language_model(arguments: argparse.Namespace, models: Trained) -> dict[str, Any]:
    """Returns and writes the loss and perplexity of a split. Raises UserError for flags that are for translations."""
    if arguments.source is not None or arguments.data is not None or len(models.graphs) > 1:
        raise UserError(
            f"--workdir={arguments.workdir}: a model of training.objective={models.config.training.objective} is "
            "evaluated by itself on a split of its own data; give --split only"
        )
    checkpoint = models.checkpoints[0]
    values = held_out_means(models, arguments.split)
    facts = {"split": arguments.split, "step": checkpoint.step, "averaged": len(checkpoint.averaged)}
    result = files.six_digits(values) | facts
    models.workdir.evaluations.mkdir(exist_ok=True)
    files.write_json(models.workdir.evaluations / f"{evaluation_name(arguments, models)}.json", result)
    logging.info(
        "%s: perplexity %.3f, accuracy %.1f %%", arguments.split, result["perplexity"], 100 * result["accuracy"]
    )
    return result


def check_flags(arguments: argparse.Namespace) -> None:
    """Sets the split to test if neither it nor files are given. Raises UserError for flags that exclude each other."""
    if arguments.source is None and arguments.reference is not None:
        raise UserError(f"--reference={arguments.reference}: needs --source=FILE, the sentences to translate")
    if arguments.source is not None and arguments.reference is None:
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


def read_texts(arguments: argparse.Namespace, workdir: Workdir, data: Config) -> tuple[list[str], list[str]]:
    """Returns the source texts and the raw references of the files, or of a split of the data of `workdir`.

    Raises UserError if there are none or their numbers differ.
    """
    if arguments.source is None:
        try:
            return source.read_pairs(data, arguments.split)
        except UserError as error:
            files_instead = "or evaluate files with --source=FILE --reference=FILE"
            raise UserError(f"{error}{cli.moved_data(workdir.path)}, {files_instead}") from error
    texts, references = (read_text_file(Path(name)) for name in (arguments.source, arguments.reference))
    if len(texts) != len(references):
        raise UserError(
            f"{arguments.source} has {len(texts)} lines and {arguments.reference} has {len(references)}: "
            "line N of one must translate line N of the other"
        )
    if not texts:
        raise UserError(f"--source={arguments.source}: the file is empty; give at least one sentence")
    return texts, references


def save(
    arguments: argparse.Namespace, models: Trained, references: Sequence[str], translated: ScoredTranslations
) -> dict[str, Any]:
    """Writes hypotheses, references and the result, and returns the result. Repeating an evaluation overwrites it."""
    folder = models.workdir.evaluations
    folder.mkdir(exist_ok=True)
    evaluated = {
        "split": None if arguments.data else arguments.split,  # of the run's own data, as reports need
        "data": f"{arguments.split} of {arguments.data}" if arguments.data else None,
        "source": arguments.source,
        "reference": arguments.reference,
        "models": [dataclasses.asdict(checkpoint) for checkpoint in models.checkpoints],
    }
    name = numbered_name(folder, evaluation_name(arguments, models), evaluated)
    hypotheses_path, references_path = folder / f"{name}.hypotheses.txt", folder / f"{name}.references.txt"
    first = models.checkpoints[0]
    measured = translated.scores | {
        "seconds": translated.seconds,
        "output_tokens_per_second": translated.output_tokens / translated.seconds,
    }
    result = (
        files.six_digits(measured)
        | evaluated
        | {
            "sentences": len(references),
            "step": first.step,
            "averaged": len(first.averaged),
            "decoding": models.config.decoding.to_dict(),
            "hypotheses": str(hypotheses_path),
            "references": str(references_path),
        }
    )
    files.write_text(hypotheses_path, "".join(f"{line}\n" for line in translated.hypotheses))
    files.write_text(references_path, "".join(f"{line}\n" for line in references))
    files.write_json(folder / f"{name}.json", result)
    return result


def log_scores(result: Mapping[str, Any]) -> None:
    """Logs the scores for a person to read."""
    logging.info(
        "%s: BLEU %.2f (lower-cased, tokenized: %.2f; the paper's measure: %.2f), chrF %.2f",
        *(result["split"] or result["data"] or result["source"], result["bleu"]),
        *(result["bleu_lowercase_tokenized"], result["bleu_paper"], result["chrf"]),
    )
    logging.info(
        "exact match %.1f %% of %d sentences; %.1f s, %.0f tokens/s",
        *(100 * result["exact_match"], result["sentences"], result["seconds"], result["output_tokens_per_second"]),
    )
    logging.info("model: %s", " and ".join(describe_model(model) for model in result["models"]))
    logging.info("translations: %s", result["hypotheses"])


def describe_model(model: Mapping[str, Any]) -> str:
    mean = f" (mean of {len(model['averaged'])})" if len(model["averaged"]) > 1 else ""
    return f"{model['workdir']} at step {model['step']}{mean}"


def evaluation_name(arguments: argparse.Namespace, models: Trained) -> str:
    """Returns the name of an evaluation's files: split or file, checkpoint, other models and overridden keys."""
    first, *others = models.checkpoints
    # File names have at most 255 bytes, and a character can have four.
    parts = [arguments.split or Path(arguments.source).name[:32]]
    parts += [f"of-{Path(arguments.data).name[:20]}"] if arguments.data else []
    parts += [f"step{first.step}"]
    parts += [f"average{len(first.averaged)}"] if len(first.averaged) > 1 else []
    parts += ["with-" + "+".join(Path(each.workdir).name for each in others)[:20]] if others else []
    parts += [f"{key.removeprefix('decoding.')}{value}" for key, value in sorted(arguments.overrides)]
    return "-".join(parts)


def numbered_name(folder: Path, name: str, evaluated: Mapping[str, Any]) -> str:
    """Returns the name, with a number if it belongs to an evaluation of other files or models.

    Args:
      evaluated: the split, the data, the files and the models, as in the result.
    """
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(each for each in names if not is_other_evaluation(folder / f"{each}.json", evaluated))


def is_other_evaluation(path: Path, evaluated: Mapping[str, Any]) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return json.dumps({key: found[key] for key in evaluated}) != json.dumps(evaluated)
    except (OSError, ValueError, KeyError, TypeError):  # missing or damaged: it may be overwritten
        return False


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.evaluate", __doc__, overrides="decoding")
    parser.add_model_flags()
    parser.add_argument("--split", choices=source.SPLITS, help="the split of the run's data to translate (test)")
    parser.add_argument("--data", metavar="DIR", help="another run whose data the split is of")
    parser.add_argument("--source", metavar="FILE", help="a file to translate instead, one sentence a line")
    parser.add_argument("--reference", metavar="FILE", help="its reference translations")
    return parser


def command() -> NoReturn:
    cli.run(make_parser(), main)


if __name__ == "__main__":
    command()
