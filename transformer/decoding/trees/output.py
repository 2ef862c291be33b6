"""Trees for people: what `transformer.translate` reads and writes with `data.target_form=tree`."""

import dataclasses
from collections.abc import Sequence

from absl import logging

from transformer.decoding.translation import Translations
from transformer.decoding.trees.linearized import print_tree, repair


def read_sentence(text: str) -> str:
    """Returns a line with the brackets of its text as treebanks write them: -LRB- and -RRB-."""
    words = {"(": "-LRB-", ")": "-RRB-"}
    return " ".join(words.get(word, word) for word in text.split())


def show_trees(sources: Sequence[str], translations: Translations, first_line: int) -> Translations:
    """Returns the translations with their trees in the format of treebanks as texts.

    An output that is not a tree of its sentence is repaired: see `repair`. Logs how many are.
    """
    shown = []
    lines = []
    for line, (source, outputs) in enumerate(zip(sources, translations, strict=True), first_line):
        words = source.split()
        trees = []
        for output in outputs:
            # The output for an empty line, or a line that cannot be translated, is empty.
            if output.tokens:
                symbols = output.text.split()
                tree = repair(symbols, len(words))
                if tree != symbols:
                    lines.append(line)
                output = dataclasses.replace(output, text=print_tree(words, tree))
            trees.append(output)
        shown.append(trees)
    if lines:
        logging.warning(
            "%d of %d outputs were not trees of their sentences and are repaired, first line %d; "
            "--decoding.well_formed=true makes all of them trees.",
            len(lines),
            sum(map(len, translations)),
            lines[0],
        )
    return shown
