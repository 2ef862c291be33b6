"""Constraints of a search: tokens that may not come next, given those that a hypothesis has.

A forbidden token is never chosen. The other log-probabilities stay as in forced decoding.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from transformer.config_types import Config
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding.batches import DecodingBatch, pad
from transformer.decoding.ensemble import Prediction
from transformer.decoding.lengths import output_limits
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.translation import encode
from transformer.errors import UserError
from transformer.special_tokens import PAD, UNK


class History(NamedTuple):
    """The tokens of the hypotheses, `position` of each, and the most that a row's output may have before EOS."""

    tokens: Int[Array, "B K L"]
    position: Int[Array, ""]
    limits: Int[Array, "B"]


Forbidden = Bool[Array, "B #K V"]  # as the next token


def leaves_prefix(prefix: Int[Array, "B P"], history: History, forbidden: Forbidden) -> Forbidden:
    """Forbids all tokens but that of the prefix, which it allows. PAD ends the prefix."""
    token = prefix[:, history.position][:, None, None]
    return jnp.where(token == PAD, forbidden, jnp.arange(forbidden.shape[2])[None, None] != token)


# Functions of a constraint's value, the hypotheses and the tokens that those above forbid. A value is one for each
# sentence, or that of the key of the same name.
CONSTRAINTS: dict[str, Callable[[Any, History, Forbidden], Forbidden]] = {"prefix": leaves_prefix}


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
