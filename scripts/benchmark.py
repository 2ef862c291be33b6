"""Measures the speed of the project on this machine, beside that of its peers.

    python -m scripts.benchmark train [--size=base] [--peers] [--threads=N] [--readme=docs/performance.md]
    python -m scripts.benchmark decode [--size=base] [--peers] [--threads=N] [--readme=docs/performance.md]
    python -m scripts.benchmark data [--pairs=2000000]
    python -m scripts.benchmark layers [--readme=docs/paper.md]

train: target tokens a second of one training step. decode: output tokens a second of a beam search.
data: the data pipeline with generated text: preparation, batches, and a start in the middle of training.
layers: the layers of the paper's Table 1, one of each kind. The exponents of length n and width d are fitted to time
    and memory, and the longest path between two positions is found by gradients.

--peers also measures PyTorch (train), or Hugging Face, CTranslate2 and Marian (decode), in the environment that
`make bench` makes.
"""

import argparse
import pkgutil

from scripts import markdown
from transformer import cli

SIZES = ("small", "base")
PEERS = ".venv-bench/bin/python"
BENCHMARKS = {  # the function of each, which is imported when needed
    **dict.fromkeys(("train", "decode"), "scripts.benchmarking.speeds:measure"),
    "data": "scripts.benchmarking.data:measure",
    "layers": "scripts.benchmarking.layers:measure",
}


def main(arguments: argparse.Namespace) -> None:
    measurement = pkgutil.resolve_name(BENCHMARKS[arguments.what])(arguments)
    is_speed = arguments.what in ("train", "decode")
    name = f"{arguments.what}-{arguments.size}-{measurement.processor}" if is_speed else arguments.what
    markdown.publish(measurement.text, name, arguments.readme)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.benchmark", __doc__)
    parser.add_argument("what", choices=tuple(BENCHMARKS), help="what to measure")
    parser.add_argument("--size", choices=SIZES, default="base", help="train, decode: the model and its batch (base)")
    peers = {"metavar": "PYTHON", "nargs": "?", "const": PEERS}
    parser.add_argument("--peers", help=f"train, decode: measure the peers too ({PEERS})", **peers)
    parser.add_argument(
        "--threads", type=cli.at_least(1), metavar="N", help="train, decode: cores of each (all, and at most all)"
    )
    parser.add_argument("--pairs", type=int, default=2_000_000, metavar="N", help="data: pairs to generate (2000000)")
    parser.add_argument("--readme", metavar="FILE", help="write the table into this file, between its marks")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
