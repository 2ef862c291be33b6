"""Token embeddings (section 3.4)."""

import math

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.model.linear import flat_product
from transformer.model.partitioning import shard_rows
from transformer.model.products import FLOAT32, product_dtype


class Embedding(nnx.Module):
    """A matrix of token vectors (V, D). Inputs are its rows times sqrt(D); logits are products with its transpose."""

    def __init__(self, vocab_size: int, d_model: int, *, dtype: str, rngs: nnx.Rngs):
        initializer = nnx.initializers.normal(d_model**-0.5)
        self.table = nnx.Param(initializer(rngs.params(), (vocab_size, d_model), jnp.float32))
        self.dtype = dtype

    def __call__(self, tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        vectors = jnp.take(self.table[...], tokens, axis=0, mode="clip")
        return shard_rows((vectors * math.sqrt(vectors.shape[-1])).astype(product_dtype(self.dtype)))

    def logits(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Returns the logits of every token in float32."""
        return flat_product(x, self.table[...], product_dtype(self.dtype), FLOAT32, is_transposed=True)
