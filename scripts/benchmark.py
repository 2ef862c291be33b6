"""Measures parts of the project on this machine.

    python -m scripts.benchmark layers [--readme=docs/paper.md]

layers: the layers of the paper's Table 1, one of each kind. The exponents of length n and width d are fitted to time
    and memory, and the longest path between two positions is found by gradients.
"""

import argparse
from collections.abc import Sequence

from absl import logging

from scripts import markdown
from scripts.benchmarking import layers
from transformer import cli

# Where the terms of Table 1 dominate: n far above d for exponents of n, d far above n for those of d.
LENGTHS, WIDTH = (512, 1024, 2048), 16
WIDTHS, LENGTH = (256, 512, 1024), 32
ROWS = {"lengths": 4, "widths": 16}
PATH_LENGTH, PATH_WIDTH = 128, 4
HEADER = (
    *("layer", "complexity in Table 1", "exponent of n: stated", "time", "memory"),
    *("exponent of d: stated", "time", "longest path: stated", f"of {PATH_LENGTH} positions"),
)


def main(arguments: argparse.Namespace) -> None:
    rows = [HEADER, *(row_of(name, kind, arguments.repetitions) for name, kind in layers.KINDS.items())]
    markdown.publish(markdown.table(rows), "layers", arguments.readme)


def row_of(name: str, kind: layers.Kind, repetitions: int) -> Sequence[str]:
    logging.info("Measuring %s.", name)
    by_length = [layers.measure(kind, n, WIDTH, ROWS["lengths"], repetitions) for n in LENGTHS]
    by_width = [layers.measure(kind, LENGTH, d, ROWS["widths"], repetitions) for d in WIDTHS]
    of_n, of_d = kind.exponents
    return (
        name,
        kind.complexity,
        str(of_n),
        f"{layers.fitted_exponent(LENGTHS, [cost.seconds for cost in by_length]):.2f}",
        f"{layers.fitted_exponent(LENGTHS, [cost.bytes for cost in by_length]):.2f}",
        str(of_d),
        f"{layers.fitted_exponent(WIDTHS, [cost.seconds for cost in by_width]):.2f}",
        kind.path,
        str(layers.longest_path(kind, PATH_LENGTH, PATH_WIDTH)),
    )


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.benchmark", __doc__)
    parser.add_argument("what", choices=("layers",), help="what to measure")
    parser.add_argument("--repetitions", type=int, default=9, help="of each measurement; the median counts (9)")
    parser.add_argument("--readme", metavar="FILE", help="write the table into this file, between its marks")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
