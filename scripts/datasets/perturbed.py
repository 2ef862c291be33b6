"""Copies of parallel text as people write it: in capitals, with typos, emoji or tags.

The random numbers of a pair depend on the seed, the kind and the source line. So a pair has the
same copy wherever it is in the data.
"""

import functools
import itertools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from absl import logging

from scripts.datasets.folder import LanguagePair, find_files, write_record
from transformer.data.sources.lines import decode
from transformer.data.sources.text import TextSource
from transformer.support import files
from transformer.support.errors import UserError

Pair = tuple[str, str]  # a source line and a target line

TYPOS = 4  # in a source line
KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
FINAL_PUNCTUATION = ".!?\u2026\u3002\uff01\uff1f\uff61\u0964\u0965\u06d4\u061f"
FINAL_PUNCTUATION += "\u0589\u104b\u17d4\u1362\u203c\u203d"
# White space, and marks without a width, which may follow it.
INVISIBLE = string.whitespace + "\xa0\u3000\u200b\u200e\u200f"
EMOJI = "\U0001f600 \U0001f602 \U0001f642 \U0001f609 \U0001f60d \U0001f60e \U0001f622 \U0001f621 "
EMOJI += "\U0001f44d \U0001f44e \U0001f64f \U0001f389 \U0001f525 \u2764\ufe0f \u2b50 \u2705"
# Random words replace the braces.
PLACEHOLDERS = ("%s", "%d", "%({})s", "{{{}}}", "${{{}}}", "https://{}.com/{}", "{}@{}.org")
TAGS = ("a", "b", "em", "i", "strong", "u")

_CLAUSE_END = re.compile("[,;\u060c\u061b\uff0c\uff1b\u3001](?!\\d)")
# The places of typos: two different letters, or a space between words and the next character.
_LETTERS = re.compile(r"(?=([^\W\d_])(?!\1)[^\W\d_])")
_SPACE = re.compile(r"(?<=\S)(?= \S)")


def get_perturbed(
    languages: LanguagePair, source: Path, kind: str, seed: int, share: float, output: Path
) -> dict[str, Any]:
    """Writes perturbed copies of the splits of a folder, and returns the record of the new folder.

    Args:
      source: the folder, with STEM.LANGUAGE[.gz] of both languages for each split.
      kind: a key of `KINDS`.
      share: the fraction of the pairs to perturb; the other pairs are copied.

    Raises UserError if there are no such files, if a file cannot be read, or if the letters of the
    source language have no case and the kind changes the case.
    """
    splits = find_files(source, languages) if source.is_dir() else {}
    if not splits:
        endings = " and ".join(f"STEM.{language}[.gz]" for language in languages)
        raise UserError(f"--perturb={source}: has no files {endings}; name a folder that has some")
    counts = Counter()
    with files.new_folder(output) as folder:
        for stem, paths in splits.items():
            targets = [folder / f"{stem}.{language}" for language in languages]
            counts += write_split(paths, targets, lambda pair: perturb(pair, kind, seed, share))
        if kind in CASE_KINDS and 2 * counts["cased"] < counts["letters"]:
            raise UserError(
                f"--kind={kind}: only {counts['cased']} of {counts['letters']} letters of "
                f"{languages[0]} have capitals; choose another kind"
            )
        logging.info("%s: %d of %d pairs changed.", kind, counts["changed"], counts["pairs"])
        facts = {"by": "perturb", "read": str(source), "kind": kind, "seed": seed, "share": share}
        return write_record(folder, languages, facts | {"changed": counts["changed"]})


def write_split(
    paths: Sequence[Path], targets: Sequence[Path], change: Callable[[Pair], Pair]
) -> Counter:
    """Writes the changed pairs of two parallel files to two new files.

    Returns the number of pairs, of changed pairs, and of letters and cased letters in the sources.
    """
    counts = Counter()
    with (
        targets[0].open("w", encoding="utf-8", newline="\n") as source_file,
        targets[1].open("w", encoding="utf-8", newline="\n") as target_file,
    ):
        for pair in read_pairs(paths):
            source, target = changed = change(pair)
            source_file.write(f"{source}\n")
            target_file.write(f"{target}\n")
            counts.update(pairs=1, changed=changed != pair)
            letters = [letter for letter in pair[0] if letter.isalpha()]
            cased = sum(letter.lower() != letter.upper() for letter in letters)
            counts.update(letters=len(letters), cased=cased)
    return counts


def read_pairs(paths: Sequence[Path]) -> Iterator[Pair]:
    """Yields the pairs of two files.

    Raises UserError if their numbers of lines differ, or if a line is not UTF-8.
    """
    text = TextSource((tuple(paths),))
    for index, (source, target) in enumerate(text):
        yield decode(source, text.where(index, 0)), decode(target, text.where(index, 1))


def perturb(pair: Pair, kind: str, seed: int, share: float = 1.0) -> Pair:
    """Returns the perturbed pair, or with probability 1 - `share` the same pair.

    Pairs with a blank side stay, since blank lines divide documents.
    """
    # Random hashes a text with SHA-512, so all machines draw the same numbers.
    random = Random(f"{seed} {kind} {pair[0]}")
    if random.random() >= share or not all(text.strip() for text in pair):
        return pair
    return KINDS[kind](*pair, random)


def to_capitals(source: str, target: str, random: Random) -> Pair:
    return source.upper(), target.upper()


