"""Links between the words of a sentence pair, from cross-attention and in Pharaoh's format.

A line in Pharaoh's format is SOURCE-TARGET links with spaces between. Words are numbered from 0.
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from absl import logging
from jaxtyping import Float, Int

from transformer.config.types import Config, names_in
from transformer.data.corpus.annotations import number_words, parse_links, word_starts
from transformer.data.sources.lines import read_text_file
from transformer.decoding.forced_decoding import Attention
from transformer.support.errors import UserError

Head = tuple[int, int]  # (layer, head), from 0
Links = frozenset[tuple[int, int]]  # (source word, target word), from 0
# The sure and the possible links of an annotated pair. Sure links are also possible.
Gold = tuple[Links, Links]


def check_words(attention: Attention, texts: Sequence[str]) -> None:
    """Raises UserError if a text and its tokens have different numbers of words."""
    for text, words in zip(texts, _word_numbers(attention), strict=True):
        num_spaced = len([word for word in text.split(" ") if word])
        num_marked = words.max(initial=-1) + 1
        if num_spaced != num_marked:
            raise UserError(
                f"{text!r:.60} has {num_spaced} words between spaces and {num_marked} in its "
                "tokens; replace no-break spaces and spacing accents such as \u00b4, which become "
                "spaces"
            )


def word_links(attention: Attention, heads: Sequence[Head]) -> Links:
    """Returns a link from each target word to the source word with the largest attention weight.

    The weight between two words is the sum of the weights between their tokens.
    """
    source_words, target_words = _word_numbers(attention)
    if not len(source_words) or not len(target_words):
        return frozenset()
    weights = mean_weights(attention, heads)
    # Sum over the tokens of each word by matmuls with membership matrices of 0 and 1.
    source_membership, target_membership = (
        (words[:, None] == np.arange(words[-1] + 1)).astype(weights.dtype)  # (tokens, words)
        for words in (source_words, target_words)
    )
    by_word = target_membership.T @ (weights @ source_membership)  # (target words, source words)
    return frozenset((int(source), target) for target, source in enumerate(by_word.argmax(1)))


def mean_weights(attention: Attention, heads: Sequence[Head]) -> Float[np.ndarray, "T S"]:
    """Returns the heads' mean cross-attention between tokens, without tag and end-of-sentence."""
    weights = np.mean([attention.cross[head] for head in heads], axis=0)
    return weights[:-1, attention.tag_length : -1]


def _word_numbers(attention: Attention) -> list[Int[np.ndarray, " _"]]:
    """Returns the word of each source and target token, without tag and end-of-sentence."""
    sides = attention.source_pieces[attention.tag_length : -1], attention.target_output_pieces[:-1]
    return [number_words(word_starts(pieces)) for pieces in sides]


def choose_heads(model_config: Config, names: str) -> list[Head]:
    """Returns the heads of cross-attention that `--heads` names.

    Raises UserError for a head that does not exist.
    """
    # Names count layers and heads from 1.
    layers = range(model_config.num_decoder_layers or model_config.num_layers)
    heads = {
        f"{layer + 1}.{head + 1}": (layer, head)
        for layer, head in itertools.product(layers, range(model_config.num_heads))
    }
    selection = list(heads) if names == "average" else names_in(names)
    if not selection or not set(selection) <= set(heads):
        raise UserError(
            f"--heads={names}: must be average, or LAYER.HEAD from 1.1 to {list(heads)[-1]}"
        )
    return [heads[name] for name in selection]


def format_links(links: Links) -> str:
    by_target = sorted(links, key=lambda link: link[::-1])
    return " ".join(f"{source}-{target}" for source, target in by_target)


def read_gold(path: Path) -> list[Gold]:
    """Reads annotated links. Raises UserError, with the line, for a part that is not a link.

    Warns if the words seem to be numbered from 1, as in many annotated test sets.
    """
    gold = []
    for number, line in enumerate(read_text_file(path), start=1):
        links = parse_links(line, f"--gold={path}, line {number}")
        sure = frozenset((source, target) for source, target, is_sure in links if is_sure)
        possible = frozenset((source, target) for source, target, _ in links)
        gold.append((sure, possible))
    # Some test sets number words from 1.
    numbers = {number for _, possible in gold for link in possible for number in link}
    if numbers and 0 not in numbers:
        logging.warning(
            "--gold=%s: no link has a word 0; number the words from 0, not from 1.", path
        )
    return gold


def error_rate(alignments: Sequence[Links], gold: Iterable[Gold]) -> tuple[float, float, float]:
    """Returns the alignment error rate (Och and Ney 2003), precision and recall.

    With links A, sure links S and possible links P, the error rate is
    1 - (|A & S| + |A & P|) / (|A| + |S|).
    """
    num_links = sum(map(len, alignments))
    num_sure = in_sure = in_possible = 0
    for links, (sure, possible) in zip(alignments, gold, strict=True):
        num_sure += len(sure)
        in_sure += len(links & sure)
        in_possible += len(links & possible)
    precision = in_possible / max(num_links, 1)
    recall = in_sure / max(num_sure, 1)
    rate = 1 - (in_sure + in_possible) / max(num_links + num_sure, 1)
    return rate, precision, recall
