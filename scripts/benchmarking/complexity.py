"""The paper's Table 1, measured: exponents of length n and width d in time and memory, and longest paths."""

import argparse
from collections.abc import Sequence
from typing import Any

from absl import logging

from scripts.benchmarking import layers
from scripts.benchmarking.report import Report

# Where the terms of Table 1 dominate: n far above d for exponents of n, d far above n for those of d.
LENGTHS, WIDTH = (512, 1024, 2048), 16
WIDTHS, LENGTH = (256, 512, 1024), 32
ROWS = {"lengths": 4, "widths": 16}
PATH_LENGTH, PATH_WIDTH = 128, 4
HEADER = (
    *("layer", "complexity in Table 1", "exponent of n: stated", "time", "memory"),
    *("exponent of d: stated", "time", "longest path: stated", f"of {PATH_LENGTH} positions"),
)
NAMES = (
    *("layer", "complexity", "exponent_of_n", "exponent_of_n_in_time", "exponent_of_n_in_memory"),
    *("exponent_of_d", "exponent_of_d_in_time", "longest_path", f"longest_path_of_{PATH_LENGTH}"),
)


def measure(arguments: argparse.Namespace) -> Report:
    found = [values_of(name, kind, arguments.repetitions) for name, kind in layers.KINDS.items()]
    rows = [[f"{value:.2f}" if isinstance(value, float) else str(value) for value in values] for values in found]
    return Report([HEADER, *rows], (), [dict(zip(NAMES, values, strict=True)) for values in found])


def values_of(name: str, kind: layers.Kind, repetitions: int) -> Sequence[Any]:
    logging.info("Measuring %s.", name)
    by_length = [layers.measure(kind, n, WIDTH, ROWS["lengths"], repetitions) for n in LENGTHS]
    by_width = [layers.measure(kind, LENGTH, d, ROWS["widths"], repetitions) for d in WIDTHS]
    of_n, of_d = kind.exponents
    return (
        name,
        kind.complexity,
        of_n,
        layers.fitted_exponent(LENGTHS, [cost.seconds for cost in by_length]),
        layers.fitted_exponent(LENGTHS, [cost.bytes for cost in by_length]),
        of_d,
        layers.fitted_exponent(WIDTHS, [cost.seconds for cost in by_width]),
        kind.path,
        layers.longest_path(kind, PATH_LENGTH, PATH_WIDTH),
    )
