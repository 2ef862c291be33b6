"""Control of the output: the constraints of a configuration, and those that come with each source as texts."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer.config_types import Config
from transformer.data.sources.lines import read_text_file
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding.batches import DecodingBatch
from transformer.decoding.constraints import constrain
from transformer.decoding.lengths import output_limits
from transformer.decoding.phrases import Spelling, spelling_of
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.translation import encode
from transformer.errors import UserError
from transformer.special_tokens import EOS, PAD, UNK

MAX_REQUIRED = 256  # tokens; a search compares each with each, and with all tokens of each hypothesis
DEPTHS = {"prefix": 1, "required": 3, "banned_here": 2}  # of the lists that are a sentence's values


class OutputControl:
    """The constraints of the keys of `config.decoding`, and of texts for the sources of a call.

    values: those of the keys. banned: the phrases of `config.banned`. Raises UserError if that file cannot be read.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        self.config, self.vocabulary = config, vocabulary
        values = {"min_length": config.min_length, "no_repeat_ngram": config.no_repeat_ngram}
        self.values: dict[str, Any] = {name: value for name, value in values.items() if value}
        lines = read_text_file(Path(config.banned)) if config.banned else []
        self.banned = self.spelling.normalize(config.banned, lines) if lines else []
        if rules := self.spelling.rules(self.banned) if self.banned else []:
            self.values["banned"] = jnp.array([rules])

    @property
    def spelling(self) -> Spelling:
        return spelling_of(self.vocabulary)

    def options(self, limits: Int[Array, "B"], arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the arguments `constrain` and `phrases` of a search; `arrays` are the constraints of its rows."""
        values = self.values | arrays
        if not {"banned", "banned_here"}.isdisjoint(values):
            values["spelling"] = jnp.array(self.spelling.table)
        return {"constrain": functools.partial(constrain, values, limits), "phrases": values.get("required")}

    def with_texts(
        self,
        arrays_of: Callable[[DecodingBatch], tuple],
        texts: Mapping[str, Sequence],
        sources: Sequence[Sequence[int]],
        first_line: int,
    ) -> Callable[[DecodingBatch], tuple]:
        """Returns the function of a batch that adds the constraints of its sentences, if there are any, to its arrays.

        texts: for each source
          prefix: the text that its outputs begin with, or its tokens; "" for none.
          required: a list of phrases that its outputs have; a phrase is a list of alternatives, of which one suffices.
          banned: a list of phrases that its outputs do not have.

        Raises UserError if their number is wrong, or no output can have a text, since it has unknown characters, too
        many tokens together, or banned phrases.
        """
        if not texts:
            return arrays_of
        if not STRATEGIES[self.config.strategy].takes_steps or self.config.shortlist:
            advice = "needs a search by steps without decoding.shortlist; change the decoding keys"
            raise UserError(f"{', '.join(texts)}: {advice}")
        for name, items in texts.items():
            if len(items) != len(sources):
                raise UserError(f"{name}: has {len(items)} items, must have {len(sources)}, one for each source")
        columns: dict[str, list] = {name: [] for name in DEPTHS}
        for i, source in enumerate(sources):
            limit = int(output_limits(max(len(source), 1), self.config)[-1])
            row = self._encode_row(f"line {first_line + i}", limit, **{name: items[i] for name, items in texts.items()})
            for column, values in zip(columns.values(), row, strict=True):
                column.append(values)
        columns = {name: column for name, column in columns.items() if any(column)}
        sizes = {name: _sizes(column, DEPTHS[name]) for name, column in columns.items()}

        def arrays_with_constraints(batch: DecodingBatch) -> tuple:
            rows = {name: [column[i] for i in batch.indices] for name, column in columns.items()}
            values = {name: _array(rows[name], (batch.rows, *sizes[name])) for name in rows}
            return *arrays_of(batch), None, values

        return arrays_with_constraints if columns else arrays_of

    def _encode_row(
        self,
        line: str,
        limit: int,
        prefix: str | Sequence[int] = "",
        required: Sequence[Sequence[str]] = (),
        banned: Sequence[str] = (),
    ) -> tuple[list, list, list]:
        """Returns the values of `DEPTHS` for a sentence. Raises UserError if no output of `limit` tokens obeys them."""
        tokens = self.encode_text(f"prefix of {line}", prefix) if isinstance(prefix, str) else prefix
        banned = self.spelling.normalize(line, banned) if banned else []
        known = [*banned, *self.banned]
        phrases = [[self._encode_required(line, text, known) for text in alternatives] for alternatives in required]
        shortest = [min(alternatives, key=len) for alternatives in phrases]
        phrases = [[x for x in alternatives if len(x) <= limit] for alternatives in phrases]
        count = sum(token != EOS for token in tokens) + sum(map(len, shortest))
        if count > limit:
            advice = "shorten them, or raise decoding.max_extra_length"
            raise UserError(
                f"{line}: prefix and required phrases have {count} tokens, an output may have {limit}; {advice}"
            )
        if math.prod(size := _sizes([phrases], DEPTHS["required"])) > MAX_REQUIRED:
            listed = "{} required phrases of {} alternatives of {} tokens".format(*size)
            raise UserError(f"{line}: {listed} are more than {MAX_REQUIRED} tokens; give fewer or shorter ones")
        return tokens, phrases, self.spelling.rules(banned) if banned else []

    def _encode_required(self, line: str, text: str, banned: Sequence[str]) -> list[int]:
        name = f"required phrase of {line}"
        if not (tokens := self.encode_text(name, text)):
            raise UserError(f"{name}: {text!r:.60} has no tokens; change it")
        if phrase := banned and self.spelling.ended(tokens, banned):
            which = "is in decoding.banned" if phrase in self.banned else "is banned"
            raise UserError(f"{line}: {text!r:.60} is required, but {phrase!r:.60} {which}; remove one of them")
        return tokens

    def encode_text(self, name: str, text: str) -> list[int]:
        """Returns the tokens of a text's best segmentation. Raises UserError, with its name, if one is UNK."""
        tokens = encode(self.vocabulary, name, text)[:-1]
        if UNK in tokens:
            raise UserError(f"{name}: {text!r:.60} has characters that the vocabulary lacks; change it")
        return tokens


def _sizes(rows: Sequence, depth: int) -> tuple[int, ...]:
    """Returns the lengths of nested lists below the rows, rounded up to powers of two so that there are few shapes."""
    sizes = []
    for _ in range(depth):
        sizes.append(1 << max(max(map(len, rows), default=0) - 1, 0).bit_length())
        rows = [item for row in rows for item in row]
    return tuple(sizes)


def _array(rows: Sequence, shape: tuple[int, ...]) -> np.ndarray:
    """Returns nested lists as an array, filled up with PAD."""
    array = np.full(shape, PAD, np.int32)
    for i, row in enumerate(rows):
        array[i] = _array(row, shape[1:]) if len(shape) > 1 else row
    return array
