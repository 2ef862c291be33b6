"""The coverage penalty of Wu et al. (2016, equation 14), by which a finished beam is ranked.

cp(X; Y) = beta * sum_i log(min(sum_j p_ij, 1)), where p_ij is the attention to source token i at
output token j.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.decoding.beam_search import (
    Models,
    SearchResult,
    SourceBatch,
    beam_search,
)
from transformer.decoding.forced_decoding import shift_right
from transformer.decoding.top_k import gather
from transformer.model.transformer import attention_weights
from transformer.support.special_tokens import EOS, PAD


def search_with_coverage(
    models: Models, sentences: SourceBatch, decoding_config: Config, n_best: int
) -> SearchResult:
    """Returns the best hypotheses by score plus coverage penalty, and which rows are done."""
    # The penalty ranks the whole beam, so the search returns all of it.
    hypotheses, done = beam_search(models, sentences, decoding_config, decoding_config.beam_size)
    rows, beams, length = hypotheses.tokens.shape
    targets = hypotheses.tokens.reshape(-1, length)  # (B * K, L)
    log_coverages = log_coverage(models, sentences.source, targets, beams)
    penalties = (decoding_config.coverage_penalty * log_coverages).reshape(rows, beams)
    scores, best = jax.lax.top_k(hypotheses.scores + penalties, n_best)
    return gather(hypotheses, best)._replace(scores=scores), done


def log_coverage(
    models: Sequence[Any], source: Int[Array, "B S"], target: Int[Array, "N T"], beams: int
) -> Float[Array, " N"]:
    """Returns the log of the attention of models to each source token, at most 0, summed over the
    tokens.

    EOS is not counted. The attention is the mean over the heads of the last decoder layer, and over
    the models. The `beams` targets of a source follow each other.
    """
    # One forward pass of each decoder over the outputs, with each source repeated for its beam.
    weights = []
    for model in models:
        memory = jax.tree.map(lambda x: jnp.repeat(x, beams, axis=0), model.encode(source))
        attentions = attention_weights(model.decoder, shift_right(target), memory)
        weights.append(attentions["cross"][-1].mean(axis=1))  # (N, T, S)
    is_output = (target != PAD)[..., None]
    attention = jnp.where(is_output, sum(weights) / len(models), 0.0).sum(axis=1)  # (N, S)

    # A source token without any attention costs a large penalty, not an infinite one.
    attention = jnp.clip(attention, jnp.finfo(jnp.float32).tiny, 1.0)
    is_counted = jnp.repeat((source != PAD) & (source != EOS), beams, axis=0)
    return jnp.where(is_counted, jnp.log(attention), 0.0).sum(axis=1)
