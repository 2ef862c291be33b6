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


class Inspected(NamedTuple):
    """A sentence, numbered from 1, with the output of a run's model."""

    run: str
    number: int
    source: str
    translation: str
    attention: Attention
    beam_tree: BeamTree


def inspect(
    runs: Sequence[RecordedRun], chosen: Mapping[str, Evaluation], texts: Sequence[str]
) -> tuple[list[Inspected], list[str]]:
    """Reads the texts with the model of each run as in its chosen evaluation, or else at its best
    step.

    Returns the texts with the output of each model, and notes on missing ones.
    """
    if not texts:
        return [], ["No sentence was chosen: give --sentence=TEXT, or evaluate the runs."]
    shown = []
    notes = []
    for run in runs:
        if not run.has_checkpoint:
            continue  # a note of the overview
        if (
            not {"translate", "attention", "beam_tree"}
            <= OBJECTIVES[run.config.training.objective].methods
        ):
            notes.append(f"{run.label} is no translation model with a decoder.")
        else:
            try:
                shown += _inspected(run, chosen.get(run.label), texts, notes)
            except UserError as error:
                notes.append(f"{run.label}: {error}")
    return shown, notes


def _inspected(
    run: RecordedRun, evaluation: Evaluation | None, texts: Sequence[str], notes: list[str]
) -> Iterator[Inspected]:
    """Yields each text with the output of the run's model, or adds to `notes` why it cannot be
    shown.
    """
    checkpoint = "best"
    average = 1
    decoding = {}
    if evaluation is not None:
        checkpoint = str(evaluation.result["step"])
        average = evaluation.average
        decoding = evaluation.decoding
    model = transformer.load(
        run.workdir.path, checkpoint, average, **decoding | {"strategy": "beam"}
    )
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
            notes.append(
                f"{run.label}: sentence {number} has {tokens} tokens; at most {MAX_TOKENS} can be drawn."
            )
        else:
            yield Inspected(run.label, number, text, translation.text, attention, beam_tree)


def attention_section(shown: Sequence[Inspected], notes: Sequence[str]) -> Section:
    content = {"parts": TITLES, "shown": shown} if shown else None
    data = [
        {
            "source": sentence.source,
            "translation": sentence.translation,
            "parts": _as_data(sentence.attention),
        }
        for sentence in shown
    ]
    return Section("attention", "Attention", content, notes, data={"attention": data})


def _as_data(attention: Attention) -> dict[str, dict[str, Any]]:
    """Returns the weights of each part that the model has in steps of 1/255, with the tokens and
    titles of the axes.
    """
    parts = {}
    for name in TITLES:
        weights, (queries, keys) = getattr(attention, name), axes(attention, name)
        if weights is None:
            continue
        parts[name] = {
            "shape": list(weights.shape),
            "queries": list(map(theme.visible, queries.labels)),
            "keys": list(map(theme.visible, keys.labels)),
            "titles": [queries.title, keys.title],
            "weights": base64.b64encode(np.rint(255 * weights).astype(np.uint8).tobytes()).decode(),
            "entropy": np.round(entropy(weights), 3).tolist(),
        }
    return parts


def entropy(weights: Float[np.ndarray, "N H Q K"]) -> Float[np.ndarray, "N H"]:
    """Returns the entropy of each head in bits, the mean over its queries. 0: every query reads a
    single token.
    """
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(-1).mean(-1)


def beam_section(shown: Sequence[Inspected], notes: Sequence[str]) -> Section:
    sentences = {f"beam-{number}": sentence for number, sentence in enumerate(shown)}
    charts = {name: beam.tree(sentence.beam_tree).to_dict() for name, sentence in sentences.items()}
    content = {"shown": sentences} if sentences else None
    return Section("beams", "Beam search", content, notes, charts)
