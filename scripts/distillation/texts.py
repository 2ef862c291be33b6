"""The texts of a pipeline: sentences to translate, chosen translations, and pairs to train on."""

import concurrent.futures
import itertools
import multiprocessing
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from absl import logging
from sacrebleu.metrics.base import Metric

import transformer
from scripts.corpora.shards import read_shards
from scripts.datasets.folder import SPLITS, write_record
from scripts.distillation.folder import PipelineFolder
from scripts.distillation.pipeline import (
    MixtureStage,
    TrainingStage,
    TranslationStage,
    is_config,
)
from scripts.results.sentence_scores import sentence_metric
from transformer.data.sources import source
from transformer.data.sources.lines import read_text_file
from transformer.decoding.bleu import bleu_language
from transformer.decoding.control.arguments import LINE_BREAKS
from transformer.decoding.forced_decoding import is_scorable
from transformer.support import files
from transformer.support.errors import UserError

SHARDS = "shards"  # the output of scripts.translate_corpus in the folder of a translation

Pair = tuple[str, str]  # two sentences
Row = tuple[str, list[str]]  # a sentence and its hypotheses, best first


def write_sources(translation: TranslationStage, folder: PipelineFolder) -> Path:
    """Returns the file with the sentences to translate. Writes it if they come from a config."""
    if not is_config(translation.text):
        return Path(translation.text)

    # A model of the other direction reads the targets of the config.
    side, _ = _sides(translation, folder)
    path = folder.result_path(translation) / "sources.txt"
    _write_lines(path, (pair[side] for pair in _read_pairs(translation.text, folder)))
    return path


def _sides(translation: TranslationStage, folder: PipelineFolder) -> tuple[int, int]:
    """Returns the sides of the config's pairs that the models read and write."""
    data_config = folder.load_config(translation.text).data
    language, _ = folder.languages(translation.models[0])
    return (0, 1) if language == data_config.source_language else (1, 0)


def _read_pairs(config: str, folder: PipelineFolder, split: str = "train") -> Iterator[Pair]:
    """Yields the pairs of a config, with line breaks replaced.

    Raises UserError if they cannot be read.
    """
    pairs = source.decode_pairs(source.open_source(folder.load_config(config).data, split))
    return (tuple(text.translate(LINE_BREAKS) for text in pair) for pair in pairs)


def choose(translation: TranslationStage, folder: PipelineFolder) -> None:
    """Writes the sentences that have a translation, and the chosen translation of each."""
    output = folder.result_path(translation)
    model = translation.models[0]

    # A row has n_best hypotheses, among which the pipeline chooses one.
    rows = read_shards(output / SHARDS).translations()
    if isinstance(translation.choose, TrainingStage):
        workdir = folder.result_path(translation.choose)
        choices = _choose_by_loss(rows, workdir, translation.checkpoint, translation.average)
    elif translation.choose == "score":
        # Hypotheses are in the order of their scores.
        choices = ((text, hypotheses[0]) for text, hypotheses in rows)
    else:
        _, side = _sides(translation, folder)

        # The other side of each pair is the reference of its translation.
        references = (pair[side] for pair in _read_pairs(translation.text, folder))
        metric = sentence_metric(translation.choose, bleu_language(folder.config(model).data))
        choices = _choose_by_reference(rows, references, metric)

    # A translation is empty if its line was cut or failed.
    pairs = [(text, best) for text, best in choices if best]
    _write_pairs(output, "chosen", folder.languages(model), pairs)
    logging.info("%s: %d sentences have a translation.", translation.name, len(pairs))


def _choose_by_reference(
    rows: Iterator[Row], references: Iterator[str], metric: Metric
) -> Iterator[Pair]:
    """Yields each sentence and its hypothesis with the best sentence score, the first of ties."""
    for (text, hypotheses), reference in zip(rows, references, strict=True):
        scores = [metric.sentence_score(hypothesis, [reference]).score for hypothesis in hypotheses]
        yield text, hypotheses[scores.index(max(scores))]


