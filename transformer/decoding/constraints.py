"""Constraints of a search: tokens that may not come next, given those that a hypothesis has.

A forbidden token is never chosen. The other log-probabilities stay as in forced decoding.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from transformer.config_types import Config
from transformer.data.sources.lines import read_text_file
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding.batches import DecodingBatch, pad
from transformer.decoding.ensemble import Prediction
from transformer.decoding.lengths import output_limits
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
    """Forbids the last token of each phrase after its other tokens. PAD fills phrases up on the left."""
    is_next = phrases[:, None, :, -1] != PAD
    for i in range(1, phrases.shape[2]):
        token = phrases[:, None, :, -1 - i]
        is_next &= (token == PAD) | (token == history.last(i)[:, :, None])
    return _forbid(phrases[:, None, :, -1], is_next, forbidden)


def leaves_prefix(prefix: Int[Array, "B P"], history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids all tokens but that of the prefix, which it allows. PAD ends the prefix."""
    token = prefix[:, history.position][:, None, None]
    return jnp.where(token == PAD, forbidden, jnp.arange(forbidden.shape[2])[None, None] != token)


# Functions of a constraint's value, the hypotheses and the tokens that those above forbid. A value is one for each
# sentence, or that of the key of the same name.
CONSTRAINTS: dict[str, Callable[[Any, History, Forbidden], Forbidden]] = {
    "min_length": is_short,
    "no_repeat_ngram": repeats_ngram,
    "banned": ends_banned,
    "prefix": leaves_prefix,
}


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


def _forbid(tokens: Int[Array, "#B #K N"], which: Bool[Array, "B K N"], forbidden: Forbidden) -> Forbidden:
    """Forbids those of the tokens that `which` marks."""
    index = jnp.where(which, tokens, forbidden.shape[2])  # beyond the vocabulary: dropped
    return jax.vmap(jax.vmap(lambda row, marked: row.at[marked].set(True, mode="drop")))(forbidden, index)


def values_of_keys(config: Config, vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns the values of the constraints that `config.decoding` sets. Raises UserError if a file cannot be read."""
    values = {"min_length": config.min_length, "no_repeat_ngram": config.no_repeat_ngram}
    values = {name: value for name, value in values.items() if value}
    lines = read_text_file(Path(config.banned)) if config.banned else []
    if phrases := [tokens for line in lines if (tokens := encode(vocabulary, config.banned, line)[:-1])]:
        # Reversed, so that the padding comes first.
        reversed_phrases = pad([phrase[::-1] for phrase in phrases], len(phrases), max(map(len, phrases)))
        values["banned"] = jnp.array(reversed_phrases[None, :, ::-1])
    return values


def with_constraints(
    arrays_of: Callable[[DecodingBatch], tuple],
    texts: Mapping[str, Sequence[str]],
    sources: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    config: Config,
    first_line: int,
) -> Callable[[DecodingBatch], tuple]:
    """Returns the function of a batch that adds the constraints of its sentences, if there are any, to its arrays.

    texts: "prefix", for each source the text that its outputs begin with; "" for none.

    Raises UserError if their number is wrong, or one has unknown characters or more tokens than the output may have.
    """
    if not texts:
        return arrays_of
    if not STRATEGIES[config.strategy].takes_steps or config.shortlist:
        raise UserError(
            f"{', '.join(texts)}: needs a search by steps without decoding.shortlist; change the decoding keys"
        )
    lines = range(first_line, first_line + len(sources))
    for name, items in texts.items():
        if len(items) != len(sources):
            raise UserError(f"{name}: has {len(items)} items, must have {len(sources)}, one for each source")
    limits = [int(output_limits(max(len(source), 1), config)[-1]) for source in sources]
    prefixes = [
        encode_phrase(vocabulary, f"prefix of line {line}", text, limit) if text else []
        for line, text, limit in zip(lines, texts["prefix"], limits, strict=True)
    ]

    def arrays_with_constraints(batch: DecodingBatch) -> tuple:
        length = int(output_limits(batch.length, config)[-1]) + 1  # of the longest output
        values = {"prefix": pad([prefixes[i] for i in batch.indices], batch.rows, length)}
        return *arrays_of(batch), None, values

    return arrays_with_constraints


def encode_phrase(vocabulary: Vocabulary, name: str, text: str, limit: int) -> list[int]:
    """Returns the tokens of a text's best segmentation. Raises UserError, with its name, if no output can have it."""
    tokens = encode(vocabulary, name, text)[:-1]
    if UNK in tokens:
        raise UserError(f"{name}: {text!r:.60} has characters that the vocabulary lacks; remove them")
    if len(tokens) > limit:
        raise UserError(
            f"{name}: has {len(tokens)} tokens, an output may have {limit}; shorten it, or raise "
            "decoding.max_extra_length"
        )
    return tokens
