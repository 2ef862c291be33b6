"""Aligns the words of sentence pairs by the cross-attention of a trained model.

    python -m scripts.align --workdir=DIR [--heads=average|best|LAYER.HEAD,...] [--gold=FILE] < PAIRS

A line of PAIRS is "SOURCE ||| TARGET", and a line of output has its links in Pharaoh's format: "0-0 1-2" says that the
first words belong together, and the second source word to the third target word. Words are separated by spaces. Every
target word is linked to one source word.

--heads=average takes the mean weights of all heads; 2.1,2.3 those of two heads; best the head that agrees most with all
others on sentences of the validation split. With --gold, a file with a line of links for each pair, the alignment
error rate is logged.
"""

import argparse

from transformer import cli


def main(arguments: argparse.Namespace) -> None:
    from scripts.commands import align

    align.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.align", __doc__)
    parser.add_model_flags(ensemble=False)
    parser.add_argument(
        "--heads", default="average", metavar="average|best|LAYER.HEAD,...", help="heads to align by (average)"
    )
    parser.add_argument("--sentences", type=int, default=200, metavar="N", help="validation sentences for best (200)")
    parser.add_argument("--gold", metavar="FILE", help="annotated links, a line for each pair")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
