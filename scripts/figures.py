"""Draws figures for papers as PDF, SVG or PNG, without a browser or a network.

    python -m scripts.figures positions --output=positions.pdf [--length=N] [--d_model=N] [--panels=heat_map,products]
    python -m scripts.figures schedule --output=schedule.pdf [--curves=512:4000,...] [--workdir DIR ...] [--steps=N]
    python -m scripts.figures smoothing --output=smoothing.pdf [--smoothing=0.4] [--supports=others,uniform]
    python -m scripts.figures masks --output=masks.pdf [--panels=padding,causal] [--sentences=4,3] [--length=N]
    python -m scripts.figures attention --workdir=DIR --source=TEXT --output=FILE [--part=cross] [--layers=2,4]
    python -m scripts.figures curves --workdir DIR DIR ... --output=FILE [--metrics=loss,bleu] [--split=train]
    python -m scripts.figures table3 --workdir=DIR --output=FILE [--absolute]

The ending of the output names its format. `scripts.charts` draws the same from Python and explains each flag.
"""

import argparse
import functools
from typing import Any

from transformer import cli

# Names in scripts.charts, which takes seconds to import
FIGURES = ("attention", "positions", "schedule", "smoothing", "masks", "curves", "table3")
PARTS = ("encoder", "decoder", "cross")
PANELS = ("heat_map", "products", "waves", "padding", "causal", "packed", "packed_causal")
SPLITS = ("valid", "train")


def main(arguments: argparse.Namespace) -> None:
    from scripts.commands import figures

    figures.main(arguments)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str, separator: str = ",") -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(separator))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be whole numbers separated by {separator!r}") from None


def _pairs(text: str) -> tuple[tuple[int, ...], ...]:
    pairs = tuple(_numbers(pair, ":") for pair in text.split(","))
    if any(len(pair) != 2 for pair in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: must be D_MODEL:WARMUP,D_MODEL:WARMUP,...")
    return pairs


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.figures", __doc__)
    add = parser.add_argument
    add("figure", choices=FIGURES, help="the figure to draw")
    add("--output", metavar="FILE", required=True, help="the file to write: .pdf, .svg or .png")
    add("--columns", type=int, choices=(1, 2), help="how many columns of a paper it is wide (2; schedule: 1)")
    group = functools.partial(_add_group, parser)
    group(
        "runs", workdir={"nargs": "+", "action": "extend", "metavar": "DIR", "help": "folder of a run, or of several"}
    )
    group(
        "attention, and positions of a run",
        checkpoint={"metavar": "best|last|STEP", "help": "the checkpoint to load (best)"},
        average={"type": int, "metavar": "N", "help": "mean of N checkpoints up to that one (1)"},
    )
    group(
        "attention",
        source={"metavar": "TEXT", "help": "the source sentence"},
        target={"metavar": "TEXT", "help": "the target sentence (the run's translation)"},
        part={"choices": PARTS, "help": "the attention to draw (encoder)"},
        layers={"type": _numbers, "metavar": "N,...", "help": "layers, from 1 (of 2,4,6 those that there are)"},
        heads={"type": _numbers, "metavar": "N,...", "help": "heads, from 1 (the first four)"},
    )
    group(
        "positions and masks",
        panels={
            "type": _names,
            "metavar": "NAME,...",
            "help": f"of {', '.join(PANELS)}",
        },
        length={"type": int, "metavar": "N", "help": "number of positions (positions: 50, masks: 9)"},
        kind={"metavar": "NAME", "help": "a value of config.model.positions (sinusoidal)"},
        d_model={"type": int, "metavar": "N", "help": "width of the encodings (128)"},
        sentences={"type": _numbers, "metavar": "N,...", "help": "tokens of the sentences of a packed row (4,3)"},
    )
    group(
        "schedule",
        curves={"type": _pairs, "metavar": "D:WARMUP,...", "help": "d_model and warm-up (512:4000,512:8000,256:4000)"},
        steps={"type": int, "metavar": "N", "help": "number of updates (20000)"},
    )
    group(
        "smoothing",
        smoothing={"type": float, "metavar": "X", "help": "config.training.label_smoothing (0.4)"},
        targets={"type": _numbers, "metavar": "N,...", "help": "target tokens, 0 is padding (2,1,0,3,3)"},
        vocab_size={"type": int, "metavar": "N", "help": "number of tokens (5)"},
        supports={"type": _names, "metavar": "NAME,...", "help": "label_smoothing_support (others,uniform)"},
    )
    group(
        "curves",
        metrics={"type": _names, "metavar": "NAME,...", "help": "of metrics.jsonl, a panel each (loss,bleu)"},
        split={"choices": SPLITS, "help": "(valid, if it has the metric)"},
    )
    group("table3", absolute={"action": "store_true", "default": None, "help": "scores, not differences from base"})
    return parser


def _add_group(parser: cli.Parser, title: str, **flags: dict[str, Any]) -> None:
    group = parser.add_argument_group(title)
    for name, options in flags.items():
        group.add_argument(f"--{name}", **options)


if __name__ == "__main__":
    cli.run(make_parser(), main)
