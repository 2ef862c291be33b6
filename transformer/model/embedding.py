"""Token embeddings (section 3.4), and the logits of tokens."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.model.linear import Linear, as_row
from transformer.model.matmul import (
    FLOAT32,
    QuantizedRows,
    TransposedMatrix,
    dequantize,
    linear_map,
    product_dtype,
)
from transformer.model.partitioning import shard_lookup


class Embedding(nnx.Module):
    """A matrix of token vectors (V, D).

    Inputs are its rows times sqrt(D); logits are products with its transpose.
    """

    def __init__(self, vocab_size: int, d_model: int, *, dtype: str, rngs: nnx.Rngs):
        initializer = nnx.initializers.normal(d_model**-0.5)
        self.table = nnx.Param(initializer(rngs.params(), (vocab_size, d_model), jnp.float32))
        self.dtype = dtype

    def __call__(self, tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        vectors = dequantize(
            jax.tree.map(lambda x: jnp.take(x, tokens, axis=0, mode="clip"), self.table.get_value())
        )
        return shard_lookup(
            (vectors * math.sqrt(vectors.shape[-1])).astype(product_dtype(self.dtype))
        )

    def logits(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Returns the logits of every token in float32."""
        table = self.table.get_value()
        weight = table if isinstance(table, QuantizedRows) else TransposedMatrix(table)
        return linear_map(x, weight, product_dtype(self.dtype), FLOAT32)


class TokenModel(nnx.Module):
    """Base class of models that have `hidden`: logits are products of its result and a table's
    rows, plus a bias.
    """

    def set_output(
        self, config: Config, embedding: Embedding, vocab_size: int, is_tied: bool, rngs: nnx.Rngs
    ) -> None:
        """Makes the output layer: the table of the embedding if it `is_tied`, else a projection,
        and perhaps a bias.
        """
        options = {"use_bias": False, "dtype": config.dtype, "output_dtype": FLOAT32, "rngs": rngs}
        self.output_embedding = embedding
        self.projection = None if is_tied else Linear(config.d_model, vocab_size, **options)
        self.output_bias = nnx.Param(jnp.zeros(vocab_size)) if config.output_bias else None

    def __call__(self, *inputs: Array, **options: Any) -> Float[Array, "*B V"]:
        """Returns the logits of the tokens that the model predicts.

        The arguments are those of `hidden`.
        """
        return self.logits(self.hidden(*inputs, **options))

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Returns the logits of the tokens, given the result of `hidden`."""
        logits = (
            self.output_embedding.logits(hidden)
            if self.projection is None
            else self.projection(hidden)
        )
        return (
            logits if self.output_bias is None else logits + as_row(self.output_bias[...], logits)
        )

    @property
    def output_table_and_bias(self) -> tuple[Float[Array, "V D"], Float[Array, " V"] | None]:
        is_tied = self.projection is None
        table = (
            dequantize(self.output_embedding.table.get_value())
            if is_tied
            else self.projection.transposed_kernel
        )
        return table, None if self.output_bias is None else self.output_bias[...]
