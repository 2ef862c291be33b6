"""The work of `scripts.draw_profile`."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from jax.profiler import ProfileData

from transformer import files
from transformer.errors import UserError
from transformer.run.profiling import STEP_NAME
from transformer.workdir import open_existing

STEPS, LOOP = "launching steps", "training loop"  # rows of the host
COLORS = {STEP_NAME: "#9ecae1", "wait for data": "#d62728", "compiling": "#9467bd"}
COLORS |= {"validating": "#ff7f0e", "saving": "#8c564b"}
BUSY = "#2ca02c"
OPERATIONS = "XLA Ops"  # the line of a TPU with an event for each operation
CPU_WORKERS = "XLAEigen"  # in the names of the threads that compute on CPUs
WIDTH, LABELS, ROW, GAP = 1000, 170, 26, 8  # in pixels


class Span(NamedTuple):
    """A part of a row, in nanoseconds."""

    begin: float
    end: float
    color: str
    text: str


def main(arguments: argparse.Namespace) -> None:
    workdir, _ = open_existing(Path(arguments.workdir))
    traces = sorted(workdir.profile.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise UserError(f"--workdir={workdir.path}: has no trace; train with --profile=FROM:TO")
    files.write_text(Path(arguments.output), draw(rows(ProfileData.from_file(str(traces[-1])))))


def rows(profile: ProfileData) -> dict[str, list[Span]]:
    """Returns the spans of the training loop, and of each device or thread that computes, by name."""
    found: dict[str, list[Span]] = {STEPS: [], LOOP: []}
    busy: dict[str, list[tuple[float, float]]] = {}
    for plane in profile.planes:
        on_device, lines = plane.name.startswith("/device:"), list(plane.lines)
        # On TPUs, events of the other lines span whole steps and programs, gaps included. GPUs have only streams.
        operations = [line for line in lines if line.name == OPERATIONS] if on_device else []
        for line in operations or lines:
            if on_device or CPU_WORKERS in line.name:
                name = plane.name.removeprefix("/device:") if on_device else f"CPU thread {len(busy) + 1}"
                busy.setdefault(name, []).extend((event.start_ns, event.end_ns) for event in line.events)
                continue
            for event in line.events:
                if event.name == STEP_NAME:
                    number = dict(event.stats)["step_num"]
                    found[STEPS].append(Span(event.start_ns, event.end_ns, COLORS[STEP_NAME], str(number)))
                elif event.name in COLORS:
                    found[LOOP].append(Span(event.start_ns, event.end_ns, COLORS[event.name], ""))
    begin, end = extent(found[STEPS] + found[LOOP] + [Span(*each, "", "") for each in sum(busy.values(), [])])
    pixel = (end - begin) / (WIDTH - LABELS)
    return found | {name: [Span(*each, BUSY, "") for each in union(each, pixel)] for name, each in busy.items()}


def extent(spans: Iterable[Span]) -> tuple[float, float]:
    spans = list(spans)
    return min(span.begin for span in spans), max(span.end for span in spans)


def union(intervals: Iterable[tuple[float, float]], gap: float) -> Iterator[tuple[float, float]]:
    """Yields the union of the intervals, in which gaps shorter than `gap` are closed."""
    current: tuple[float, float] | None = None
    for begin, end in sorted(intervals):
        if current is not None and begin <= current[1] + gap:
            current = current[0], max(current[1], end)
            continue
        if current is not None:
            yield current
        current = begin, end
    if current is not None:
        yield current


def draw(spans: dict[str, Sequence[Span]]) -> str:
    """Returns an SVG picture with one row for each name, a legend, and the time in milliseconds."""
    begin, end = extent(span for row in spans.values() for span in row)
    length = WIDTH - LABELS - 10
    scale = length / (end - begin)
    height = (len(spans) + 2) * (ROW + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
    ]
    for number, (name, row) in enumerate(spans.items()):
        y = GAP + number * (ROW + GAP)
        parts.append(label(10, y, name))
        labels, free = [], 0.0  # on top of the rectangles; the first x that no label covers
        for span in row:
            x, width = LABELS + (span.begin - begin) * scale, max((span.end - span.begin) * scale, 1.0)
            parts.append(rectangle(x, y, width, span.color))
            if span.text and x >= free:
                labels.append(label(x + 3, y, span.text))
                free = x + 5 + 8 * len(span.text)
        parts += labels
    y = GAP + len(spans) * (ROW + GAP)
    for tick, anchor in enumerate(["start", *["middle"] * 4, "end"]):
        milliseconds = tick * (end - begin) / 5 / 1e6
        parts.append(label(LABELS + tick * length / 5, y, f"{milliseconds:.0f} ms", anchor))
    for number, (name, color) in enumerate((COLORS | {"device computes": BUSY}).items()):
        x = 10 + number * 160
        parts += [rectangle(x, y + ROW + GAP, 16, color), label(x + 22, y + ROW + GAP, name)]
    return "".join([*parts, "</svg>\n"])


def rectangle(x: float, y: float, width: float, color: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="{color}"/>\n'


def label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y + 17}" text-anchor="{anchor}">{escape(text)}</text>\n'
