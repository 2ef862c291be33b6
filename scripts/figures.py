"""Draws figures for papers as PDF, SVG or PNG, without a browser or a network.

    python -m scripts.figures positions --output=positions.pdf [--length=N] [--d_model=N]
        [--panels=heat_map,products]
    python -m scripts.figures schedule --output=schedule.pdf [--curves=512:4000,...] [--steps=N]
    python -m scripts.figures smoothing --output=smoothing.pdf [--smoothing=0.4]
    python -m scripts.figures masks --output=masks.pdf
    python -m scripts.figures coordinates --output=coordinates.pdf

Figures of runs need their workdirs:

    python -m scripts.figures attention --workdir=DIR --source=TEXT --output=FILE [--part=cross]
        [--layers=2,4]
    python -m scripts.figures curves --workdir DIR DIR ... --output=FILE [--metrics=loss,bleu]
        [--split=train]
    python -m scripts.figures table3 --workdir=DIR --output=FILE
    python -m scripts.figures mup --workdir SWEEP SWEEP ... --output=FILE

The ending of the output names its format. `scripts.charts` draws the same figures from Python and
explains each flag.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.config import cli
from transformer.support.errors import UserError

# Names in scripts.charts, whose import takes seconds.
PARTS = ("encoder", "decoder", "cross")
PANELS = ("heat_map", "products")
SPLITS = ("valid", "train")
# The flags of each figure.
FLAGS = {
    "attention": (
        "workdir",
        "checkpoint",
        "average",
        "source",
        "target",
        "part",
        "layers",
        "heads",
    ),
    "coordinates": (),
    "curves": ("workdir", "metrics", "split"),
    "masks": (),
    "mup": ("workdir",),
    "positions": ("kind", "length", "d_model", "panels"),
    "schedule": ("curves", "steps"),
    "smoothing": ("smoothing",),
    "table3": ("workdir",),
}
REQUIRED = ("workdir", "source")  # by the figures that have them


def main(arguments: argparse.Namespace) -> None:
    options = {name: value for name, value in vars(arguments).items() if value is not None}
    figure = options.pop("figure")
    output = Path(options.pop("output"))
    del options["overrides"]
    from scripts.charts.theme import check_output, write

    # Before anything is computed.
    check_output(output)
    check_flags(figure, options)
    write(draw(figure, **options), output)


def check_flags(figure: str, options: dict[str, Any]) -> None:
    """Raises UserError for flags that the figure does not have, and for missing ones."""
    flags = ("columns", *FLAGS[figure])
    for name in options:
        if name not in flags:
            names = ", ".join(f"--{flag}" for flag in flags)
            raise UserError(f"--{name}: the figure {figure} has no such flag; it has {names}")
    for name in REQUIRED:
        if name in flags and name not in options:
            raise UserError(f"--{name}: the figure {figure} needs it")


def draw(figure: str, workdir: Sequence[str] = (), **options: Any) -> Any:
    """Returns the chart of that name. `workdir` has the runs that it shows, if any."""
    from scripts import charts

    if figure in ("curves", "mup"):
        return getattr(charts, figure).draw(workdir, **options)
    if len(workdir) > 1:
        raise UserError(
            f"--workdir={' '.join(workdir)}: the figure {figure} shows one run; name one folder"
        )
    # `draw_run` draws the figure of a run. The `draw` of table3 reads a folder too.
    module = getattr(charts, figure)
    return getattr(module, "draw_run", module.draw)(*workdir, **options)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str, separator: str = ",") -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(separator))
    except ValueError:
        message = f"{text!r}: must be whole numbers separated by {separator!r}"
        raise argparse.ArgumentTypeError(message) from None


def _pairs(text: str) -> tuple[tuple[int, ...], ...]:
    pairs = tuple(_numbers(pair, ":") for pair in text.split(","))
    if any(len(pair) != 2 for pair in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: must be D_MODEL:WARMUP,D_MODEL:WARMUP,...")
    return pairs


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.figures", __doc__)
    add = parser.add_argument
    add("figure", choices=tuple(FLAGS), help="the figure to draw")
    add("--output", required=True, help="the file to write: .pdf, .svg or .png")
    add(
        "--columns",
        type=int,
        choices=(1, 2),
        help="how many columns of a paper it is wide (2; schedule: 1)",
    )
    add(
        "--workdir",
        nargs="+",
        help="attention, curves, mup, table3: the folder of a run, or of several curves",
    )
    add("--checkpoint", metavar="best|last|STEP", help="attention: the checkpoint to load (best)")
    add("--average", type=int, help="attention: mean of N checkpoints up to that one (1)")
    add("--source", help="attention: the source sentence")
    add("--target", help="attention: the target sentence (the run's translation)")
    add("--part", choices=PARTS, help="attention: the attention to draw (encoder)")
    add(
        "--layers",
        type=_numbers,
        metavar="N,...",
        help="attention: layers, from 1 (of 2,4,6 those that there are)",
    )
    add("--heads", type=_numbers, metavar="N,...", help="attention: heads, from 1 (the first four)")
    add("--panels", type=_names, metavar="NAME,...", help=f"positions: of {', '.join(PANELS)}")
    add("--length", type=int, help="positions: number of positions (50)")
    add("--kind", help="positions: a value of config.model.positions (sinusoidal)")
    add("--d_model", type=int, help="positions: width of the encodings (128)")
    add(
        "--curves",
        type=_pairs,
        metavar="D:WARMUP,...",
        help="schedule: d_model and warm-up (512:4000,512:8000,256:4000)",
    )
    add("--steps", type=int, help="schedule: number of updates (20000)")
    add("--smoothing", type=float, help="smoothing: config.training.label_smoothing (0.4)")
    add(
        "--metrics",
        type=_names,
        metavar="NAME,...",
        help="curves: of metrics.jsonl, a panel each (loss,bleu)",
    )
    add("--split", choices=SPLITS, help="curves: the split to draw (valid, if it has the metric)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