def _choose_by_loss(
    rows: Iterator[Row], workdir: Path, checkpoint: str, average: int
) -> Iterator[Pair]:
    """Yields each sentence and the hypothesis that gives it the lowest loss.

    The loss is the loss of a model that translates in the other direction.
    """
    rows = list(rows)
    pairs = [(hypothesis, text) for text, hypotheses in rows for hypothesis in hypotheses]

    # In another process, so that this one does not hold the device that later stages need.
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as executor:
        losses = iter(executor.submit(_losses, workdir, checkpoint, average, pairs).result())

    # The losses are in the order of the pairs: all hypotheses of a sentence, then of the next.
    for text, hypotheses in rows:
        sentence_losses = list(itertools.islice(losses, len(hypotheses)))
        yield text, hypotheses[sentence_losses.index(min(sentence_losses))]


def _losses(workdir: Path, checkpoint: str, average: int, pairs: Sequence[Pair]) -> list[float]:
    """Returns a model's loss of the target of each pair; infinite if the pair is too long."""
    model = transformer.load(workdir, checkpoint, average)

    # Infinite losses are never the lowest, unless no hypothesis can be scored.
    losses = [float("inf")] * len(pairs)
    short = [i for i, pair in enumerate(pairs) if is_scorable(model.decoder, pair)]
    scores = model.score([pairs[i] for i in short])
    for i, score in zip(short, scores, strict=True):
        losses[i] = -score.log_probability
    return losses


def mix(mixture: MixtureStage, folder: PipelineFolder) -> None:
    """Writes a folder of training pairs, with the other splits of the config."""
    output = folder.result_path(mixture)

    # The folder may be there if its process was killed before it recorded the end of the stage.
    shutil.rmtree(output, ignore_errors=True)
    data_config = folder.load_config(mixture.config).data
    languages = (data_config.source_language, data_config.target_language)

    pairs = list(_read_pairs(mixture.config, folder))
    if data_config.deduplicate:
        pairs = list(dict.fromkeys(pairs))

    # Translations in both directions become pairs in the direction of the mixture.
    tag = f"{mixture.tag} " if mixture.tag else ""
    translated = []
    for translation in mixture.translations:
        path = folder.result_path(translation)
        sources, targets = (read_text_file(path / f"chosen.{code}") for code in languages)
        translated += [(tag + text, target) for text, target in zip(sources, targets, strict=True)]

    # Translations that repeat each other or a real pair are left out.
    real = set(pairs if mixture.copies else ())
    added = [pair for pair in dict.fromkeys(translated) if pair not in real]

    with files.new_folder(output) as unfinished:
        _write_pairs(unfinished, SPLITS[0], languages, [*pairs * mixture.copies, *added])
        valid_pairs = list(_read_pairs(mixture.config, folder, "valid"))
        _write_pairs(unfinished, SPLITS[1], languages, valid_pairs)

        # A config without test data can still train a student.
        try:
            test_pairs = list(_read_pairs(mixture.config, folder, "test"))
            _write_pairs(unfinished, SPLITS[2], languages, test_pairs)
        except UserError as error:
            logging.warning("%s: has no test split (%s).", mixture.name, error)

        facts = {
            "by": "distill",
            "real": len(pairs),
            "copies": mixture.copies,
            "added": len(added),
            "tag": mixture.tag,
        }
        write_record(unfinished, languages, facts)
    logging.info(
        "%s: %d pairs, %d times each, and %d others.",
        mixture.name,
        len(pairs),
        mixture.copies,
        len(added),
    )


def _write_pairs(folder: Path, stem: str, languages: Pair, pairs: Sequence[Pair]) -> None:
    for side, language in enumerate(languages):
        _write_lines(folder / f"{stem}.{language}", (pair[side] for pair in pairs))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    files.write_text(path, "".join(f"{line}\n" for line in lines))
