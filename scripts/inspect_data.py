"""Finds bad sentence pairs of a corpus with a trained model: misaligned, in other languages, copied, badly translated.

    python -m scripts.inspect_data --workdir=DIR [--reverse=DIR] [--split=train | --source=FILE --target=FILE]
        [--worst=N] [--min_tokens=N] [--exclude=FILE --share=0.05]

Pairs are ranked by their pointwise mutual information (PMI), in nats per target token: log p(target | source) minus
log p(target | empty source). It is lower for a target that is no translation of its source, however likely the target
is. With --reverse, a run of the other direction, the mean over both directions counts. The run may have been trained on
the corpus. Prints the distributions and the worst pairs. --exclude writes a list of the worst pairs, which
config.data.exclude takes: in each line a pair's number and its PMI.
"""

import argparse

from transformer import cli
from transformer.data.sources.source import SPLITS


def main(arguments: argparse.Namespace) -> None:
    from scripts.commands import inspect_data

    inspect_data.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.inspect_data", __doc__)
    parser.add_model_flags()
    parser.add_argument("--reverse", metavar="DIR", help="the same for the other direction")
    parser.add_argument("--split", choices=SPLITS, default="train", help="of the run's data (train)")
    parser.add_argument("--source", metavar="FILE", help="sources of another corpus, one a line")
    parser.add_argument("--target", metavar="FILE", help="its targets")
    parser.add_argument("--worst", metavar="N", type=int, default=20, help="pairs to print (20)")
    parser.add_argument(
        "--min_tokens", metavar="N", type=int, default=5, help="tokens of the shortest target to rank (5)"
    )
    parser.add_argument("--exclude", metavar="FILE", help="write a list of the worst pairs")
    parser.add_argument("--share", metavar="X", type=float, default=0.05, help="share of the pairs in the list (0.05)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
