"""An ensemble of one or more models, which averages their probabilities of the next token."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.decoding.shortlist import CandidateModel
from transformer.special_tokens import BOS, PAD, UNK


@runtime_checkable
class Cache(Protocol):
    """The arrays that a model keeps of its hypotheses, a pytree."""

    def reorder(self, parents: Int[Array, "B K"]) -> "Cache":
        """Returns the cache in which hypothesis k of a sentence continues hypothesis parents[k]."""


@runtime_checkable
class AutoregressiveModel(Protocol):
    """A model that predicts one token after another: `Transformer`, or `LanguageModel`, whose source is a prompt."""

    def start_cache(self, source: Int[Array, "B S"], beams: int, length: int) -> Cache:
        """Starts `beams` hypotheses per source of at most `length` tokens, BOS included."""

    def decode_step(
        self, tokens: Int[Array, "B K"], position: Int[Array, ""], cache: Cache
    ) -> tuple[Float[Array, "B K V"], Cache]:
        """Returns the logits of the token after `tokens`, which are at `position` (BOS: 0) of each hypothesis."""


Caches = tuple[Cache, ...]


def build_models(
    graphs: Sequence[nnx.GraphDef], parameters: Sequence[dict], candidates: Int[Array, "B C"] | None = None
) -> list[nnx.Module] | list[CandidateModel]:
    """Returns the models with these structures and these parameters, which are nested dictionaries of arrays.

    With `candidates`, they predict only these tokens of each row.
    """
    models = [nnx.merge(graph, nnx.State(tree)) for graph, tree in zip(graphs, parameters, strict=True)]
    return models if candidates is None else [CandidateModel(model, candidates) for model in models]


def log_probabilities(logits: Sequence[Float[Array, "*B V"]]) -> Float[Array, "*B V"]:
    """Returns the log of the mean of the models' probabilities, given the logits of each model."""
    each = [jax.nn.log_softmax(x, axis=-1) for x in logits]
    if len(each) == 1:
        return each[0]
    return jax.nn.logsumexp(jnp.stack(each), axis=0) - math.log(len(each))


class Prediction(NamedTuple):
    """Log-probabilities of the next token before their normalization: logits - log_normalizer.

    A search normalizes only the tokens that it keeps, which saves passes over the vocabulary.

    The last axis has the vocabulary, or the `candidates` of each row. Special tokens have their ids as indices in both.
    """

    logits: Float[Array, "B K V"]
    log_normalizer: Float[Array, "B K"]
    candidates: Int[Array, "B V"] | None = None

    @property
    def log_p(self) -> Float[Array, "B K V"]:
        return self.logits - self.log_normalizer[:, :, None]

    def log_p_of(self, token: int) -> Float[Array, "B K"]:
        """`token` is a special token."""
        return self.logits[:, :, token] - self.log_normalizer

    def tokens_at(self, index: Int[Array, "B N"]) -> Int[Array, "B N"]:
        """Returns the ids of the tokens at these indices of the last axis."""
        return index if self.candidates is None else jnp.take_along_axis(self.candidates, index, axis=1)


def decode_step(
    models: Sequence[AutoregressiveModel], tokens: Int[Array, "B K"], position: Int[Array, ""], caches: Caches
) -> tuple[Prediction, Caches]:
    """Returns the models' prediction of the token after `tokens`, which are at `position` of each hypothesis."""
    steps = [model.decode_step(tokens, position, cache) for model, cache in zip(models, caches, strict=True)]
    each = [logits for logits, _ in steps]
    if len(each) == 1:
        prediction = Prediction(each[0], jax.nn.logsumexp(each[0], axis=-1))
    else:
        prediction = Prediction(log_probabilities(each), jnp.zeros(tokens.shape))
    if isinstance(models[0], CandidateModel):
        prediction = prediction._replace(candidates=models[0].candidates)
    return prediction, tuple(cache for _, cache in steps)


def forbidden_tokens(forbid_unk: bool) -> tuple[int, ...]:
    """Returns the tokens that are never generated.

    The remaining probabilities are not renormalized, so that a translation's score equals its score by forced decoding.
    """
    return (PAD, BOS, UNK) if forbid_unk else (PAD, BOS)
