"""An ensemble of one or more models: the mean of their probabilities of the next token."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.decoding.shortlist import ShortlistModel
from transformer.decoding.top_k import logsumexp
from transformer.support.special_tokens import BOS, PAD, UNK

Caches = tuple[Any, ...]  # one for each model


@runtime_checkable
class AutoregressiveModel(Protocol):
    """A model that predicts tokens one by one.

    Its cache is a pytree with the method `DecodingCache.reorder`.
    """

    def start_cache(self, source: Int[Array, "B S"], beams: int, length: int) -> Any:
        """Starts `beams` hypotheses per source of at most `length` tokens, BOS included."""

    def decode_step(
        self, tokens: Int[Array, "B K"], position: Int[Array, ""], cache: Any
    ) -> tuple[Float[Array, "B K V"], Any]:
        """Returns the logits of the next token, and the next cache.

        `tokens` are at `position` of each hypothesis; BOS is at position 0.
        """


def build_models(graphs: Sequence[nnx.GraphDef], parameters: Sequence[dict]) -> list[nnx.Module]:
    """Returns the models with these graphs and parameters, which are nested dicts of arrays."""
    models = zip(graphs, parameters, strict=True)
    return [nnx.merge(graph, nnx.State(tree)) for graph, tree in models]


def log_probabilities(logits: Sequence[Float[Array, "*B V"]]) -> Float[Array, "*B V"]:
    """Returns the log of the mean of the models' probabilities, given the logits of each model."""
    log_p = [jax.nn.log_softmax(x, axis=-1) for x in logits]
    if len(log_p) == 1:
        return log_p[0]

    # log((p_1 + ... + p_n) / n)
    return jax.nn.logsumexp(jnp.stack(log_p), axis=0) - math.log(len(log_p))


class Prediction(NamedTuple):
    """Log-probabilities of the next token: logits - log_normalizer.

    A search normalizes only the tokens that it keeps. The last axis is the vocabulary, or the
    `shortlisted` tokens of each row. In both, the index of a special token is its id.
    """

    logits: Float[Array, "B K V"]
    log_normalizer: Float[Array, "B K"]
    shortlisted: Int[Array, "B V"] | None = None


def decode_step(
    models: Sequence[AutoregressiveModel],
    tokens: Int[Array, "B K L"],
    position: Int[Array, ""],
    caches: Caches,
) -> tuple[Prediction, Caches]:
    """Returns the prediction of the token at `position` of each hypothesis, and the next caches."""
    # The models read the last token, at first BOS.
    last = jnp.where(position == 0, BOS, tokens[..., position - 1])
    pairs = zip(models, caches, strict=True)
    steps = [model.decode_step(last, position, cache) for model, cache in pairs]
    logits, caches = zip(*steps, strict=True)
    shortlisted = models[0].shortlisted if isinstance(models[0], ShortlistModel) else None
    if len(models) == 1:
        log_normalizer = logsumexp(logits[0])
        return Prediction(logits[0], log_normalizer, shortlisted), caches

    # The mean of probabilities is normalized.
    return Prediction(log_probabilities(logits), jnp.zeros(last.shape), shortlisted), caches


def forbidden_tokens(forbid_unk: bool) -> tuple[int, ...]:
    """Returns the tokens that are never generated.

    The probabilities of the other tokens are the same as in forced decoding.
    """
    return (PAD, BOS, UNK) if forbid_unk else (PAD, BOS)
