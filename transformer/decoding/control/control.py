"""Control of the output: the constraints of a configuration, and texts that control a source."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer.config.types import Config, output_limit
from transformer.data.sources.lines import read_text_file
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding.control.phrases import WORD, Spelling, find_words, spelling_of
from transformer.decoding.control.prefixes import ended_word, fragment_states, split_fragment
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.translation import Translation, encode
from transformer.support import files
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, PAD, UNK

# The most tokens of required phrases. A search compares each of them with all others, and with all
# tokens of each hypothesis.
MAX_REQUIRED = 256
NO_CHARACTER = "\uffff"  # no text has it
# The smallest sizes of the nested lists of a sentence's values. A larger size is the smallest one
# times a power of `GROWTH`, so that there are few shapes: each is compiled.
LEAST_SIZES = {
    "prefix": (16,),
    "fragment": (16, 16),
    "required": (2, 2, 4),
    "banned_here": (16, 16),
    "limit": (1,),
}
GROWTH = 4


class Control(NamedTuple):
    """The texts that control the translations of one source.

    prefix: the text that they begin with, or its tokens.
    required: phrases that they have. A phrase is a list of alternatives, and one of them suffices.
    banned: phrases that they do not have.
    limit: the most tokens before EOS; 0: as many as the configuration allows.
    """

    prefix: str | Sequence[int] = ""
    required: Sequence[Sequence[str]] = ()
    banned: Sequence[str] = ()
    limit: int = 0


def banned_tokens(banned_pieces: Sequence[str], vocabulary: Vocabulary) -> list[int]:
    """Returns the tokens of `decoding.banned_pieces`.

    Raises UserError if the vocabulary lacks one.
    """
    for piece in banned_pieces:
        if piece not in vocabulary.pieces:
            raise UserError(f"decoding.banned_pieces: the vocabulary lacks {piece}; leave it out")
    return [vocabulary.pieces.index(piece) for piece in banned_pieces]


class OutputControl:
    """The constraints of the keys of `config.decoding`, and of texts for the sources of a call.

    `values` are those of the keys, and `banned` are the phrases of the file `decoding.banned`.
    Raises UserError if that file cannot be read.
    """

    def __init__(self, decoding_config: Config, vocabulary: Vocabulary) -> None:
        self.decoding_config = decoding_config
        self.vocabulary = vocabulary

        # The constraints for all sources.
        keys = ("min_length", "no_repeat_ngram")
        self.values = {key: decoding_config[key] for key in keys if decoding_config[key]}
        self.banned = []
        rules = []
        if decoding_config.banned:
            try:
                lines = read_text_file(files.expand_user(decoding_config.banned))
            except UserError as error:
                raise UserError(f"decoding.banned={decoding_config.banned}: {error}") from error
            self.banned = self.spelling.normalize(decoding_config.banned, lines)
            rules = self.spelling.rules(decoding_config.banned, self.banned)

        # A banned piece is forbidden after any characters.
        width = len(rules[0]) if rules else 2
        for token in banned_tokens(decoding_config.banned_pieces, vocabulary):
            rules.append([token] + [0] * (width - 1))
        if rules:
            self.values["banned"] = jnp.array([rules])

    @property
    def spelling(self) -> Spelling:
        return spelling_of(self.vocabulary)

    def values_with(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the values that `constrain` takes, with the arrays of the rows of a batch."""
        # These constraints depend on the texts of tokens.
        values = {**self.values, **arrays}
        if not {"banned", "banned_here", "required", "fragment"}.isdisjoint(values):
            names = ("table", "edges", "ranks", "lengths")
            values["spelling"] = {name: jnp.array(getattr(self.spelling, name)) for name in names}
        return values

    def encode(
        self, controls: Sequence[Control], sources: Sequence[Sequence[int]], first_line: int
    ) -> Callable[[Sequence[int]], dict[str, Int[np.ndarray, "B ..."]]]:
        """Returns a function from indices of sources to their arrays, by name in `CONSTRAINTS`.

        The index -1 is a filler row. Without controls there are no arrays. Raises UserError if no
        output can have a text: it has unknown characters, too many tokens together, or banned
        phrases.
        """
        if not any(map(any, controls)):
            return lambda indices: {}
        self.check_takes_controls()
        if self.decoding_config.well_formed and any(x.required or x.banned for x in controls):
            raise UserError(
                "decoding.well_formed=True: takes no required and no banned phrases; "
                "leave them out, or set it to False"
            )

        # The values of each source, as nested lists of tokens.
        rows = []
        for line, (source, control) in enumerate(zip(sources, controls, strict=True), first_line):
            limit = output_limit(max(len(source) - 1, 0), self.decoding_config)
            rows.append(self._encode_row(f"line {line}", limit, control))
        rows.append(dict.fromkeys(LEAST_SIZES, []))  # for filler rows
        columns = {name: [row[name] for row in rows] for name in LEAST_SIZES}

        # The shape of a row of each array. A constraint that no source has gets no array.
        sizes = {
            name: _sizes(column, LEAST_SIZES[name], GROWTH)
            for name, column in columns.items()
            if any(column)
        }

        # Much padding would make the search slow.
        if math.prod(sizes.get("required", ())) > MAX_REQUIRED:
            sizes["required"] = _sizes(columns["required"], (1, 1, 1), 2)

        def arrays(indices):
            return {
                name: _array([columns[name][i] for i in indices], (len(indices), *size))
                for name, size in sizes.items()
            }

        return arrays

    def check_takes_controls(self) -> None:
        """Raises UserError if the search of the configuration takes no controls of sources."""
        takes_steps = STRATEGIES[self.decoding_config.strategy].takes_steps
        if not takes_steps or self.decoding_config.shortlist:
            raise UserError(
                "prefixes, phrases and glossaries need a search by steps without "
                "decoding.shortlist; change the decoding keys"
            )

    def _encode_row(self, line: str, limit: int, control: Control) -> dict[str, Sequence]:
        """Returns the values of a sentence, by the names of `LEAST_SIZES`.

        Raises UserError if no output of `limit` tokens obeys the control.
        """
        # The tokens of all texts. A prefix may be tokens already.
        prefix, required, banned, shorter = control
        if isinstance(prefix, str):
            tokens = self.encode_text(f"prefix of {line}", prefix)
        else:
            tokens = list(prefix)
        banned = self.spelling.normalize(line, banned) if banned else []
        phrases = [
            self._encode_required(line, texts, [*banned, *self.banned]) for texts in required
        ]
        count = sum(token != EOS for token in tokens)
        count += sum(min(map(len, alternatives)) for alternatives in phrases)
        if count > limit:
            raise UserError(
                f"{line}: prefix and required phrases have {count} tokens, an output may have "
                f"{limit}; shorten them, or raise decoding.max_extra_length"
            )

        # Longer alternatives never fit.
        phrases = [[x for x in alternatives if len(x) <= limit] for alternatives in phrases]
        size = _sizes([phrases], (1, 1, 1), 2)
        if math.prod(size) > MAX_REQUIRED:
            raise UserError(
                f"{line}: {size[0]} required phrases of {size[1]} alternatives of {size[2]} tokens "
                f"are more than {MAX_REQUIRED} tokens; give fewer or shorter ones"
            )

        states = []
        if isinstance(prefix, str) and tokens:
            tokens, states = self._split_prefix(prefix, tokens, limit - count)
        return {
            "prefix": tokens,
            "fragment": states,
            "required": phrases,
            "banned_here": self.spelling.rules(line, banned) if banned else [],
            "limit": [shorter] if shorter else [],
        }

    def _split_prefix(self, prefix: str, tokens: list[int], room: int) -> tuple[list, list]:
        """Returns the tokens of a prefix that are forced, and the states of `match_fragment`.

        Any tokens may spell the last word of the prefix, if there is room for one per character. A
        space after the word ends it.
        """
        if prefix[-1].isspace():
            is_word = self.spelling.edges[tokens[-1], 1]
            return tokens, ended_word(len(tokens), self.spelling) if is_word else []
        forced, fragment = split_fragment(tokens, self.spelling)
        if len(forced) + len(fragment) > len(tokens) + room:
            return tokens, []
        return forced, fragment_states(len(forced), fragment, self.spelling)

    def _encode_required(
        self, line: str, alternatives: Sequence[str], banned: Sequence[str]
    ) -> list[list[int]]:
        """Returns the tokens of the alternatives of a phrase.

        Each is encoded after a space. If it can follow a word without a space, it is also encoded
        so.
        """
        name = f"required phrase of {line}"
        spellings = []
        for text in alternatives:
            tokens = self.encode_text(name, text)
            if not tokens:
                raise UserError(f"{name}: {text!r:.60} has no tokens; change it")
            phrase = self.spelling.find_phrase(tokens, banned) if banned else None
            if phrase:
                where = "is in decoding.banned" if phrase in self.banned else "is banned"
                raise UserError(
                    f"{line}: {text!r:.60} is required, but {phrase!r:.60} {where}; "
                    "remove one of them"
                )
            spellings.append(tokens)

            # The tokens that the text adds directly after another character.
            if not WORD.match(text):
                before, whole = self.vocabulary.encode([NO_CHARACTER, NO_CHARACTER + text])
                without_space = whole[len(before) :]
                if UNK not in without_space and without_space not in ([], tokens):
                    spellings.append(without_space)
        return spellings

    def relax(self, control: Control) -> Control:
        """Returns the control of the first search: without required phrases, if there are two."""
        options = STRATEGIES[self.decoding_config.strategy].options
        has_two_parts = control.required and "two_parts" in options
        return control._replace(required=()) if has_two_parts else control

    def lacks(self, translation: Translation, required: Sequence[Sequence[str]]) -> bool:
        """True if the text of the translation lacks all alternatives of some phrase."""
        for alternatives in required:
            texts = self.spelling.normalize("required", alternatives)
            if all(find_words(translation.text, text) < 0 for text in texts):
                return True
        return False

    def with_limit(self, control: Control, translation: Translation) -> Control:
        """Returns a control that also limits the length.

        The limit is the length of a translation that lacks phrases, plus the lengths of the
        phrases. After a phrase that it does not expect, a model tends to translate the source
        again, which the length penalty rewards.
        """
        limit = max(len(translation.tokens) - 1, 0)
        for alternatives in control.required:
            limit += max(map(len, self._encode_required("", alternatives, banned=())))
        return control._replace(limit=limit)

    def encode_text(self, name: str, text: str) -> list[int]:
        """Returns the tokens of a text's best segmentation.

        Raises UserError, which has the name, if a token is UNK.
        """
        tokens = encode(self.vocabulary, name, text)[:-1]
        if UNK in tokens:
            raise UserError(
                f"{name}: {text!r:.60} has characters that the vocabulary lacks; change it"
            )
        return tokens


def _sizes(rows: Sequence, least: Sequence[int], growth: int) -> tuple[int, ...]:
    """Returns the lengths of the nested lists of the rows, one for each level.

    A length is rounded up to the entry of `least` times a power of `growth`.
    """
    sizes = []
    for size in least:
        longest = max(map(len, rows), default=0)
        while size < longest:
            size *= growth
        sizes.append(size)
        rows = [item for row in rows for item in row]
    return tuple(sizes)


def _array(rows: Sequence, shape: tuple[int, ...]) -> np.ndarray:
    """Returns nested lists as an array, filled up with PAD."""
    array = np.full(shape, PAD, np.int32)
    for i, row in enumerate(rows):
        array[i] = _array(row, shape[1:]) if len(shape) > 1 else row
    return array
