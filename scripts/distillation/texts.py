"""The sentences that models translate, the choice among their hypotheses, and training pairs made
of them.
"""

import concurrent.futures
import itertools
import multiprocessing
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from absl import logging
from sacrebleu.metrics import CHRF
from sacrebleu.metrics.base import Metric

import transformer
from scripts.corpora.plan import open_plan
from scripts.datasets.folder import SPLITS, write_record
from scripts.distillation import plan
from scripts.distillation.folder import Folder
from transformer.data.sources import source
from transformer.data.sources.lines import read_text_file
from transformer.decoding.bleu import bleu_language, make_bleu
from transformer.decoding.control.arguments import LINE_BREAKS
from transformer.support import files
from transformer.support.errors import UserError

SHARDS = "shards"  # the output of scripts.translate_corpus in the folder of a translation

Pairs = Sequence[tuple[str, str]]
Chosen = Iterator[tuple[str, str]]  # sentences and their translations


def write_sources(translation: plan.Translation, folder: Folder) -> Path:
    """Returns the file with the sentences to translate, which it writes if they are a config's."""
    if not plan.is_config(translation.text):
        return Path(translation.text)
    side, _ = _sides(translation, folder)
    path = folder.of(translation) / "sources.txt"
    _write_lines(path, (pair[side] for pair in _pairs(translation.text, folder)))
    return path


def _sides(translation: plan.Translation, folder: Folder) -> tuple[int, int]:
    """Returns the sides of the config's pairs that the models read and write."""
    data = folder.load_config(translation.text).data
    language, _ = folder.languages(translation.models[0])
    return (0, 1) if language == data.source_language else (1, 0)


def _pairs(config: str, folder: Folder, split: str = "train") -> Iterator[tuple[str, str]]:
    """Yields the pairs of a config, each text in one line.

    Raises UserError if they cannot be read.
    """
    pairs = source.decoded(source.open_source(folder.load_config(config).data, split))
    return (tuple(text.translate(LINE_BREAKS) for text in pair) for pair in pairs)


def choose(translation: plan.Translation, folder: Folder) -> None:
    """Writes the sentences that have a translation, and the chosen one of each."""
    rows = open_plan(folder.of(translation) / SHARDS, {}).translations()
    if isinstance(translation.choose, plan.Training):
        chosen = _by_loss(
            rows, folder.of(translation.choose), translation.checkpoint, translation.average
        )
    elif translation.choose == "score":
        chosen = ((text, hypotheses[0]) for text, hypotheses in rows)
    else:
        _, side = _sides(translation, folder)
        references = (pair[side] for pair in _pairs(translation.text, folder))
        metric = CHRF()
        if translation.choose == "bleu":
            metric = make_bleu(bleu_language(folder.config(translation.models[0]).data).tokenizer)
            metric.effective_order = True  # else the score of a short sentence is 0
        chosen = _by_reference(rows, references, metric)
    pairs = [(text, best) for text, best in chosen if best]
    _write(folder.of(translation), "chosen", folder.languages(translation.models[0]), pairs)
    logging.info("%s: %d sentences have a translation.", translation.name, len(pairs))


def _by_reference(
    rows: Iterator[tuple[str, list[str]]], references: Iterator[str], metric: Metric
) -> Chosen:
    """Yields the hypothesis of the highest sentence score; the first of equal ones."""
    for (text, hypotheses), reference in zip(rows, references, strict=True):
        yield (
            text,
            max(
                hypotheses,
                key=lambda hypothesis: metric.sentence_score(hypothesis, [reference]).score,
            ),
        )


def _by_loss(
    rows: Iterator[tuple[str, list[str]]], workdir: Path, checkpoint: str, average: int
) -> Chosen:
    """Yields the hypothesis from which a model of the other direction finds the sentence with the
    lowest loss.
    """
    known = list(rows)
    pairs = [(hypothesis, text) for text, hypotheses in known for hypothesis in hypotheses]
    # Another process computes them, so that this one does not hold the device that later stages
    # need.
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn")
    ) as executor:
        losses = iter(executor.submit(_losses, workdir, checkpoint, average, pairs).result())
    for text, hypotheses in known:
        own = list(itertools.islice(losses, len(hypotheses)))
        yield text, hypotheses[own.index(min(own))]


def _losses(workdir: Path, checkpoint: str, average: int, pairs: Pairs) -> list[float]:
    """Returns the loss of the target of each pair by a model; infinite if it is too long."""
    model = transformer.load(workdir, checkpoint, average)
    can_score = [model.can_score(pair) for pair in pairs]
    known = iter(model.score([pair for pair, can in zip(pairs, can_score, strict=True) if can]))
    return [-next(known).log_probability if can else float("inf") for can in can_score]


def mix(mixture: plan.Mixture, folder: Folder) -> None:
    """Writes a folder of training pairs, with the other splits of the config."""
    # of a process that was killed before it recorded the end
    shutil.rmtree(folder.of(mixture), ignore_errors=True)
    data = folder.load_config(mixture.config).data
    languages = data.source_language, data.target_language
    pairs = list(_pairs(mixture.config, folder))
    pairs = list(dict.fromkeys(pairs)) if data.deduplicate else pairs
    translated = []
    for translation in mixture.translations:  # in the direction of the mixture
        sides = (
            read_text_file(folder.of(translation) / f"chosen.{language}") for language in languages
        )
        translated += zip(*sides, strict=True)
    tag = f"{mixture.tag} " if mixture.tag else ""
    known = set(pairs if mixture.copies else ())
    added = [
        pair
        for pair in dict.fromkeys((tag + text, other) for text, other in translated)
        if pair not in known
    ]
    with files.new_folder(folder.of(mixture)) as unfinished:
        _write(unfinished, SPLITS[0], languages, [*pairs * mixture.copies, *added])
        _write(unfinished, SPLITS[1], languages, list(_pairs(mixture.config, folder, "valid")))
        try:
            _write(unfinished, SPLITS[2], languages, list(_pairs(mixture.config, folder, "test")))
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


def _write(
    folder: Path, stem: str, languages: tuple[str, str], pairs: Sequence[tuple[str, str]]
) -> None:
    for side, language in enumerate(languages):
        _write_lines(folder / f"{stem}.{language}", (pair[side] for pair in pairs))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    files.write_text(path, "".join(f"{line}\n" for line in lines))
