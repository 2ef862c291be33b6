"""Constraints of a search: tokens that may not come next, given those that a hypothesis has.

A forbidden token is never chosen. The other log-probabilities stay as in forced decoding.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer.config_types import Config
from transformer.data.sources.lines import read_text_file
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding.batches import DecodingBatch
from transformer.decoding.ensemble import Prediction
from transformer.decoding.lengths import output_limits
from transformer.decoding.required_phrases import needed_after
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.translation import encode
from transformer.errors import UserError
from transformer.special_tokens import EOS, PAD, UNK


class History(NamedTuple):
    """The tokens of the hypotheses, `position` of each, and the most that a row's output may have before EOS."""

    tokens: Int[Array, "B K L"]
    position: Int[Array, ""]
    limits: Int[Array, "B"]

    def last(self, i: int) -> Int[Array, "B K"]:
        """Returns the i-th last token of each hypothesis; PAD if it is shorter."""
        return self.tokens[:, :, self.position - i]  # a negative index counts from the end, which is still empty


Forbidden = Bool[Array, "B K V"]  # as the next token


def is_short(least: int, history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids EOS until a hypothesis has `least` tokens, or as many as its limit allows."""
    is_short = history.position < jnp.minimum(least, history.limits)
    return forbidden.at[:, :, EOS].max(is_short[:, None])


def repeats_ngram(size: int, history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids the tokens that would end an n-gram of this size which the hypothesis has already."""
    ends = jnp.arange(history.tokens.shape[2])[None, None]  # of its n-grams
    is_repeated = (size - 1 <= ends) & (history.tokens != PAD)
    for i in range(1, size):
        is_repeated &= jnp.roll(history.tokens, i, axis=2) == history.last(i)[:, :, None]
    return _forbid(history.tokens, is_repeated, forbidden)


def ends_banned(phrases: Int[Array, "#B N M"], history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids the last token of each phrase after its other tokens. Phrases are in reverse, filled up with PAD."""
    is_next = phrases[:, None, :, 0] != PAD
    for i in range(1, phrases.shape[2]):
        token = phrases[:, None, :, i]
        is_next &= (token == PAD) | (token == history.last(i)[:, :, None])
    return _forbid(phrases[:, None, :, 0], is_next, forbidden)


def lacks_phrases(phrases: Int[Array, "B C A M"], history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids EOS before all phrases are in a hypothesis, and tokens after which they do not fit into its limit."""
    wanted = jnp.pad(phrases.reshape(len(phrases), 1, -1), ((0, 0), (0, 0), (0, 1)))  # PAD: any other token
    wanted = jnp.broadcast_to(wanted, (*history.tokens.shape[:2], wanted.shape[2]))
    needed = needed_after(history.tokens, history.position, wanted, phrases)
    is_late = needed > (history.limits - history.position)[:, None, None] - 1
    fits_not = jnp.broadcast_to(is_late[:, :, -1:], forbidden.shape)
    fits_not = jax.vmap(jax.vmap(lambda row, token, value: row.at[token].set(value)))(fits_not, wanted, is_late)
    return forbidden | fits_not.at[:, :, EOS].set(needed[:, :, -1] > 0)


def leaves_prefix(prefix: Int[Array, "B P"], history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids all tokens but that of the prefix, which it allows. PAD ends the prefix."""
    token = jnp.take(prefix, history.position, axis=1, mode="fill", fill_value=PAD)[:, None, None]
    return jnp.where(token == PAD, forbidden, jnp.arange(forbidden.shape[2])[None, None] != token)


# Functions of a constraint's value, the hypotheses and the tokens that the entries above forbid. A value has a row for
# each sentence, or is that of the key of the same name.
CONSTRAINTS: dict[str, Callable[[Any, History, Forbidden], Forbidden]] = {
    "min_length": is_short,
    "no_repeat_ngram": repeats_ngram,
    "banned": ends_banned,
    "banned_here": ends_banned,
    "required": lacks_phrases,
    "prefix": leaves_prefix,
}


DEPTHS = {"prefix": 1, "required": 3, "banned_here": 2}  # of the lists that are a sentence's values


def constrain(
    values: Mapping[str, Any],
    limits: Int[Array, "B"],
    prediction: Prediction,
    tokens: Int[Array, "B K L"],
    position: Int[Array, ""],
) -> Prediction:
    """Returns the prediction without the tokens that the constraints with these values forbid."""
    if not values:
        return prediction
    forbidden = jnp.zeros(prediction.logits.shape, bool)
    for name in filter(values.__contains__, CONSTRAINTS):
        forbidden = CONSTRAINTS[name](values[name], History(tokens, position, limits), forbidden)
    return prediction._replace(logits=jnp.where(forbidden, -jnp.inf, prediction.logits))


def _forbid(tokens: Int[Array, "#B #K N"], which: Bool[Array, "#B #K N"], forbidden: Forbidden) -> Forbidden:
    """Forbids those of the tokens that `which` marks."""
    index = jnp.where(which, tokens, forbidden.shape[2])  # beyond the vocabulary: dropped
    index = jnp.broadcast_to(index, (*forbidden.shape[:2], index.shape[2]))
    return jax.vmap(jax.vmap(lambda row, marked: row.at[marked].set(True, mode="drop")))(forbidden, index)


def values_of_keys(config: Config, vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns the values of the constraints that `config.decoding` sets. Raises UserError if a file cannot be read."""
    values = {"min_length": config.min_length, "no_repeat_ngram": config.no_repeat_ngram}
    values = {name: value for name, value in values.items() if value}
    lines = read_text_file(Path(config.banned)) if config.banned else []
    if phrases := _reversed(vocabulary, config.banned, lines):
        values["banned"] = jnp.array(_array([phrases], (1, *_sizes([phrases], 2))))
    return values


def with_constraints(
    arrays_of: Callable[[DecodingBatch], tuple],
    texts: Mapping[str, Sequence],
    sources: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    config: Config,
    first_line: int,
) -> Callable[[DecodingBatch], tuple]:
    """Returns the function of a batch that adds the constraints of its sentences, if there are any, to its arrays.

    texts: for each source
      prefix: the text that its outputs begin with; "" for none.
      required: a list of phrases that its outputs have; a phrase is a list of alternatives, of which one suffices.
      banned_here: a list of phrases that its outputs do not have.

    Raises UserError if their number is wrong, or no output can have a text, since it has unknown characters, too many
    tokens together, or banned phrases.
    """
    if not texts:
        return arrays_of
    if not STRATEGIES[config.strategy].takes_steps or config.shortlist:
        advice = "needs a search by steps without decoding.shortlist; change the decoding keys"
        raise UserError(f"{', '.join(texts)}: {advice}")
    for name, items in texts.items():
        if len(items) != len(sources):
            raise UserError(f"{name}: has {len(items)} items, must have {len(sources)}, one for each source")
    columns = {name: [] for name in texts}
    for i, source in enumerate(sources):
        row = {name: items[i] for name, items in texts.items()}
        limit = int(output_limits(max(len(source), 1), config)[-1])
        for name, tokens in _encode_row(row, vocabulary, f"line {first_line + i}", limit).items():
            columns[name].append(tokens)
    sizes = {name: _sizes(column, DEPTHS[name]) for name, column in columns.items()}

    def arrays_with_constraints(batch: DecodingBatch) -> tuple:
        rows = {name: [column[i] for i in batch.indices] for name, column in columns.items()}
        values = {name: _array(rows[name], (batch.rows, *sizes[name])) for name in rows}
        return *arrays_of(batch), None, values

    return arrays_with_constraints


def _encode_row(row: Mapping[str, Any], vocabulary: Vocabulary, line: str, limit: int) -> dict[str, list]:
    """Returns the tokens of one sentence's constraints. Raises UserError if no output of `limit` tokens obeys them."""
    tokens: dict[str, list] = {name: [] for name in row}
    count = 0
    if "prefix" in row:
        tokens["prefix"] = _encode_possible(vocabulary, f"prefix of {line}", row["prefix"])
        count += len(tokens["prefix"])
    if "banned_here" in row:
        tokens["banned_here"] = _reversed(vocabulary, line, row["banned_here"])
    for phrase in row.get("required", ()):
        alternatives = [_encode_possible(vocabulary, f"required phrase of {line}", text) for text in phrase]
        for text, alternative in zip(phrase, alternatives, strict=True):
            if not alternative:
                raise UserError(f"required phrase of {line}: {text!r:.60} has no tokens; change it")
            if any(_has(alternative, banned[::-1]) for banned in tokens.get("banned_here", ())):
                raise UserError(f"{line}: {text!r:.60} is required, but has a banned phrase; remove one of them")
        tokens["required"].append(alternatives)
        count += min(map(len, alternatives))
    if count > limit:
        advice = "shorten them, or raise decoding.max_extra_length"
        raise UserError(
            f"{line}: prefix and required phrases have {count} tokens, an output may have {limit}; {advice}"
        )
    return tokens


def _encode_possible(vocabulary: Vocabulary, name: str, text: str) -> list[int]:
    """Returns the tokens of a text's best segmentation. Raises UserError, with its name, if one is UNK."""
    tokens = encode(vocabulary, name, text)[:-1]
    if UNK in tokens:
        raise UserError(f"{name}: {text!r:.60} has characters that the vocabulary lacks; change it")
    return tokens


def _reversed(vocabulary: Vocabulary, name: str, texts: Sequence[str]) -> list[list[int]]:
    """Returns the tokens of the texts that have any, last first."""
    return [tokens for text in texts if (tokens := encode(vocabulary, name, text)[-2::-1])]


def _has(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(tokens[i : i + len(phrase)] == phrase for i in range(len(tokens)))


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
