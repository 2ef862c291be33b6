"""The work of `scripts.align`."""

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from absl import logging

import transformer
from scripts.alignment.links import Head, Links, heads_of, most_consistent, word_links, word_numbers
from scripts.alignment.pharaoh import Gold, error_rate, format_links, parse_gold
from transformer.api import Model
from transformer.compilation_cache import enable_compilation_cache
from transformer.data.sources import source as sources
from transformer.data.sources.lines import counted, read_text_file
from transformer.data.sources.stream import decode_lines
from transformer.decoding.activations import Attention
from transformer.errors import UserError

SEPARATOR = " ||| "
HEAD = re.compile(r"(\d+)\.(\d+)")


def main(arguments: argparse.Namespace) -> None:
    gold = None if arguments.gold is None else read_gold(arguments.gold)
    if arguments.sentences < 1:
        raise UserError(f"--sentences={arguments.sentences}: must be at least 1")
    enable_compilation_cache()
    model = transformer.load(arguments.workdir, arguments.checkpoint, arguments.average)
    heads = choose_heads(model, arguments.heads, arguments.sentences)
    found = []
    for number, (source, target) in enumerate(read_pairs(), start=1):
        try:
            attention = model.attention(source, target)
        except UserError as error:
            raise UserError(f"line {number}: {error}") from error
        check_words(attention, source, target, number)
        found.append(word_links(attention, heads or heads_of(attention)))
        print(format_links(found[-1]), flush=True)
    if gold is not None:
        log_error_rate(found, gold, arguments.gold)


def read_pairs() -> Iterator[tuple[str, str]]:
    """Yields the pairs of standard input. Raises UserError for a line that is none."""
    for number, line in enumerate(decode_lines(sys.stdin.buffer), start=1):
        source, separator, target = line.partition(SEPARATOR)
        if not separator:
            raise UserError(f"line {number}: has no{SEPARATOR}between source and target")
        yield source.strip(), target.strip()


def choose_heads(model: Model, names: str, sentences: int) -> list[Head]:
    """Returns the heads with these names; none to average all. Raises UserError for a head that does not exist."""
    if names == "average":
        return []
    known = heads_of(model.attention("", ""))
    if names != "best":
        found = [HEAD.fullmatch(name.strip()) for name in names.split(",")]
        heads = [Head(int(each[1]), int(each[2])) for each in found if each]
        if len(heads) < len(found) or not set(heads) <= set(known):
            last = known[-1]
            raise UserError(
                f"--heads={names}: must be best, average, or LAYER.HEAD with layers 1 to {last.layer} and heads "
                f"1 to {last.head}"
            )
        return heads
    pairs = list(zip(*sources.read_pairs(model.config.data, "valid"), strict=True))[:sentences]
    read = []
    for pair in pairs:
        with contextlib.suppress(UserError):  # too long
            read.append(model.attention(*pair))
    best, agreement = most_consistent({head: [word_links(each, [head]) for each in read] for head in known})
    share, sentences = 100 * agreement, counted(len(read), "sentence")
    logging.info("Head %s agrees with the others in %.0f %% of links (%s).", best, share, sentences)
    return [best]


def check_words(attention: Attention, source: str, target: str, line: int) -> None:
    """Warns if the tokenizer's words, whose numbers the links have, are not those between spaces."""
    for text, pieces in ((source, attention.source_pieces), (target, attention.target_output_pieces)):
        if len(set(word_numbers(pieces[:-1]).tolist())) != len(text.split()):
            message = "Line %d: links have the numbers of the tokenizer's words, which are not those between spaces: %s"
            logging.warning(message, line, text)


def read_gold(path: str) -> list[Gold]:
    """Reads annotated links. Raises UserError, with the number of the line, if a part is not a link."""
    gold = []
    for number, line in enumerate(read_text_file(Path(path)), start=1):
        try:
            gold.append(parse_gold(line))
        except ValueError as error:
            raise UserError(f"--gold={path}: line {number}: {error}") from error
    return gold


def log_error_rate(found: list[Links], gold: list[Gold], path: str) -> None:
    """Logs the alignment error rate. Raises UserError if the gold file has other lines than the input."""
    if len(gold) != len(found):
        raise UserError(f"--gold={path}: has {len(gold)} lines, must have one for each of {len(found)} pairs")
    rate = error_rate(found, gold)
    logging.info("Alignment error rate %.1f %%, precision %.1f %%, recall %.1f %%.", *(100 * each for each in rate))
