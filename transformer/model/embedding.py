"""Token embeddings (section 3.4), and the logits of tokens."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.model.linear import Linear, expand_to_rank
from transformer.model.matmul import FLOAT32, matmul_dtype
from transformer.model.partitioning import shard_lookup
from transformer.model.stored_weights import (
    QuantizedRows,
    TransposedMatrix,
    dequantize,
    linear_map,
    transposed,
)


class Embedding(nnx.Module):
    """A matrix of token vectors (V, D).

    The embedding of a token is its row times sqrt(D). Logits are matmuls with the transpose.
    """

    def __init__(self, vocab_size: int, d_model: int, *, dtype: str, rngs: nnx.Rngs):
        initializer = nnx.initializers.normal(d_model**-0.5)
        self.table = nnx.Param(initializer(rngs.params(), (vocab_size, d_model), jnp.float32))
        self.dtype = dtype

    def __call__(self, tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        # A quantized table has two arrays, integers and scales.
        rows = jax.tree.map(
            lambda x: jnp.take(x, tokens, axis=0, mode="clip"), self.table.get_value()
        )
        vectors = dequantize(rows).astype(FLOAT32)  # (B, L, D)
        # "In the embedding layers, we multiply those weights by sqrt(d_model)" (section 3.4).
        scaled = vectors * math.sqrt(vectors.shape[-1])
        return shard_lookup(scaled.astype(matmul_dtype(self.dtype)))

    def logits(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Returns the logits of every token in float32."""
        # Section 3.4: the pre-softmax linear transformation is the transpose of the embedding.
        table = self.table.get_value()
        weight = table if isinstance(table, QuantizedRows) else TransposedMatrix(table)
        return linear_map(x, weight, matmul_dtype(self.dtype), FLOAT32)


def make_embedding(model_config: Config, vocab_size: int, rngs: nnx.Rngs) -> Embedding:
    """Returns an embedding of the model's width and dtype."""
    return Embedding(vocab_size, model_config.d_model, dtype=model_config.dtype, rngs=rngs)


class TokenModel(nnx.Module):
    """Base class of models that predict tokens.

    Subclasses define `hidden`, a function of the inputs that returns vectors. Logits are matmuls of
    these vectors with the rows of a table, plus a bias.
    """

    hidden: Callable[..., Float[Array, "*B D"]]

    def set_output(
        self,
        model_config: Config,
        embedding: Embedding,
        vocab_size: int,
        is_tied: bool,
        rngs: nnx.Rngs,
    ) -> None:
        """Creates the output layer.

        It is the table of the embedding if it `is_tied`, else a projection, and perhaps a bias.
        """
        self.output_embedding = embedding
        if is_tied:
            self.projection = None
        else:
            self.projection = Linear(
                model_config.d_model,
                vocab_size,
                use_bias=False,
                dtype=model_config.dtype,
                output_dtype=FLOAT32,
                rngs=rngs,
            )
        has_bias = model_config.output_bias
        self.output_bias = nnx.Param(jnp.zeros(vocab_size)) if has_bias else None

    def __call__(self, *inputs: Array, **options: Any) -> Float[Array, "*B V"]:
        """Returns the logits of the tokens that the model predicts.

        The arguments are those of `hidden`.
        """
        return self.logits(self.hidden(*inputs, **options))

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Returns the logits of the tokens for a result of `hidden`."""
        if self.projection is None:
            logits = self.output_embedding.logits(hidden)
        else:
            logits = self.projection(hidden)
        if self.output_bias is None:
            return logits
        return logits + expand_to_rank(self.output_bias[...], logits)

    @property
    def output_table_and_bias(self) -> tuple[Float[Array, "V D"], Float[Array, " V"] | None]:
        """The table and the bias of the logits, for losses and searches that compute these."""
        if self.projection is None:
            table = dequantize(self.output_embedding.table.get_value())
        else:
            table = transposed(self.projection.kernel.get_value())
        return table, None if self.output_bias is None else self.output_bias[...]
