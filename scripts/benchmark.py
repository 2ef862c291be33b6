"""Measures the speed of the project on this machine, beside its peers.

    python -m scripts.benchmark train [--size=base] [--peers] [--threads=N]
        [--readme=docs/performance.md]
    python -m scripts.benchmark decode [--size=base] [--peers] [--threads=N]
        [--readme=docs/performance.md]
    python -m scripts.benchmark data [--pairs=2000000]
    python -m scripts.benchmark layers [--readme=docs/paper.md]

train: target tokens per second of one training step.
decode: output tokens per second of a beam search.
data: the data pipeline with generated text: preparation, batches, and a start in the middle of
    training.
layers: the layers of the paper's Table 1, one of each kind. Exponents of length n and width d are
    fitted to time and memory. Gradients give the longest path between two positions.

--peers also measures PyTorch (train), or Hugging Face, CTranslate2 and Marian (decode), in the
environment that `make bench` makes.
"""

import argparse

from scripts import markdown
from transformer.config import cli
from transformer.support.errors import UserError

SIZES = ("small", "base")
PEERS = ".venv-bench/bin/python"
DEFAULTS = {"size": "base", "peers": None, "threads": None, "pairs": 2_000_000}  # of the flags
BENCHMARKS = {  # each with its flags
    "train": ("size", "peers", "threads"),
    "decode": ("size", "peers", "threads"),
    "data": ("pairs",),
    "layers": (),
}


def main(arguments: argparse.Namespace) -> None:
    from scripts.benchmarking.measurement import processor_kind

    what = arguments.what
    flags = BENCHMARKS[what]
    for flag in DEFAULTS.keys() - flags:
        value = getattr(arguments, flag)
        if value != DEFAULTS[flag]:
            raise UserError(f"--{flag}={value}: {what} has no such flag")

    # The table of a file is selected by task, size and kind of processor.
    name = f"{what}-{arguments.size}-{processor_kind()}" if "size" in flags else what
    markdown.check_marks(name, arguments.readme)
    # A process that measures others should not import JAX for itself.
    if what == "data":
        from scripts.benchmarking.data import measure
    elif what == "layers":
        from scripts.benchmarking.layers import measure
    else:
        from scripts.benchmarking.tasks import measure
    markdown.publish(measure(arguments), name, arguments.readme)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.benchmark", __doc__)
    parser.set_defaults(**DEFAULTS)
    parser.add_argument("what", choices=tuple(BENCHMARKS), help="what to measure")
    parser.add_argument(
        "--size", choices=SIZES, help="train, decode: the model and its batch (base)"
    )
    parser.add_argument(
        "--peers", nargs="?", const=PEERS, help=f"train, decode: measure the peers too ({PEERS})"
    )
    parser.add_number("--threads", None, "train, decode: cores of each system, at most all (all)")
    parser.add_number("--pairs", DEFAULTS["pairs"], "data: pairs to generate")
    markdown.add_flag(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
