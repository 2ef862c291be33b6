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
from transformer.decoding.batches import DecodingBatch, pad
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
    """Forbids the last token of each phrase after its other tokens. PAD fills phrases up on the left."""
    is_next = phrases[:, None, :, -1] != PAD
    for i in range(1, phrases.shape[2]):
        token = phrases[:, None, :, -1 - i]
        is_next &= (token == PAD) | (token == history.last(i)[:, :, None])
    return _forbid(phrases[:, None, :, -1], is_next, forbidden)


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
    token = prefix[:, history.position][:, None, None]
    return jnp.where(token == PAD, forbidden, jnp.arange(forbidden.shape[2])[None, None] != token)


# Functions of a constraint's value, the hypotheses and the tokens that those above forbid. A value is one for each
# sentence, or that of the key of the same name.
CONSTRAINTS: dict[str, Callable[[Any, History, Forbidden], Forbidden]] = {
    "min_length": is_short,
    "no_repeat_ngram": repeats_ngram,
    "banned": ends_banned,
    "required": lacks_phrases,
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
    texts: Mapping[str, Sequence],
    sources: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    config: Config,
    first_line: int,
) -> Callable[[DecodingBatch], tuple]:
    """Returns the function of a batch that adds the constraints of its sentences, if there are any, to its arrays.

    texts: "prefix", for each source the text that its outputs begin with; "" for none. "required", for each source a
      list of the phrases that its outputs have; a phrase is a list of alternatives, of which one suffices.

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
    prefixes, required = [], []
    for i, (line, limit) in enumerate(zip(lines, limits, strict=True)):
        text, phrases = texts["prefix"][i] if "prefix" in texts else "", texts.get("required", [[]] * len(limits))[i]
        prefixes.append(encode_phrase(vocabulary, f"prefix of line {line}", text, limit))
        name = f"required phrase of line {line}"
        required.append([[encode_phrase(vocabulary, name, text, limit, 1) for text in phrase] for phrase in phrases])
        count = len(prefixes[-1]) + sum(min(map(len, phrase)) for phrase in required[-1])
        if count > limit:
            raise UserError(f"line {line}: its phrases and prefix have {count} tokens, an output may have {limit}")
    phrases = [phrase for row in required for phrase in row]
    sizes = [max(map(len, required), default=0), max(map(len, phrases), default=0)]
    sizes.append(max((len(tokens) for phrase in phrases for tokens in phrase), default=0))
    sizes = [1 << (size - 1).bit_length() for size in sizes]  # few shapes

    def arrays_with_constraints(batch: DecodingBatch) -> tuple:
        length = int(output_limits(batch.length, config)[-1]) + 1  # of the longest output
        values = {"prefix": pad([prefixes[i] for i in batch.indices], batch.rows, length)}
        if phrases:
            values["required"] = np.full((batch.rows, *sizes), PAD, np.int32)
            for row, i in zip(values["required"], batch.indices, strict=False):
                for alternatives, phrase in zip(row, required[i], strict=False):
                    alternatives[: len(phrase)] = pad(phrase, len(phrase), sizes[2])
        return *arrays_of(batch), None, values

    return arrays_with_constraints


def encode_phrase(vocabulary: Vocabulary, name: str, text: str, limit: int, least: int = 0) -> list[int]:
    """Returns the tokens of a text's best segmentation. Raises UserError, with its name, if no output can have it."""
    tokens = encode(vocabulary, name, text)[:-1]
    if UNK in tokens or len(tokens) < least:
        fault = "has characters that the vocabulary lacks" if tokens else "has no tokens"
        raise UserError(f"{name}: {text!r:.60} {fault}; change it")
    if len(tokens) > limit:
        raise UserError(
            f"{name}: has {len(tokens)} tokens, an output may have {limit}; shorten it, or raise "
            "decoding.max_extra_length"
        )
    return tokens