@functools.cache
def _word() -> re.Pattern[str]:
    # Imported here, since the import takes a second, which --help should not.
    from transformer.decoding.control.phrases import WORD

    # Combining marks and soft hyphens do not end a word.
    return re.compile(rf"\w(?:{WORD.pattern}|['\u2019\u00ad])*")


def to_titles(source: str, target: str, random: Random) -> Pair:
    """Capitalizes the first letter of each word."""
    # str.title() also capitalizes the letter after an apostrophe: "Don'T".
    source, target = (
        _word().sub(lambda word: word[0][0].title() + word[0][1:], text)
        for text in (source, target)
    )
    return source, target


def without_final_punctuation(source: str, target: str, random: Random) -> Pair:
    return cut_final_punctuation(source), cut_final_punctuation(target)


def cut_final_punctuation(text: str) -> str:
    """Returns the text without punctuation at its end, or the text if it has nothing else."""
    return text.rstrip(FINAL_PUNCTUATION + INVISIBLE) or text


def with_typos(source: str, target: str, random: Random) -> Pair:
    """Makes `TYPOS` typos in the source. A kind of typo without a place there is skipped."""
    for edit in random.choices(list(TYPO_KINDS.values()), k=TYPOS):
        pattern = _SPACE if edit is skip_space else _LETTERS
        places = [match.start() for match in pattern.finditer(source)]
        if places:
            start = random.choice(places)
            typo = edit(*source[start : start + 2], random)
            source = source[:start] + typo + source[start + 2 :]
    return source, target


def skip_space(space: str, letter: str, random: Random) -> str:
    return letter


def nearby_key(letter: str, random: Random) -> str:
    """Returns a letter beside this one on an English keyboard, or this one if it is not there."""
    for row in KEYS:
        column = row.find(letter.lower())
        if column >= 0:
            near = random.choice(row[max(column - 1, 0) : column] + row[column + 1 : column + 2])
            return near.upper() if letter.isupper() else near
    return letter


# Each replaces two letters in sequence, or a space and the character after it.
TYPO_KINDS: dict[str, Callable[[str, str, Random], str]] = {
    "swapped": lambda first, second, random: second + first,
    "missing": lambda first, second, random: second,
    "extra": lambda first, second, random: first + nearby_key(first, random) + second,
    "nearby key": lambda first, second, random: nearby_key(first, random) + second,
    "repeated": lambda first, second, random: first + first + second,
    "random space": lambda first, second, random: f"{first} {second}",
    "skipped space": skip_space,
}


def aligned_places(source: str, target: str) -> list[tuple[int, int]]:
    """Returns positions in two sentences that correspond, in order.

    These are the start, the ends of clauses if both sides have equally many commas and semicolons,
    the position before the final punctuation, and the end.
    """
    places = [(0, 0)]
    clause_ends = [
        [match.end() for match in _CLAUSE_END.finditer(text)] for text in (source, target)
    ]
    if len(clause_ends[0]) == len(clause_ends[1]):
        places += zip(*clause_ends, strict=True)
    places.append((len(cut_final_punctuation(source)), len(cut_final_punctuation(target))))
    places.append((len(source), len(target)))
    return places


def insert_word(text: str, position: int, word: str) -> str:
    """Inserts a word, with spaces where it would touch another one."""
    before = text[:position]
    after = text[position:]
    if before and not before[-1].isspace():
        word = f" {word}"
    # At the start of a text it would also join an opening quotation mark or a sign.
    if after[:1].isalnum() or (not before and after[:1].strip()):
        word += " "
    return before + word + after


def with_word(draw: Callable[[Random], str], source: str, target: str, random: Random) -> Pair:
    """Inserts the same random word on both sides."""
    word = draw(random)
    places = random.choice(aligned_places(source, target))
    return insert_word(source, places[0], word), insert_word(target, places[1], word)


def with_tags(source: str, target: str, random: Random) -> Pair:
    """Puts the same HTML element around corresponding parts of both sides."""
    # The last place is after the final punctuation, and may be equal to the one before.
    places = aligned_places(source, target)[:-1]
    texts = (source, target)
    parts = []
    for ends in itertools.combinations(places, 2):
        spans = [slice(*span) for span in zip(*ends, strict=True)]
        if all(text[span].strip() for text, span in zip(texts, spans, strict=True)):
            parts.append(spans)
    if not parts:
        return texts
    name = random.choice(TAGS)
    changed = []
    for text, span in zip(texts, random.choice(parts), strict=True):
        # The element begins after the space of a clause's end.
        words = text[span].lstrip()
        before = text[: span.stop - len(words)]
        changed.append(f"{before}<{name}>{words}</{name}>{text[span.stop :]}")
    source, target = changed
    return source, target


def draw_emoji(random: Random) -> str:
    return random.choice(EMOJI.split())


def draw_number(random: Random) -> str:
    return str(random.randrange(10 ** random.randint(1, 6)))


def draw_placeholder(random: Random) -> str:
    words = ["".join(random.choices(string.ascii_lowercase, k=random.randint(2, 8))) for _ in "12"]
    return random.choice(PLACEHOLDERS).format(*words)


# Each returns the new pair for a source, a target and a source of random numbers.
KINDS: dict[str, Callable[[str, str, Random], Pair]] = {
    "capitals": to_capitals,
    "titles": to_titles,
    "typos": with_typos,
    "no_final_punctuation": without_final_punctuation,
    "emoji": functools.partial(with_word, draw_emoji),
    "numbers": functools.partial(with_word, draw_number),
    "placeholders": functools.partial(with_word, draw_placeholder),
    "tags": with_tags,
}
CASE_KINDS = ("capitals", "titles")
