"""Attention (section 3.2): scaled dot-product, additive, and multi-head."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config, head_widths
from transformer.model.dropout import dropout, is_zero
from transformer.model.fused_attention import ATTENTION_IMPLEMENTATIONS, fused_attention
from transformer.model.linear import Linear
from transformer.model.masks import Mask
from transformer.model.relative_positions import UNRELATED, Relation


class MultiHeadAttention(nnx.Module):
    """MultiHead(Q, K, V) = Concat(head_1 ... head_H) W^O with head_i = Attention(Q W_i^Q, K W_i^K,
    V W_i^V) (3.2.2).

    The H matrices W_i are columns of one (D, H d) matrix, so Xavier's bound has that matrix's fans.
    `attention_weights` of `transformer.py` collects the weights, which fused attention does not
    compute.
    """

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        d_model, num_heads, (d_k, d_v) = config.d_model, config.num_heads, head_widths(config)
        options = {"use_bias": config.attention_bias, "dtype": config.dtype, "rngs": rngs}
        self.query = Linear(d_model, num_heads * d_k, **options)
        self.key = Linear(d_model, (config.num_key_heads or num_heads) * d_k, **options)
        self.value = Linear(d_model, (config.num_key_heads or num_heads) * d_v, **options)
        self.output = Linear(num_heads * d_v, d_model, **options)
        self.d_k, self.d_v, self.num_heads = d_k, d_v, num_heads
        self.attention_dropout = config.attention_dropout
        self.kernels = ATTENTION_IMPLEMENTATIONS[config.attention_implementation]
        self.score = ATTENTION_SCORES[config.attention](num_heads, d_k, rngs)

    def __call__(
        self,
        queries: Float[Array, "B T D"],
        keys_values: Float[Array, "B S D"],
        mask: Mask,
        rngs: nnx.Rngs | None = None,
        relation: Relation = UNRELATED,
        positions: Int[Array, "#B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Attends from `queries` to `keys_values`.

        In self-attention `relation` depends on the `positions` of both.
        """
        keys, values = self.project_keys_values(keys_values, relation, positions)
        queries = self.project_queries(queries, relation, positions)
        bias = relation.bias(queries, positions, positions)
        if self.score is dot_product_score and is_zero(self.attention_dropout) and bias is None:
            heads = fused_attention(self.kernels, queries, *self._for_each_head(keys, values), mask)
            if heads is not None:
                return self._merge_heads(heads)
        return self.attend(queries, keys, values, mask.dense, bias, rngs)

    def project_queries(
        self,
        x: Float[Array, "B T D"],
        relation: Relation = UNRELATED,
        positions: Int[Array, "#B T"] | None = None,
    ) -> Float[Array, "B T H dk"]:
        return relation.rotate(_split_heads(self.query(x), self.d_k), positions)

    def project_keys_values(
        self,
        x: Float[Array, "B S D"],
        relation: Relation = UNRELATED,
        positions: Int[Array, "#B S"] | None = None,
    ) -> tuple[Float[Array, "B S G dk"], Float[Array, "B S G dv"]]:
        keys, values = _split_heads(self.key(x), self.d_k), _split_heads(self.value(x), self.d_v)
        return relation.rotate(keys, positions), values

    def attend(
        self,
        queries: Float[Array, "B T H dk"],
        keys: Float[Array, "B S G dk"],
        values: Float[Array, "B S G dv"],
        mask: Bool[Array, "#B 1 #T S"],
        bias: Float[Array, "#B H T S"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        """Attends in the plain form, with projected queries, keys and values, which cached decoding
        has already.
        """
        keys, values = self._for_each_head(keys, values)
        scores = self.score(queries, keys)
        weights = masked_softmax(scores if bias is None else scores + bias, mask)
        if hasattr(self, "__captures__"):  # within `nnx.capture`
            self.sow(nnx.Intermediate, "weights", weights)
        weights = dropout(weights, self.attention_dropout, rngs).astype(values.dtype)
        return self._merge_heads(jnp.swapaxes(jnp.einsum("bhts,bshd->bhtd", weights, values), 1, 2))

    def _for_each_head(self, *groups: Float[Array, "B S G _"]) -> list[Float[Array, "B S H _"]]:
        """Repeats the keys or values of each group of heads that share them (Ainslie et al. 2023)."""
        repeats = self.num_heads // groups[0].shape[2]
        return [x if repeats == 1 else jnp.repeat(x, repeats, axis=2) for x in groups]

    def _merge_heads(self, heads: Float[Array, "B T H dv"]) -> Float[Array, "B T D"]:
        return self.output(heads.reshape(*heads.shape[:2], -1))


def _split_heads(x: Float[Array, "B L width"], head_width: int) -> Float[Array, "B L H d"]:
    return x.reshape(*x.shape[:2], -1, head_width)


def dot_product_score(
    queries: Float[Array, "B T H dk"], keys: Float[Array, "B S H dk"]
) -> Float[Array, "B H T S"]:
    """Returns q . k / sqrt(d_k) in float32 (equation 1)."""
    queries = (queries / jnp.float32(math.sqrt(queries.shape[-1]))).astype(queries.dtype)
    return unscaled_dot_product_score(queries, keys)


def unscaled_dot_product_score(
    queries: Float[Array, "B T H dk"], keys: Float[Array, "B S H dk"]
) -> Float[Array, "B H T S"]:
    """Returns q . k in float32, whose variance grows with d_k (section 3.2.1, footnote 4)."""
    return jnp.einsum("bthd,bshd->bhts", queries, keys, preferred_element_type=jnp.float32)


class AdditiveScore(nnx.Module):
    """v . tanh(q + k) for projected q and k (Bahdanau et al. 2015); each head's v is drawn as a
    (d_k, 1) matrix.
    """

    def __init__(self, num_heads: int, d_k: int, rngs: nnx.Rngs):
        bound = math.sqrt(6.0 / (d_k + 1))
        self.v = nnx.Param(
            jax.random.uniform(rngs.params(), (num_heads, d_k), jnp.float32, -bound, bound)
        )

    def __call__(
        self, queries: Float[Array, "B T H dk"], keys: Float[Array, "B S H dk"]
    ) -> Float[Array, "B H T S"]:
        # In float32, since the gradients of queries and keys are sums over S and T.
        queries, keys = queries.astype(jnp.float32), keys.astype(jnp.float32)
        hidden = jnp.tanh(queries[:, :, None] + keys[:, None])
        return jnp.einsum("btshd,hd->bhts", hidden, self.v[...])


ATTENTION_SCORES = {
    "dot_product": lambda num_heads, d_k, rngs: dot_product_score,
    "dot_product_unscaled": lambda num_heads, d_k, rngs: unscaled_dot_product_score,
    "additive": AdditiveScore,
}


def masked_softmax(
    scores: Float[Array, "B H T S"], mask: Bool[Array, "#B 1 #T S"]
) -> Float[Array, "B H T S"]:
    """Returns the softmax over the unmasked keys.

    A row without any gets zeros instead of uniform weights.
    """
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1)
    return jnp.where(mask, weights, 0.0)
