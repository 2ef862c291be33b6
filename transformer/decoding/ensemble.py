"""One or several models as one: the average of their probabilities of the next token."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.model.stacks import DecodingCache
from transformer.model.transformer import Transformer
from transformer.special_tokens import BOS, PAD

Caches = tuple[DecodingCache, ...]


def merge(graphs: Sequence[nnx.GraphDef], parameters: Sequence[dict]) -> list[Transformer]:
    """The models of these structures with these parameters, nested dictionaries of arrays."""
    return [nnx.merge(graph, nnx.State(tree)) for graph, tree in zip(graphs, parameters, strict=True)]


def log_probabilities(logits: Sequence[Float[Array, "B T V"]]) -> Float[Array, "B T V"]:
    """log of the models' mean probabilities, one array of logits a model."""
    each = [jax.nn.log_softmax(x, axis=-1) for x in logits]
    if len(each) == 1:
        return each[0]
    return jax.nn.logsumexp(jnp.stack(each), axis=0) - math.log(len(each))


def start_caches(models: Sequence[Transformer], source: Int[Array, "B S"], beams: int, length: int) -> Caches:
    return tuple(model.start_cache(source, beams, length) for model in models)


def decode_step(
    models: Sequence[Transformer], tokens: Int[Array, "B K"], position: Int[Array, ""], caches: Caches
) -> tuple[Float[Array, "B K V"], Caches]:
    """Log-probabilities of the token after `tokens`. PAD and BOS, which are never written, have none left.

    The other tokens keep theirs as they are, so that a translation's score is its score by forced decoding.
    """
    steps = [model.decode_step(tokens, position, cache) for model, cache in zip(models, caches, strict=True)]
    log_p = log_probabilities([logits for logits, _ in steps])
    vocabulary = jnp.arange(log_p.shape[-1])[None, None]
    log_p = jnp.where((vocabulary == PAD) | (vocabulary == BOS), -jnp.inf, log_p)
    return log_p, tuple(cache for _, cache in steps)


def reorder(caches: Caches, parents: Int[Array, "B K"]) -> Caches:
    """Caches in which hypothesis k goes on from what was hypothesis parents[k] of its sentence."""
    return tuple(cache.reorder(parents) for cache in caches)
