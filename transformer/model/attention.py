"""Attention (section 3.2): scaled dot-product, additive, and multi-head."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config, head_widths
from transformer.model.dropout import dropout, is_zero
from transformer.model.fused_attention import ATTENTION_IMPLEMENTATIONS, fused_attention
from transformer.model.linear import Linear
from transformer.model.masks import Mask
from transformer.model.matmul import query_key_matmul, weight_value_matmul
from transformer.model.relative_positions import NO_RELATIVE_POSITIONS, RelativePositions

Vectors = Float[Array, "B T D"]
Queries = Float[Array, "B T H dk"]
Keys = Float[Array, "B S H dk"]
Scores = Float[Array, "B H T S"]


class MultiHeadAttention(nnx.Module):
    """Multi-head attention (section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W^O,
    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The H matrices W_i are blocks of columns of one matrix (D, H d). Its shape determines the bound
    of Xavier's initialization. Heads of queries may share G < H heads of keys and values.
    """

    def __init__(self, model_config: Config, *, rngs: nnx.Rngs):
        d_model = model_config.d_model
        num_heads = model_config.num_heads
        num_key_heads = model_config.num_key_heads or num_heads
        d_k, d_v = head_widths(model_config)

        # W^Q, W^K, W^V and W^O of all heads
        options = {
            "use_bias": model_config.attention_bias,
            "dtype": model_config.dtype,
            "rngs": rngs,
        }
        self.query = Linear(d_model, num_heads * d_k, **options)
        self.key = Linear(d_model, num_key_heads * d_k, **options)
        self.value = Linear(d_model, num_key_heads * d_v, **options)
        self.output = Linear(num_heads * d_v, d_model, **options)

        self.d_k = d_k
        self.d_v = d_v
        self.num_heads = num_heads
        self.attention_dropout_rate = model_config.attention_dropout
        self.implementations = ATTENTION_IMPLEMENTATIONS[model_config.attention_implementation]
        self.score = ATTENTION_SCORES[model_config.attention](num_heads, d_k, rngs)

    def __call__(
        self,
        queries: Vectors,
        keys_values: Float[Array, "B S D"],
        mask: Mask,
        rngs: nnx.Rngs | None = None,
        relative_positions: RelativePositions = NO_RELATIVE_POSITIONS,
        positions: Int[Array, "#B T"] | None = None,
    ) -> Vectors:
        """Attends from `queries` to `keys_values`.

        Relative positions are for self-attention: `positions` are those of queries and keys.
        """
        keys, values = self.project_keys_values(keys_values, relative_positions, positions)
        queries = self.project_queries(queries, relative_positions, positions)
        bias = relative_positions.score_bias(queries, positions, positions)

        # Fused implementations compute equation 1 only, without dropout and biases.
        has_dropout = not is_zero(self.attention_dropout_rate)
        if self.score is dot_product_score and not has_dropout and bias is None:
            heads = fused_attention(
                self.implementations,
                queries,
                self._repeat_groups(keys),
                self._repeat_groups(values),
                mask,
            )
            if heads is not None:
                return self._merge_heads(heads)
        return self.attend(queries, keys, values, mask.dense, bias, rngs)

    def project_queries(
        self,
        x: Vectors,
        relative_positions: RelativePositions = NO_RELATIVE_POSITIONS,
        positions: Int[Array, "#B T"] | None = None,
    ) -> Queries:
        """Returns Q W_i^Q of all heads."""
        queries = _split_heads(self.query(x), self.d_k)
        return relative_positions.rotate(queries, positions)

    def project_keys_values(
        self,
        x: Float[Array, "B S D"],
        relative_positions: RelativePositions = NO_RELATIVE_POSITIONS,
        positions: Int[Array, "#B S"] | None = None,
    ) -> tuple[Float[Array, "B S G dk"], Float[Array, "B S G dv"]]:
        """Returns K W_i^K and V W_i^V of all heads of keys and values."""
        keys = _split_heads(self.key(x), self.d_k)
        values = _split_heads(self.value(x), self.d_v)
        return relative_positions.rotate(keys, positions), values

    def attend(
        self,
        queries: Queries,
        keys: Float[Array, "B S G dk"],
        values: Float[Array, "B S G dv"],
        mask: Bool[Array, "#B 1 #T S"],
        bias: Float[Array, "#B H T S"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Vectors:
        """Attends with projected queries, keys and values, in the plain form of equation 1.

        Cached decoding calls this method directly, because it stores projected keys and values.
        Fused attention may replace it in training and validation, so edits of this method also
        need model.attention_implementation=plain.
        """
        keys = self._repeat_groups(keys)
        values = self._repeat_groups(values)

        # softmax(Q K^T / sqrt(d_k)) V (equation 1)
        scores = self.score(queries, keys)
        if bias is not None:
            scores = scores + bias
        weights = masked_softmax(scores, mask)
        if hasattr(self, "__captures__"):  # within `nnx.capture`
            self.sow(nnx.Intermediate, "weights", weights)
        weights = dropout(weights, self.attention_dropout_rate, rngs)
        return self._merge_heads(weight_value_matmul(weights, values))

    def _repeat_groups(self, x: Float[Array, "B S G _"]) -> Float[Array, "B S H _"]:
        """Repeats the keys or values that several heads of queries share (Ainslie et al. 2023)."""
        repeats = self.num_heads // x.shape[2]
        return x if repeats == 1 else jnp.repeat(x, repeats, axis=2)

    def _merge_heads(self, heads: Float[Array, "B T H dv"]) -> Vectors:
        concatenated = heads.reshape(*heads.shape[:2], -1)  # (B, T, H d_v)
        return self.output(concatenated)


def _split_heads(x: Float[Array, "B L width"], head_width: int) -> Float[Array, "B L H d"]:
    return x.reshape(*x.shape[:2], -1, head_width)  # (B, L, H, d)


def dot_product_score(queries: Queries, keys: Keys) -> Scores:
    """Returns q . k / sqrt(d_k) in float32 (equation 1)."""
    # The division is cheaper for queries (B, T, H, d_k) than for scores (B, H, T, S).
    queries = (queries / jnp.float32(math.sqrt(queries.shape[-1]))).astype(queries.dtype)
    return unscaled_dot_product_score(queries, keys)


def unscaled_dot_product_score(queries: Queries, keys: Keys) -> Scores:
    """Returns q . k in float32. Its variance grows with d_k (section 3.2.1, footnote 4)."""
    return query_key_matmul(queries, keys)


class AdditiveScore(nnx.Module):
    """v . tanh(q + k) for projected q and k (Bahdanau et al. 2015).

    Each head has a vector v, initialized like a matrix (d_k, 1).
    """

    def __init__(self, num_heads: int, d_k: int, rngs: nnx.Rngs):
        bound = math.sqrt(6.0 / (d_k + 1))
        self.v = nnx.Param(
            jax.random.uniform(rngs.params(), (num_heads, d_k), jnp.float32, -bound, bound)
        )

    def __call__(self, queries: Queries, keys: Keys) -> Scores:
        # In float32, because the gradients of queries and keys are sums over S and T.
        queries = queries.astype(jnp.float32)
        keys = keys.astype(jnp.float32)
        hidden = jnp.tanh(queries[:, :, None] + keys[:, None])  # (B, T, S, H, d_k)
        return jnp.einsum("btshd,hd->bhts", hidden, self.v[...])


# Functions of (num_heads, d_k, rngs) that return a score, a function of queries and keys.
ATTENTION_SCORES: dict[str, Callable[..., Callable[[Array, Array], Array]]] = {
    "dot_product": lambda num_heads, d_k, rngs: dot_product_score,
    "dot_product_unscaled": lambda num_heads, d_k, rngs: unscaled_dot_product_score,
    "additive": AdditiveScore,
}


def masked_softmax(scores: Scores, mask: Bool[Array, "#B 1 #T S"]) -> Scores:
    """Returns the softmax over the unmasked keys.

    The weights of a query without unmasked keys are zeros, not uniform.
    """
    # The paper sets masked scores to -infinity (section 3.2.3). The lowest number gives the same
    # weights without NaN in rows that are all masked.
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.where(mask, weights, 0.0)
