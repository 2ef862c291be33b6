"""Measures the speed of the project on this machine, beside that of its peers.

    python -m scripts.benchmark train [--size=base] [--peers] [--threads=N] [--readme=docs/performance.md]
    python -m scripts.benchmark decode [--size=base] [--peers] [--threads=N] [--readme=docs/performance.md]
    python -m scripts.benchmark startup [--readme=docs/performance.md]
    python -m scripts.benchmark data [--pairs=2000000] [--tokens=25000] [--folder=DIR] [--format=json]
    python -m scripts.benchmark layers [--readme=docs/paper.md]

train: target tokens a second of one training step. decode: output tokens a second of a beam search.
startup: seconds of `--help`, of a second quickstart until its first step, and of translating one line.
data: the data pipeline with generated text: preparation, batches, and a start in the middle of training.
layers: the layers of the paper's Table 1, one of each kind. The exponents of length n and width d are fitted to time
    and memory, and the longest path between two positions is found by gradients.

--peers also measures PyTorch (train), or Hugging Face, CTranslate2 and Marian (decode), in the environment that
`make bench` makes. --summary=README.md then writes the ratio of our fastest system to the fastest peer into the row of
this kind of processor.
"""

import argparse
import json
import pkgutil
from pathlib import Path

from scripts import markdown
from transformer import cli
from transformer.errors import UserError

SIZES = ("small", "base")
PEERS = ".venv-bench/bin/python"


COMPARED = {"size": "base", "peers": None, "threads": None, "repetitions": 9}
BENCHMARKS = {  # the function of each, which is imported when needed, and its flags with their defaults
    "train": ("scripts.benchmarking.tasks:measure_training", COMPARED),
    "decode": ("scripts.benchmarking.tasks:measure_decoding", COMPARED),
    "startup": ("scripts.benchmarking.startup:measure", {"repetitions": 5}),
    "data": ("scripts.benchmarking.data:measure", {"pairs": 2_000_000, "tokens": 25_000, "folder": None}),
    "layers": ("scripts.benchmarking.layers:measure", {"repetitions": 9}),
}
POSITIVE = ("repetitions", "pairs", "tokens")


def main(arguments: argparse.Namespace) -> None:
    what, is_json = arguments.what, arguments.format == "json"
    if is_json and arguments.readme:
        raise UserError(f"--readme={arguments.readme}: takes the table; leave --format=json out")
    options = options_of(arguments)
    if arguments.summary and (is_json or not getattr(options, "peers", None)):
        raise UserError(f"--summary={arguments.summary}: needs train or decode with --peers, and no --format=json")
    measurement = pkgutil.resolve_name(BENCHMARKS[what][0])(options)
    if is_json:
        print(json.dumps(measurement.values, indent=2))
        return
    name = f"{what}-{options.size}-{measurement.processor}" if "size" in options else what
    markdown.publish(measurement.text, name, arguments.readme)
    if arguments.summary:
        cells = {f"{what} {batch}": ratio for batch, ratio in measurement.summary.items()}
        markdown.set_cells(cells, measurement.processor, "speed", arguments.summary)


def options_of(arguments: argparse.Namespace) -> argparse.Namespace:
    """Returns the flags of the benchmark, with its defaults. Raises UserError for one that it does not have."""
    common, flags = ("what", "format", "readme", "summary", "overrides"), BENCHMARKS[arguments.what][1]
    given = {name: value for name, value in vars(arguments).items() if name not in common and value is not None}
    for name, value in given.items():
        if name not in flags:
            others = ", ".join(f"--{flag}" for flag in flags)
            raise UserError(f"--{name}={value}: {arguments.what} has no such flag; it has {others}")
        if name in POSITIVE and value < 1:
            raise UserError(f"--{name}={value}: must be at least 1")
    return argparse.Namespace(**{**flags, **given})


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.benchmark", __doc__)
    parser.add_argument("what", choices=tuple(BENCHMARKS), help="what to measure")
    parser.add_argument("--size", choices=SIZES, help="train, decode: the model and its batch (base)")
    parser.add_argument(
        "--peers", metavar="PYTHON", nargs="?", const=PEERS, help=f"train, decode: measure the peers too ({PEERS})"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="train, decode: cores of each system (all)")
    parser.add_argument("--repetitions", type=int, metavar="N", help="of each measurement; the median counts (9 or 5)")
    parser.add_argument("--pairs", type=int, metavar="N", help="data: pairs to generate (2000000)")
    parser.add_argument("--tokens", type=int, metavar="N", help="data: batch.tokens (25000)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="data: folder of text and corpus (a temporary one)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="output format (table)")
    parser.add_argument("--readme", metavar="FILE", help="write the table into this file, between its marks")
    parser.add_argument(
        "--summary", metavar="FILE", help="train, decode: write the ratios into the table `speed` of this file"
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
