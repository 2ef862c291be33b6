"""Links between the words of a sentence pair: from cross-attention, and as text in the format of
Pharaoh.

A line in that format has SOURCE-TARGET links, separated by spaces, with words numbered from 0.
"""

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
# the sure and the possible links of an annotated pair; the sure ones are possible as well
Gold = tuple[Links, Links]


def check_words(attention: Attention, texts: Sequence[str]) -> None:
    """Raises UserError if the source or the target has another number of words between spaces than
    in its tokens.
    """
    for text, words in zip(texts, _words(attention), strict=True):
        spaced = len([word for word in text.split(" ") if word])
        marked = words.max(initial=-1) + 1
        if spaced != marked:
            advice = (
                "replace no-break spaces and spacing accents such as \u00b4, which become spaces"
            )
            raise UserError(
                f"{text!r:.60} has {spaced} words between spaces and {marked} in its tokens; {advice}"
            )


def word_links(attention: Attention, heads: Sequence[Head]) -> Links:
    """Returns a link from each target word to the source word with the largest sum of weights over
    its tokens.
    """
    source_words, target_words = _words(attention)
    if not len(source_words) or not len(target_words):
        return frozenset()
    weights = mean_weights(attention, heads)
    source_membership, target_membership = (
        (words[:, None] == np.arange(words[-1] + 1)).astype(weights.dtype)
        for words in (source_words, target_words)
    )
    by_word = target_membership.T @ (weights @ source_membership)
    return frozenset((int(source), target) for target, source in enumerate(by_word.argmax(1)))


def mean_weights(attention: Attention, heads: Sequence[Head]) -> Float[np.ndarray, "T S"]:
    """Returns the heads' mean cross-attention between tokens, without tag and end-of-sentence."""
    weights = np.mean([attention.cross[head] for head in heads], axis=0)
    return weights[:-1, attention.tag_length : -1]


def _words(attention: Attention) -> list[Int[np.ndarray, " _"]]:
    """Returns the number of the word of each source and target token, without the tag and
    end-of-sentence.
    """
    sides = attention.source_pieces[attention.tag_length : -1], attention.target_output_pieces[:-1]
    return [number_words(word_starts(pieces)) for pieces in sides]


def choose_heads(config: Config, names: str) -> list[Head]:
    """Returns the heads of cross-attention that `--heads` names.

    Raises UserError for a head that does not exist.
    """
    layers = range(config.num_decoder_layers or config.num_layers)
    known = {
        f"{layer + 1}.{head + 1}": (layer, head)
        for layer in layers
        for head in range(config.num_heads)
    }
    chosen = list(known) if names == "average" else names_in(names)
    if not chosen or not set(chosen) <= set(known):
        raise UserError(
            f"--heads={names}: must be average, or LAYER.HEAD from 1.1 to {list(known)[-1]}"
        )
    return [known[name] for name in chosen]


def format_links(links: Links) -> str:
    return " ".join(
        f"{source}-{target}" for source, target in sorted(links, key=lambda link: link[::-1])
    )


def read_gold(path: Path) -> list[Gold]:
    """Reads annotated links. Raises UserError, with the number of the line, if a part is not a
    link.

    Warns if the words seem to be numbered from 1, as in many annotated test sets.
    """
    gold = []
    for number, line in enumerate(read_text_file(path), start=1):
        links = parse_links(line, f"--gold={path}, line {number}")
        sure = frozenset(link[:2] for link in links if link[2])
        gold.append((sure, frozenset(link[:2] for link in links)))
    numbers = {number for _, possible in gold for link in possible for number in link}
    if numbers and 0 not in numbers:
        logging.warning(
            "--gold=%s: no link has a word 0; number the words from 0, not from 1.", path
        )
    return gold


def error_rate(aligned: Sequence[Links], gold: Iterable[Gold]) -> tuple[float, float, float]:
    """Returns the error rate 1 - (|A & S| + |A & P|) / (|A| + |S|) (Och and Ney 2003), precision
    and recall.
    """
    num_links = sum(map(len, aligned))
    num_sure = in_sure = in_possible = 0
    for links, (sure, possible) in zip(aligned, gold, strict=True):
        num_sure += len(sure)
        in_sure += len(links & sure)
        in_possible += len(links & possible)
    precision = in_possible / max(num_links, 1)
    recall = in_sure / max(num_sure, 1)
    return 1 - (in_sure + in_possible) / max(num_links + num_sure, 1), precision, recall
