"""Learns a lexical shortlist from the training pairs of a run: the target tokens that a beam search considers.

    python -m scripts.shortlist --workdir=DIR [--pairs=200000]
    python -m transformer.translate --workdir=DIR --decoding.shortlist=32

The shortlist has the likeliest translations of each source token, by IBM Model 1 (Brown et al. 1993), and the most
frequent target tokens. It is written to DIR/shortlist.npz. For several values of decoding.shortlist, the log has the
share of the validation references' tokens that are among the candidates of their sentences.
"""

import argparse

from transformer import cli


def main(arguments: argparse.Namespace) -> None:
    from scripts.commands import shortlist

    shortlist.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.shortlist", __doc__)
    parser.add_argument("--workdir", required=True, metavar="DIR", help="workdir of the run")
    parser.add_argument(
        "--pairs", type=int, default=200_000, metavar="N", help="training pairs to learn from, at most (200000)"
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
