"""The work of `scripts.figures`."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import transformer
from scripts import charts
from scripts.charts.files import check_output, write
from transformer.api import check_text
from transformer.cache import enable_compilation_cache
from transformer.errors import UserError
from transformer.workdir import split_names


class Figure(NamedTuple):
    """A figure: what draws it, given its flags as keywords, the flags, and those that it needs."""

    draw: Callable[..., Any]
    flags: Sequence[str]
    needs: Sequence[str] = ()


def main(arguments: argparse.Namespace) -> None:
    output = Path(arguments.output)
    check_output(output)
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    given = {name: value for name, value in given.items() if name not in ("figure", "output", "overrides")}
    figure = FIGURES[arguments.figure]
    for name in given:
        if name not in (*figure.flags, "columns"):
            flags = ", ".join(f"--{flag}" for flag in figure.flags)
            raise UserError(f"--{name}: the figure {arguments.figure} has no such flag; it has {flags}")
    for name in figure.needs:
        if name not in given:
            raise UserError(f"--{name}: the figure {arguments.figure} needs it")
    write(figure.draw(**given), output)


def draw_attention(
    workdir: Sequence[str],
    source: str,
    target: str | None = None,
    checkpoint: str = "best",
    average: int = 1,
    **options: Any,
) -> Any:
    """Returns the attention of a run over a sentence pair. Without a target, that is the run's own translation."""
    for name, text in (("--source", source), ("--target", target or "")):
        check_text(text, name)
    enable_compilation_cache()
    model = transformer.load(_single(workdir), checkpoint, average)
    if target is None:
        target = model.translate([source])[0][0].text
    return charts.attention.draw(model.attention(source, target), **options)


def draw_positions(
    workdir: Sequence[str] | None = None, checkpoint: str = "best", average: int = 1, **options: Any
) -> Any:
    """Returns the positions of a run, or those that the flags describe."""
    if workdir is None:
        return charts.positions.draw(**options)
    for name in ("kind", "d_model"):
        if name in options:
            raise UserError(f"--{name}: is given by --workdir; leave one of them out")
    lengths = {name: value for name, value in options.items() if name == "length"}
    vectors = charts.positions.of_run(_single(workdir), checkpoint, average, **lengths)
    return charts.positions.draw(vectors=vectors, **options)


def draw_schedule(workdir: Sequence[str] | None = None, **options: Any) -> Any:
    """Returns the schedules of runs, or those that the flags describe."""
    if workdir is None:
        return charts.schedule.draw(**options)
    if "curves" in options:
        raise UserError("--curves: is given by --workdir; leave one of them out")
    return charts.schedule.draw_runs(_folders(workdir), **options)


def draw_curves(workdir: Sequence[str], **options: Any) -> Any:
    return charts.curves.draw(_folders(workdir), **options)


def draw_table3(workdir: Sequence[str], absolute: bool = False, **options: Any) -> Any:
    return charts.table3.draw(_single(workdir), relative=not absolute, **options)


CHECKPOINT = ("workdir", "checkpoint", "average")
FIGURES = {
    "attention": Figure(
        draw_attention, (*CHECKPOINT, "source", "target", "part", "layers", "heads"), ("workdir", "source")
    ),
    "positions": Figure(draw_positions, (*CHECKPOINT, "kind", "length", "d_model", "panels")),
    "schedule": Figure(draw_schedule, ("workdir", "curves", "steps")),
    "smoothing": Figure(charts.smoothing.draw, ("smoothing", "targets", "vocab_size", "supports")),
    "masks": Figure(charts.masks.draw, ("panels", "sentences", "length")),
    "curves": Figure(draw_curves, ("workdir", "metrics", "split"), ("workdir",)),
    "table3": Figure(draw_table3, ("workdir", "absolute"), ("workdir",)),
}


def _folders(workdirs: Sequence[str]) -> list[str]:
    return [name for names in workdirs for name in split_names(names)]


def _single(workdirs: Sequence[str]) -> str:
    folders = _folders(workdirs)
    if len(folders) > 1:
        raise UserError(f"--workdir={','.join(folders)}: the figure shows one run; name one folder")
    return folders[0]
