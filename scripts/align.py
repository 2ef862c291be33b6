"""Aligns the words of sentence pairs by the cross-attention of a trained model.

    python -m scripts.align --workdir=DIR [--heads=average|LAYER.HEAD,...] [--gold=FILE]
        [--source_language=CODE] [--target_language=CODE] < PAIRS

A line of PAIRS is "SOURCE ||| TARGET" with spaces between words. The output has a line of links for
each pair, in Pharaoh's format: 0-0 links the first words of both sides, and 1-2 links the second
source word to the third target word. Every target word has a link to one source word.

--heads=average takes the mean weights of all heads, --heads=2.1,2.3 the mean of two heads. The
default is training.guided_heads of the run, or average without guided heads. --gold names a file
with a line of annotated links for each pair; the log then has the alignment error rate.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from absl import logging

import transformer
from transformer.config import cli
from transformer.data.sources.lines import decode_lines
from transformer.support.errors import UserError

SEPARATOR = " ||| "


def main(arguments: argparse.Namespace) -> None:
    from scripts.alignment import links
    from transformer.support.cache import enable_compilation_cache

    # A damaged file of links is an error before the model is loaded.
    gold = None if arguments.gold is None else links.read_gold(Path(arguments.gold))
    enable_compilation_cache()
    model = transformer.load(arguments.workdir, arguments.checkpoint, arguments.average)
    if model.config.tokenizer.kind == "word":
        raise UserError(
            "tokenizer.kind=word: unknown words in a row are one token, so that links cannot count "
            "words"
        )
    model = model.with_languages(arguments.source_language, arguments.target_language)
    # Guided heads were trained to align.
    names = arguments.heads or model.config.training.guided_heads or "average"
    heads = links.choose_heads(model.config.model, names)

    # Links of a pair are printed before the next pair is read. Errors name the line of the pair.
    alignments = []
    for number, (source, target) in enumerate(read_pairs(), start=1):
        try:
            attention = model.attention(source, target)
            links.check_words(attention, (source, target))
        except UserError as error:
            raise UserError(f"line {number}: {error}") from error
        alignment = links.word_links(attention, heads)
        alignments.append(alignment)
        print(links.format_links(alignment), flush=True)

    if gold is not None:
        if len(gold) != len(alignments):
            raise UserError(
                f"--gold={arguments.gold}: has {len(gold)} lines, must have one for each of "
                f"{len(alignments)} pairs"
            )
        percent = [100 * rate for rate in links.error_rate(alignments, gold)]
        logging.info("Alignment error rate %.1f %%, precision %.1f %%, recall %.1f %%.", *percent)


def read_pairs() -> Iterator[tuple[str, str]]:
    """Yields the pairs of standard input. Raises UserError for a line without a separator."""
    for number, line in enumerate(decode_lines(sys.stdin.buffer), start=1):
        # A side may be empty.
        source, separator, target = f" {line} ".partition(SEPARATOR)
        if not separator:
            raise UserError(f"line {number}: has no{SEPARATOR}between source and target")
        yield source.strip(), target.strip()


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.align", __doc__)
    parser.add_model_flags(ensemble=False, languages=True)
    parser.add_argument(
        "--heads",
        metavar="average|LAYER.HEAD,...",
        help="heads to align by (guided ones or average)",
    )
    parser.add_argument("--gold", help="annotated links, a line for each pair")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
