"""Reductions over the vocabulary of logits whose columns may be split over devices."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.model.partitioning import target_platform

Logits = Float[Array, "B T C"]  # C columns of the vocabulary, all V or the part of a device
PerToken = Float[Array, "B T"]
Tokens = Int[Array, "B T"]

LOWEST = float(np.finfo(np.float32).min)
# Bytes of the float32 logits of a chunk of the loss, on each device. TPUs keep small chunks in
# their vector memory. Every chunk adds to the whole gradient of the output table.
CHUNK_BYTES = {"cpu": 2**27, "gpu": 2**29, "tpu": 2**26}
# Small tables allow chunks that stay in the caches of CPUs (docs/performance.md).
CPU_BYTES_PER_TABLE_BYTE = 2
# The number of logits of a position is padded to a multiple of the tiles of matrix units.
COLUMN_MULTIPLE = {"cpu": 1, "gpu": 128, "tpu": 128}


def rows_per_chunk(bytes_per_row: int, table_bytes: int) -> int:
    """Returns the number of rows of a chunk on each device.

    The sizes are those of the float32 logits of a row, and of the float32 output table.
    """
    limit = CHUNK_BYTES[target_platform()]
    if target_platform() == "cpu":
        limit = min(limit, CPU_BYTES_PER_TABLE_BYTE * table_bytes)
    return max(limit // bytes_per_row, 1)


def pad_rows(x: Array, rows: int) -> Array:
    """Returns x with zeros in further rows, so that it has `rows` in all."""
    return jnp.pad(x, ((0, rows - len(x)), *[(0, 0)] * (x.ndim - 1)))


@dataclass(frozen=True)
class Columns:
    """The columns of the logits on one device: the whole vocabulary, or a part if a mesh splits it.

    The methods reduce (B, T, C) to (B, T) over the whole vocabulary, so that a loss does not depend
    on the mesh. Their results and gradients are right on every device.
    """

    tokens: Int[Array, "1 1 C"]  # the token of each column
    vocab_size: int
    axis: str | None = None  # the mesh axis that splits the vocabulary
    is_padded: bool = False  # if True, columns from `vocab_size` on have the logit `LOWEST`

    @classmethod
    def whole(cls, vocab_size: int) -> "Columns":
        """Returns the columns of a vocabulary on one device."""
        return cls(jnp.arange(vocab_size)[None, None], vocab_size)

    def sum(self, x: Logits) -> PerToken:
        """Returns the sum over the vocabulary."""
        if self.is_padded:
            x = jnp.where(self.tokens < self.vocab_size, x, 0.0)
        total = jnp.sum(x, axis=-1)
        return total if self.axis is None else jax.lax.psum(total, self.axis)

    def take(self, x: Logits, tokens: Tokens) -> PerToken:
        """Returns the values of one token at each position."""
        if target_platform() == "cpu" and self.axis is None:
            return _gather(x, tokens)
        return self.sum(jnp.where(self.tokens == tokens[..., None], x, 0.0))

    def max(self, x: Logits) -> PerToken:
        """Returns the maximum over the vocabulary, as a constant: it has no gradient."""
        maximum, _ = self.max_and_exponentials(x)
        return maximum

    def max_and_exponentials(self, x: Logits) -> tuple[PerToken, PerToken]:
        """Returns the maximum and sum(exp(x - maximum)) over the vocabulary, as constants."""
        return max_and_exponentials(jax.lax.stop_gradient(x), self.axis)

    def logsumexp(self, x: Logits) -> PerToken:
        """Returns log(sum(exp(x))) over the vocabulary."""
        return _logsumexp(x, self.axis)


# The gradient is written by hand, because JAX cannot differentiate a reduction that computes the
# maximum and the sum at once.
@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _logsumexp(x: Logits, axis: str | None) -> PerToken:
    result, _ = _logsumexp_forward(x, axis)
    return result


def _logsumexp_forward(x, axis):
    maximum, exponentials = max_and_exponentials(x, axis)
    return maximum + jnp.log(exponentials), (x, maximum, exponentials)


def _logsumexp_backward(axis, residuals, gradient):
    x, maximum, exponentials = residuals
    # d logsumexp(x) / dx = softmax(x). On CPUs exp(x - maximum) is in memory: its sum needed it.
    scale = gradient / exponentials
    return (scale[..., None] * jnp.exp(x - maximum[..., None]),)


_logsumexp.defvjp(_logsumexp_forward, _logsumexp_backward)


# XLA for CPUs would write the masked values of a sum to memory, so CPUs gather. The gradient is
# written by hand, because that of a gather is a scatter, which is slow.
@jax.custom_vjp
def _gather(x: Logits, tokens: Tokens) -> PerToken:
    return jnp.take_along_axis(x, tokens[..., None], axis=-1)[..., 0]


def _gather_forward(x, tokens):
    return _gather(x, tokens), (x, tokens)


def _gather_backward(residuals, gradient):
    x, tokens = residuals
    columns = jnp.arange(x.shape[-1])[None, None]  # (1, 1, C)
    return jnp.where(columns == tokens[..., None], gradient[..., None], 0.0), None


_gather.defvjp(_gather_forward, _gather_backward)


def max_and_exponentials(x: Logits, axis: str | None) -> tuple[PerToken, PerToken]:
    """Returns the maximum of each row and the sum of exp(x - maximum), over all devices of `axis`.

    CPUs read x twice, which is faster there (docs/performance.md).
    """
    if target_platform() == "cpu":
        maximum = jnp.max(x, axis=-1)
        exponentials = jnp.sum(jnp.exp(x - maximum[..., None]), axis=-1)
    else:
        start = jnp.float32(LOWEST), jnp.float32(0.0)
        operands = (x, jnp.ones_like(x))
        maximum, exponentials = jax.lax.reduce(operands, start, _merge, (x.ndim - 1,))
    if axis is None:
        return maximum, exponentials

    largest = jax.lax.pmax(maximum, axis)
    return largest, jax.lax.psum(exponentials * jnp.exp(maximum - largest), axis)


def _merge(a, b):
    """Merges the (maximum, sum) of two parts of a row: rescales each sum to the larger maximum."""
    maximum = jnp.maximum(a[0], b[0])
    sum_a = a[1] * jnp.exp(a[0] - maximum)
    sum_b = b[1] * jnp.exp(b[0] - maximum)
    return maximum, sum_a + sum_b
