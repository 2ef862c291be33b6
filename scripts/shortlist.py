"""Learns a lexical shortlist from the training pairs of a run, for beam search.

    python -m scripts.shortlist --workdir=DIR [--pairs=200000]
    python -m transformer.translate --workdir=DIR --decoding.shortlist=32

With a shortlist, the search considers only some target tokens for each sentence. The shortlist has
the likeliest translations of each source token, by IBM Model 1 (Brown et al. 1993), and the most
frequent target tokens. The command writes it to DIR/shortlist.npz. For several values of
decoding.shortlist, it logs the fraction of the tokens of validation references that are candidates
for their sentences.
"""

import argparse
from pathlib import Path

from absl import logging

from transformer.config import cli
from transformer.support.errors import UserError
from transformer.workdir import open_existing


def main(arguments: argparse.Namespace) -> None:
    from scripts.alignment import translations
    from transformer.data.corpus import corpus
    from transformer.data.tokenizers.tokenizer import Tokenizer
    from transformer.training.objectives import OBJECTIVES

    workdir, config = open_existing(Path(arguments.workdir))
    if "shortlist" not in OBJECTIVES[config.training.objective].options:
        raise UserError(
            f"--workdir={workdir.path}: training.objective={config.training.objective} has no "
            "shortlist, which is for models that translate token by token"
        )
    # The links are between the tokens of the run, with its exclusions and mixtures.
    tokenizer = Tokenizer.load(workdir.path, config)
    train, valid = (corpus.prepare(config, tokenizer, split) for split in ("train", "valid"))
    shortlist = translations.learn(train, arguments.pairs, tokenizer)
    shortlist.save(workdir.shortlist, tokenizer)
    logging.info("%s: learned. The candidates of the validation split:", workdir.shortlist)
    # The user chooses a size by the fraction of target tokens that the search can still generate.
    for size in translations.SIZES:
        covered, candidates = translations.coverage(shortlist, size, valid)
        logging.info(
            "decoding.shortlist=%d: %.2f %% of the references' tokens; "
            "%.0f of %d tokens are candidates of a sentence.",
            size,
            100 * covered,
            candidates,
            shortlist.vocab_size,
        )
    print(workdir.shortlist)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.shortlist", __doc__)
    parser.add_argument("--workdir", required=True, help="workdir of the run")
    parser.add_number("--pairs", 200_000, "most training pairs to learn from")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
