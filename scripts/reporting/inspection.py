"""Translations, attention and searches of models for some sentences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import transformer
from scripts.reporting.runs import Run
from transformer.decoding.beam_tree import BeamTree
from transformer.decoding.inspection import Attention
from transformer.errors import UserError

MAX_TOKENS = 60  # longer sentences cannot be read on a screen


@dataclass(frozen=True)
class Inspected:
    """A sentence, numbered from 1, and what a run's model makes of it."""

    run: str
    number: int
    source: str
    translation: str
    attention: Attention
    search: BeamTree


@dataclass(frozen=True)
class Inspection:
    """All runs with all sentences, and notes on what cannot be shown."""

    shown: Sequence[Inspected]
    notes: Sequence[str]


def inspect(runs: Sequence[Run], steps: Mapping[str, int], texts: Sequence[str]) -> Inspection:
    """Reads the texts with the model of each run at the step in `steps`, by label, or else at its best one."""
    if not texts:
        return Inspection([], ["No sentence was chosen: give --sentence=TEXT, or evaluate the runs."])
    shown, notes = [], []
    for run in runs:
        if not run.has_checkpoint:
            notes.append(f"{run.label} has no checkpoint.")
        elif run.config.training.objective != "translation":
            notes.append(f"{run.label} is no translation model with a decoder.")
        else:
            try:
                shown += _inspected(run, str(steps.get(run.label, "best")), texts, notes)
            except UserError as error:
                notes.append(f"{run.label}: {error}")
    return Inspection(shown, notes)


def _inspected(run: Run, checkpoint: str, texts: Sequence[str], notes: list[str]) -> Iterator[Inspected]:
    """Yields what the model makes of each text, and adds those that are too long to `notes`."""
    model = transformer.load(run.workdir.path, checkpoint, strategy="beam")
    for number, text in enumerate(texts, start=1):
        ((translation,),) = model.translate([text])
        attention = model.attention(text, translation.text)
        tokens = max(len(attention.source_pieces), len(attention.target_output_pieces))
        if tokens > MAX_TOKENS:
            notes.append(
                f"{run.label}: sentence {number} has {tokens} tokens, more than {MAX_TOKENS}, and is not drawn."
            )
        else:
            yield Inspected(run.label, number, text, translation.text, attention, model.beam_tree(text))
