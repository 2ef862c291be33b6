"""The attention and the beam searches of translation models for some sentences."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

import transformer
from scripts.charts import beam, theme
from scripts.charts.attention import MAX_TOKENS, axes
from scripts.reporting.sections import Section
from scripts.results.evaluations import Evaluation
from scripts.results.runs import RecordedRun
from transformer.decoding.beam_tree import BeamTree
from transformer.decoding.forced_decoding import Attention
from transformer.support.errors import UserError
from transformer.training.objectives import OBJECTIVES

TITLES = {"cross": "cross-attention", "encoder": "encoder", "decoder": "decoder"}


METHODS = {"translate", "attention", "beam_tree"}  # of a model, that these sections need


class Inspected(NamedTuple):
    """A sentence, numbered from 1, with the output of a run's model."""

    run: str
    number: int
    source: str
    translation: str
    attention: Attention
    beam_tree: BeamTree


def inspect(
    runs: Sequence[RecordedRun], evaluations: Mapping[str, Evaluation], texts: Sequence[str]
) -> tuple[list[Inspected], list[str]]:
    """Returns each text with the output of each run's model, and notes on missing output.

    A model has the checkpoint and the decoding of the run's evaluation or, if the run has none, its
    best checkpoint.
    """
    if not texts:
        return [], ["No sentence was chosen: give --sentence=TEXT, or evaluate the runs."]
    inspected = []
    notes = []
    for run in runs:
        if not run.has_checkpoint:
            continue  # a note of the overview
        if not METHODS.issubset(OBJECTIVES[run.config.training.objective].methods):
            notes.append(f"{run.label} is no translation model with a decoder.")
            continue
        try:
            inspected += _inspect_run(run, evaluations.get(run.label), texts, notes)
        except UserError as error:
            notes.append(f"{run.label}: {error}")
    return inspected, notes


def _inspect_run(
    run: RecordedRun, evaluation: Evaluation | None, texts: Sequence[str], notes: list[str]
) -> Iterator[Inspected]:
    """Yields each text with the output of the run's model, or adds a note on the problem."""
    checkpoint = "best"
    average = 1
    decoding = {}
    if evaluation is not None:
        checkpoint = str(evaluation.result["step"])
        average = evaluation.average
        decoding = evaluation.decoding
    # Only beam search has a tree of hypotheses.
    decoding = {**decoding, "strategy": "beam"}
    model = transformer.load(run.workdir.path, checkpoint, average, **decoding)
    # A sentence may be too long for the model. The other sentences are shown nevertheless.
    for number, text in enumerate(texts, start=1):
        try:
            ((translation,),) = model.translate([text])
            attention = model.attention(text, translation.text)
            beam_tree = model.beam_tree(text)
        except UserError as error:
            notes.append(f"{run.label}: sentence {number}: {error}")
            continue
        tokens = max(len(attention.source_pieces), len(attention.target_output_pieces))
        if tokens <= MAX_TOKENS:
            yield Inspected(run.label, number, text, translation.text, attention, beam_tree)
        else:
            limit = f"at most {MAX_TOKENS} can be drawn"
            notes.append(f"{run.label}: sentence {number} has {tokens} tokens; {limit}.")


def attention_section(inspected: Sequence[Inspected], notes: Sequence[str]) -> Section:
    data = []
    for sentence in inspected:
        parts = _parts(sentence.attention)
        texts = {"source": sentence.source, "translation": sentence.translation}
        data.append({**texts, "parts": parts})
    content = {"parts": TITLES, "shown": inspected} if inspected else None
    return Section("attention", "Attention", content, notes, data={"attention": data})


def _parts(attention: Attention) -> dict[str, dict[str, Any]]:
    """Returns the weights of each part, in steps of 1/255, with the tokens and titles of the axes.

    Parts that the model does not have are left out.
    """
    parts = {}
    for name in TITLES:
        weights = getattr(attention, name)
        if weights is None:
            continue
        queries, keys = axes(attention, name)
        # A byte for each weight keeps the page small.
        rounded = np.rint(255 * weights).astype(np.uint8)
        parts[name] = {
            "shape": list(weights.shape),
            "queries": list(map(theme.visible, queries.labels)),
            "keys": list(map(theme.visible, keys.labels)),
            "titles": [queries.title, keys.title],
            "weights": base64.b64encode(rounded.tobytes()).decode(),
            "entropy": np.round(entropy(weights), 3).tolist(),
        }
    return parts


def entropy(weights: Float[np.ndarray, "N H Q K"]) -> Float[np.ndarray, "N H"]:
    """Returns the entropy of each head in bits: the mean over its queries.

    It is 0 if every query reads a single token.
    """
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(-1).mean(-1)


def beam_section(inspected: Sequence[Inspected], notes: Sequence[str]) -> Section:
    sentences = {f"beam-{number}": sentence for number, sentence in enumerate(inspected)}
    charts = {name: beam.tree(sentence.beam_tree).to_dict() for name, sentence in sentences.items()}
    content = {"shown": sentences} if sentences else None
    return Section("beams", "Beam search", content, notes, charts)
