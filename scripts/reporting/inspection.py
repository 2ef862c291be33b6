"""Translations, attention and searches of models for some sentences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import transformer
from scripts.charts.attention import MAX_TOKENS
from scripts.evaluations import Evaluation
from scripts.reporting.runs import Run
from transformer.decoding.activations import Attention
from transformer.decoding.beam_tree import BeamTree
from transformer.errors import UserError


@dataclass(frozen=True)
class Inspected:
    """A sentence, numbered from 1, and what a run's model makes of it."""

    run: str
    number: int
    source: str
    translation: str
    attention: Attention
    beam_tree: BeamTree


@dataclass(frozen=True)
class Inspection:
    """All runs with all sentences, and notes on what cannot be shown."""

    shown: Sequence[Inspected]
    notes: Sequence[str]


def inspect(runs: Sequence[Run], chosen: Mapping[str, Evaluation], texts: Sequence[str]) -> Inspection:
    """Reads the texts with the model of each run as in its chosen evaluation, or else at its best step."""
    if not texts:
        return Inspection([], ["No sentence was chosen: give --sentence=TEXT, or evaluate the runs."])
    shown, notes = [], []
    for run in runs:
        if not run.has_checkpoint:
            continue  # the overview says so
        if run.config.training.objective != "translation":
            notes.append(f"{run.label} is no translation model with a decoder.")
        else:
            try:
                shown += _inspected(run, chosen.get(run.label), texts, notes)
            except UserError as error:
                notes.append(f"{run.label}: {error}")
    return Inspection(shown, notes)


def _inspected(run: Run, evaluation: Evaluation | None, texts: Sequence[str], notes: list[str]) -> Iterator[Inspected]:
    """Yields what the model makes of each text, and adds those that cannot be shown to `notes`."""
    checkpoint, average, decoding = "best", 1, {}
    if evaluation is not None:
        checkpoint, average = str(evaluation.result["step"]), evaluation.result["averaged"]
        decoding = evaluation.decoding
    model = transformer.load(run.workdir.path, checkpoint, average, **decoding | {"strategy": "beam"})
    for number, text in enumerate(texts, start=1):
        try:
            ((translation,),) = model.translate([text])
            attention = model.attention(text, translation.text)
            beam_tree = model.beam_tree(text)
        except UserError as error:
            notes.append(f"{run.label}: sentence {number}: {error}")
            continue
        tokens = max(len(attention.source_pieces), len(attention.target_output_pieces))
        if tokens > MAX_TOKENS:
            notes.append(f"{run.label}: sentence {number} has {tokens} tokens; at most {MAX_TOKENS} can be drawn.")
        else:
            yield Inspected(run.label, number, text, translation.text, attention, beam_tree)
