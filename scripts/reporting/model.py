"""The positions, vocabularies and batches of the runs."""

from collections.abc import Sequence
from typing import Any

from scripts.charts import positions
from scripts.reporting.runs import Run
from scripts.reporting.section import Section
from transformer.data.batches.epoch_plan import read_stats
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.errors import UserError
from transformer.special_tokens import SPECIAL

POSITIONS = 64
VOCABULARY = ("vocabulary", "tokens", "begin a word", "characters, mean", "longest")
BATCHES = ("run", "shape", "batches per epoch", "sentences", "padding")


def section(runs: Sequence[Run]) -> Section:
    notes: list[str] = []
    vocabularies = [row for run in runs for row in _vocabularies(run, notes)]
    batches = [row for run in runs for row in _batches(run)]
    charts, captions = {}, {}
    for (kind, width), vectors in _positions(runs, notes).items():
        name = f"positions-{kind}-{width}"
        charts[name] = positions.heat_map_of(vectors, 480, 240).to_dict()
        captions[name] = f"{kind} positions of width {width}"
    content = {
        "vocabularies": {"header": VOCABULARY, "rows": vocabularies},
        "batches": {"header": BATCHES, "rows": batches},
        "positions": captions,
    }
    return Section("model", "Positions, tokens and batches", content, notes, charts)


def _positions(runs: Sequence[Run], notes: list[str]) -> dict[tuple[str, int], Any]:
    """Returns the encodings of all kinds and widths that the runs have and that have a formula."""
    found = {}
    for run in runs:
        if run.config.model.positions != "learned":
            try:
                vectors = positions.of_run(run.workdir.path, length=POSITIONS)
            except UserError as error:
                notes.append(f"{run.label}: {error}")
            else:
                found[run.config.model.positions, vectors.shape[1]] = vectors
    return found


def _vocabularies(run: Run, notes: list[str]) -> list[tuple[str, ...]]:
    try:
        tokenizer = Tokenizer.load(run.workdir.path, run.config)
    except UserError as error:
        notes.append(f"{run.label}: {error}")
        return []
    names = ("shared",) if tokenizer.source is tokenizer.target else ("source", "target")
    return [_describe(f"{run.label}: {name}", side.pieces) for name, side in zip(names, tokenizer.sides, strict=False)]


def _describe(name: str, pieces: Sequence[str]) -> tuple[str, ...]:
    ordinary = pieces[SPECIAL:]
    lengths = [len(piece.lstrip("\u2581")) for piece in ordinary]
    begin = sum(piece.startswith("\u2581") for piece in ordinary)
    longest = max(ordinary, key=len, default="").replace("\u2581", "_")
    return name, f"{len(pieces):,}", f"{begin / len(ordinary):.0%}", f"{sum(lengths) / len(ordinary):.1f}", longest


def _batches(run: Run) -> list[tuple[str, ...]]:
    """Returns a row for each shape of the last epoch whose plan the workdir has."""
    plans = run.workdir.plans.glob("[0-9]*-*")
    try:
        stats = read_stats(max(plans, key=lambda path: int(path.name.partition("-")[0])))
    except (OSError, ValueError, KeyError, TypeError):  # none, or damaged; the run makes it again
        return []
    return [
        (
            *(run.label, str(each.bucket), f"{each.batches:,}", f"{each.sentences:,}"),
            f"{each.padding_fraction:.1%}" if each.positions else "",
        )
        for each in stats
    ]
