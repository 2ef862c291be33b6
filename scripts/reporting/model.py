"""The positions, vocabularies and batches of the runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scripts.charts import positions, theme
from scripts.reporting.sections import Section
from scripts.runs import RecordedRun
from transformer.data.batches.epoch_plan import read_stats
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.errors import UNREADABLE, UserError
from transformer.special_tokens import SPECIAL

POSITIONS = 64
SIDE = 512  # pixels; cells of whole pixels have no seams
VOCABULARY = ("runs", "vocabulary", "tokens", "begin a word", "characters, mean", "longest")
BATCHES = ("runs", "shape", "batches per epoch", "sentences", "padding")


def section(runs: Sequence[RecordedRun]) -> Section:
    notes: list[str] = []
    vocabularies = share_rows({run.label: _vocabularies(run, notes) for run in runs})
    batches = share_rows({run.label: _batches(run) for run in runs})
    charts, captions = {}, {}
    for (kind, width), vectors in _positions(runs, notes).items():
        name = f"positions-{kind}-{width}"
        charts[name] = positions.heat_map_of(vectors, SIDE, SIDE / 2).to_dict()
        captions[name] = f"{kind} positions of width {width}"
    content = {
        "vocabularies": {"header": VOCABULARY, "rows": vocabularies},
        "batches": {"header": BATCHES, "rows": batches},
        "positions": captions,
    }
    return Section("model", "Positions, tokens and batches", content, notes, charts)


def _positions(runs: Sequence[RecordedRun], notes: list[str]) -> dict[tuple[str, int], Any]:
    """Returns the encodings of all kinds and widths that the runs have and that have a formula."""
    vectors_by_kind = {}
    for run in runs:
        if run.config.model.positions != "learned":
            try:
                vectors = positions.of_run(run.workdir.path, length=POSITIONS)
            except UserError as error:
                notes.append(f"{run.label}: {error}")
            else:
                vectors_by_kind[run.config.model.positions, vectors.shape[1]] = vectors
    return vectors_by_kind


def share_rows(rows: Mapping[str, Sequence[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Returns the rows of each run after its name. Runs with the same rows share them."""
    runs_by_rows: dict[tuple, list[str]] = {}
    for run, table in rows.items():
        runs_by_rows.setdefault(tuple(table), []).append(run)
    names = {table: "all" if len(runs) == len(rows) > 1 else ", ".join(runs) for table, runs in runs_by_rows.items()}
    return [(name, *row) for table, name in names.items() for row in table]


def _vocabularies(run: RecordedRun, notes: list[str]) -> list[tuple[str, ...]]:
    try:
        tokenizer = Tokenizer.load(run.workdir.path, run.config)
    except UserError as error:
        notes.append(f"{run.label}: {error}")
        return []
    names = ("shared",) if tokenizer.is_shared else ("source", "target")
    rows = []
    for name, side in zip(names, tokenizer.sides, strict=False):
        ordinary = side.pieces[SPECIAL:]
        begin = np.mean([piece.startswith("\u2581") for piece in ordinary])
        length = np.mean([len(piece.lstrip("\u2581")) for piece in ordinary])
        longest = theme.visible(max(ordinary, key=len, default=""))
        rows.append((name, f"{len(side.pieces):,}", f"{begin:.0%}", f"{length:.1f}", longest))
    return rows


def _batches(run: RecordedRun) -> list[tuple[str, ...]]:
    """Returns a row for each shape of batches, from the last epoch whose plan the workdir has."""
    plans = run.workdir.plans.glob("[0-9]*-*")
    try:
        stats = read_stats(max(plans, key=lambda path: int(path.name.partition("-")[0])))
    except UNREADABLE:  # none, or damaged; the run makes it again
        return []
    return [
        (
            *(str(shape.bucket), f"{shape.batches:,}", f"{shape.sentences:,}"),
            f"{shape.padding_fraction:.1%}" if shape.positions else "",
        )
        for shape in stats
    ]
