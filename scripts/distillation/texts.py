"""The sentences that models translate, the choice among their hypotheses, and training pairs made of them."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import logging
from pyarrow import parquet

import transformer
from scripts.corpora.plan import open_plan
from scripts.datasets.folder import SPLITS, write_record
from scripts.distillation import plan
from scripts.distillation.folder import Folder
from transformer import files
from transformer.data.sources import source
from transformer.data.sources.lines import read_text_file
from transformer.errors import UserError

SHARDS = "shards"  # the output of scripts.translate_corpus in the folder of a translation
CHUNK = 2048  # sentences whose hypotheses are scored together

Chosen = Iterator[tuple[str, str]]  # sentences and their translations


def write_sources(translation: plan.Translation, folder: Folder, output: Path) -> Path:
    """Returns the file with the sentences to translate, which it writes if they are a config's."""
    language, _ = folder.languages(translation.models[0])
    if not translation.text.endswith(plan.TEXTS):
        return Path(translation.text)
    path = output / f"text.{language}"
    if not path.exists():
        side = _sides(translation, folder).index(language)
        files.write_text(path, "".join(f"{pair[side]}\n" for pair in _pairs(translation.text, folder)))
    return path


def _sides(translation: plan.Translation, folder: Folder) -> tuple[str, str]:
    """Returns the languages of the config's pairs. Raises UserError if they are not those of the models."""
    data = folder.load_config(translation.text).data
    languages = data.source_language, data.target_language
    for model in translation.models:
        if sorted(folder.languages(model)) != sorted(languages):
            raise UserError(f"{translation.name}: {model.name} does not translate the languages of {translation.text}")
    return languages


def _pairs(config: str, folder: Folder) -> Iterator[tuple[str, str]]:
    """Yields the training pairs of a config. Raises UserError if they cannot be read."""
    return source.decoded(source.open_source(folder.load_config(config).data, "train"))


def choose(translation: plan.Translation, folder: Folder, output: Path) -> None:
    """Writes the sentences that have a translation, and the chosen one of each."""
    languages = folder.languages(translation.models[0])
    rows = _hypotheses(output / SHARDS)
    if isinstance(translation.choose, plan.Training):
        chosen = _by_loss(rows, folder.of(translation.choose))
    elif translation.choose == "score":
        chosen = ((text, hypotheses[0]) for text, hypotheses in rows)
    else:
        side = _sides(translation, folder).index(languages[1])
        references = (pair[side] for pair in _pairs(translation.text, folder))
        chosen = _by_reference(rows, references, translation.choose)
    sides = list(zip(*((text, best) for text, best in chosen if best), strict=True)) or [(), ()]
    for language, lines in zip(languages, sides, strict=True):
        files.write_text(output / f"chosen.{language}", "".join(f"{line}\n" for line in lines))
    logging.info("%s: %d sentences have a translation.", translation.name, len(sides[0]))


def _hypotheses(shards: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields the sentences with their hypotheses, best first; "" for a sentence that was not translated."""
    opened = open_plan(shards, {})
    for shard in opened.shards:
        table = parquet.read_table(opened.path(shard), columns=["line", "source", "translation"])
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        for (_, text), group in itertools.groupby(rows, key=lambda row: row[:2]):
            yield text, [translation or "" for *_, translation in group]


def _by_reference(rows: Iterator[tuple[str, list[str]]], references: Iterator[str], metric: str) -> Chosen:
    """Yields the hypothesis of the highest sentence score; the first of equal ones."""
    from sacrebleu.metrics import BLEU, CHRF

    scorer = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    for (text, hypotheses), reference in zip(rows, references, strict=True):
        yield text, max(hypotheses, key=lambda hypothesis: scorer.sentence_score(hypothesis, [reference]).score)


def _by_loss(rows: Iterator[tuple[str, list[str]]], workdir: Path) -> Chosen:
    """Yields the hypothesis from which a model of the other direction finds the sentence with the lowest loss."""
    model = transformer.load(workdir)
    for chunk in iter(lambda: list(itertools.islice(rows, CHUNK)), []):
        pairs = [(hypothesis, text) for text, hypotheses in chunk for hypothesis in hypotheses]
        can_score = [model.can_score(pair) for pair in pairs]
        known = iter(model.score([pair for pair, can in zip(pairs, can_score, strict=True) if can]))
        losses = iter([-next(known).log_probability if can else float("inf") for can in can_score])
        for text, hypotheses in chunk:
            own = list(itertools.islice(losses, len(hypotheses)))
            yield text, hypotheses[own.index(min(own))]


def mix(mixture: plan.Mixture, folder: Folder, output: Path) -> None:
    """Writes a folder of training pairs, with the other splits of the config. Raises UserError for other languages."""
    data = folder.load_config(mixture.config).data
    languages = data.source_language, data.target_language
    pairs = list(_pairs(mixture.config, folder))
    translated = dict.fromkeys(itertools.chain(*(_oriented(x, folder, languages) for x in mixture.translations)))
    tag = f"{mixture.tag} " if mixture.tag else ""
    known = set(pairs)
    added = [(tag + text, other) for text, other in translated if (text, other) not in known]
    with files.new_folder(output) as unfinished:
        _write(unfinished, SPLITS[0], languages, [*pairs * mixture.copies, *added])
        for name, split in zip(("valid", "test"), SPLITS[1:], strict=True):
            held_out = source.open_source(data, name)
            _write(unfinished, split, languages, list(source.decoded(held_out)))
        facts = {"by": "distill", "real": len(pairs), "copies": mixture.copies, "added": len(added), "tag": mixture.tag}
        write_record(unfinished, languages, facts)
    logging.info("%s: %d pairs, %d times each, and %d others.", mixture.name, len(pairs), mixture.copies, len(added))


def _oriented(translation: plan.Translation, folder: Folder, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the chosen pairs of a translation in the direction of the mixture."""
    own = folder.languages(translation.models[0])
    if sorted(own) != sorted(languages):
        raise UserError(f"{translation.name}: translates {own[0]} to {own[1]}, not between {' and '.join(languages)}")
    sides = (read_text_file(folder.of(translation) / f"chosen.{language}") for language in languages)
    return zip(*sides, strict=True)


def _write(folder: Path, stem: str, languages: tuple[str, str], pairs: Sequence[tuple[str, str]]) -> None:
    for side, language in enumerate(languages):
        files.write_text(folder / f"{stem}.{language}", "".join(f"{pair[side]}\n" for pair in pairs))
