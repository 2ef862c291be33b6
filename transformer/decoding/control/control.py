"""Control of the output: the constraints of a configuration, and those that come with each source
as texts.
"""

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
from transformer.decoding.control.prefixes import fragment_states, split_fragment
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.translation import Translation, encode
from transformer.support import files
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, PAD, UNK

# tokens; a search compares each with each, and with all tokens of each hypothesis
MAX_REQUIRED = 256
NO_CHARACTER = "\uffff"  # which no text has
# The least sizes of the nested lists that are a sentence's values. Larger ones are these times a
# power of `GROWTH`, so that there are few shapes: each is compiled.
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
    required: phrases that they have. A phrase is a list of alternatives, of which one suffices.
    banned: phrases that they do not have.
    limit: the most tokens before EOS; 0: as many as the configuration allows.
    """

    prefix: str | Sequence[int] = ""
    required: Sequence[Sequence[str]] = ()
    banned: Sequence[str] = ()
    limit: int = 0


class OutputControl:
    """The constraints of the keys of `config.decoding`, and of texts for the sources of a call.

    values: those of the keys. banned: the phrases of `config.banned`. Raises UserError if that file
        cannot be read.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        self.config, self.vocabulary = config, vocabulary
        values = {"min_length": config.min_length, "no_repeat_ngram": config.no_repeat_ngram}
        self.values = {name: value for name, value in values.items() if value}
        self.banned, rules = [], []
        if config.banned:
            try:
                lines = read_text_file(files.expanded(config.banned))
            except UserError as error:
                raise UserError(f"decoding.banned={config.banned}: {error}") from error
            self.banned = self.spelling.normalize(config.banned, lines)
            rules = self.spelling.rules(self.banned)
        width = len(rules[0]) if rules else 2
        for piece in config.banned_pieces:
            if piece not in vocabulary.pieces:
                raise UserError(
                    f"decoding.banned_pieces: the vocabulary lacks {piece}; leave it out"
                )
            # after any characters
            rules.append([vocabulary.pieces.index(piece)] + [0] * (width - 1))
        if rules:
            self.values["banned"] = jnp.array([rules])

    @property
    def spelling(self) -> Spelling:
        return spelling_of(self.vocabulary)

    def values_with(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the values that `constrain` takes; `arrays` are those of the rows of a batch."""
        values = self.values | arrays
        if not {"banned", "banned_here", "required", "fragment"}.isdisjoint(values):
            names = ("table", "edges", "ranks", "lengths")
            values["spelling"] = {name: jnp.array(getattr(self.spelling, name)) for name in names}
        return values

    def encode(
        self, controls: Sequence[Control], sources: Sequence[Sequence[int]], first_line: int
    ) -> Callable[[Sequence[int]], dict[str, Int[np.ndarray, "B ..."]]]:
        """Returns a function from numbers of sources (-1: none) to their arrays, by the names of
        `CONSTRAINTS`.

        Without controls there are no arrays. Raises UserError if no output can have a text, since
        it has unknown characters, too many tokens together, or banned phrases.
        """
        if not any(map(any, controls)):
            return lambda rows: {}
        self.check_takes_controls()
        limits = [output_limit(max(len(source) - 1, 0), self.config) for source in sources]
        known = enumerate(zip(limits, controls, strict=True), start=first_line)
        rows = [
            self._encode_row(f"line {line}", limit, control) for line, (limit, control) in known
        ]
        columns = {
            name: [*column, []]
            for name, column in zip(LEAST_SIZES, zip(*rows, strict=True), strict=True)
        }
        sizes = {
            name: _sizes(column, LEAST_SIZES[name], GROWTH)
            for name, column in columns.items()
            if any(column)
        }
        # so many PAD would make the search slow
        if math.prod(sizes.get("required", ())) > MAX_REQUIRED:
            sizes["required"] = _sizes(columns["required"], (1, 1, 1), 2)
        return lambda rows: {
            name: _array([columns[name][row] for row in rows], (len(rows), *size))
            for name, size in sizes.items()
        }

    def check_takes_controls(self) -> None:
        """Raises UserError if the search of the configuration takes no controls of sources."""
        if not STRATEGIES[self.config.strategy].takes_steps or self.config.shortlist:
            raise UserError(
                "prefixes, phrases and glossaries need a search by steps without decoding.shortlist; change the "
                "decoding keys"
            )

    def _encode_row(self, line: str, limit: int, control: Control) -> tuple[Sequence, ...]:
        """Returns the values of a sentence.

        Raises UserError if no output of `limit` tokens obeys them.
        """
        prefix, required, banned, shorter = control
        tokens = (
            self.encode_text(f"prefix of {line}", prefix) if isinstance(prefix, str) else prefix
        )
        banned = self.spelling.normalize(line, banned) if banned else []
        known = [*banned, *self.banned]
        phrases = [
            [x for text in texts for x in self._encode_required(line, text, known)]
            for texts in required
        ]
        count = sum(token != EOS for token in tokens) + sum(
            min(map(len, alternatives)) for alternatives in phrases
        )
        phrases = [[x for x in alternatives if len(x) <= limit] for alternatives in phrases]
        if count > limit:
            advice = "shorten them, or raise decoding.max_extra_length"
            raise UserError(
                f"{line}: prefix and required phrases have {count} tokens, an output may have {limit}; {advice}"
            )
        if math.prod(size := _sizes([phrases], (1, 1, 1), 2)) > MAX_REQUIRED:
            listed = "{} required phrases of {} alternatives of {} tokens".format(*size)
            raise UserError(
                f"{line}: {listed} are more than {MAX_REQUIRED} tokens; give fewer or shorter ones"
            )
        rules = self.spelling.rules(banned) if banned else []
        states = []
        if isinstance(prefix, str) and tokens and not prefix[-1].isspace():
            tokens, states = self._encode_fragment(tokens, limit - count)
        return tokens, states, phrases, rules, [shorter] if shorter else []

    def _encode_fragment(self, tokens: list[int], room: int) -> tuple[list[int], list[list[int]]]:
        """Returns the tokens of a prefix to force, and the states of its last word if `room` more
        tokens spell it.
        """
        forced, fragment = split_fragment(tokens, self.spelling)
        if len(forced) + len(fragment) > len(tokens) + room:
            return tokens, []
        return forced, fragment_states(len(forced), fragment, self.spelling)

    def _encode_required(self, line: str, text: str, banned: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of a phrase after a space and, if it can follow a word so, without
        one.
        """
        name = f"required phrase of {line}"
        if not (tokens := self.encode_text(name, text)):
            raise UserError(f"{name}: {text!r:.60} has no tokens; change it")
        if phrase := banned and self.spelling.ended(tokens, banned):
            which = "is in decoding.banned" if phrase in self.banned else "is banned"
            raise UserError(
                f"{line}: {text!r:.60} is required, but {phrase!r:.60} {which}; remove one of them"
            )
        if WORD.match(text):
            return [tokens]
        before, whole = self.vocabulary.encode([NO_CHARACTER, NO_CHARACTER + text])
        joined = whole[len(before) :]
        return [tokens] if UNK in joined or joined in ([], tokens) else [tokens, joined]

    def searches(self, control: Control) -> list[Control]:
        """Returns the controls of the searches that a sentence may need, the first of them without
        required phrases.

        The limit of the second one stands for that of `with_limit`, which is known after the first
        search.
        """
        if not control.required or self.config.strategy != "beam":
            return [control]
        return [control._replace(required=()), control._replace(limit=1)]

    def lacks(self, translation: Translation, required: Sequence[Sequence[str]]) -> bool:
        """Returns True if the text of the translation lacks all alternatives of some phrase."""
        for alternatives in required:
            texts = self.spelling.normalize("required", alternatives)
            if all(find_words(translation.text, text) < 0 for text in texts):
                return True
        return False

    def with_limit(self, control: Control, translation: Translation) -> Control:
        """Returns a control that also limits the length, to the tokens of a translation that lacks
        phrases and theirs.

        After a phrase that it does not expect, a model tends to translate the source again, which
        the length penalty rewards.
        """
        limit = max(len(translation.tokens) - 1, 0)
        for alternatives in control.required:
            spelled = [
                tokens
                for text in alternatives
                for tokens in self._encode_required("", text, banned=())
            ]
            limit += max(map(len, spelled))
        return control._replace(limit=limit)

    def encode_text(self, name: str, text: str) -> list[int]:
        """Returns the tokens of a text's best segmentation.

        Raises UserError, with its name, if one is UNK.
        """
        tokens = encode(self.vocabulary, name, text)[:-1]
        if UNK in tokens:
            raise UserError(
                f"{name}: {text!r:.60} has characters that the vocabulary lacks; change it"
            )
        return tokens


def _sizes(rows: Sequence, least: Sequence[int], growth: int) -> tuple[int, ...]:
    """Returns the lengths of nested lists below the rows, rounded up to `least` times a power of
    `growth`.
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
