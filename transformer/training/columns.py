"""Reductions over the vocabulary of logits whose columns may be split over devices."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.model import kernels


@dataclass(frozen=True)
class Columns:
    """The columns of the logits on a device: those of the whole vocabulary, or of a part if the
    mesh splits them.

    The methods reduce (B, T, C) to (B, T) over the whole vocabulary, so that a loss does not depend
    on the mesh. Their results and gradients are right on every device.
    """

    tokens: Int[Array, "1 1 C"]  # the token of each column
    vocab_size: int
    axis: str | None = None  # the mesh axis that splits the vocabulary
    # whether there are columns of `vocab_size` or more, which have the `LOWEST` logits
    is_padded: bool = False

    @classmethod
    def whole(cls, vocab_size: int) -> "Columns":
        """Returns the columns of a vocabulary on one device."""
        return cls(jnp.arange(vocab_size)[None, None], vocab_size)

    def sum(self, x: Float[Array, "B T C"]) -> Float[Array, "B T"]:
        """Returns the sum over the vocabulary."""
        x = jnp.where(self.tokens < self.vocab_size, x, 0.0) if self.is_padded else x
        total = jnp.sum(x, axis=-1)
        return total if self.axis is None else jax.lax.psum(total, self.axis)

    def take(self, x: Float[Array, "B T C"], tokens: Int[Array, "B T"]) -> Float[Array, "B T"]:
        """Returns the values of one token at each position."""
        return self.sum(jnp.where(self.tokens == tokens[..., None], x, 0.0))

    def max(self, x: Float[Array, "B T C"]) -> Float[Array, "B T"]:
        """Returns the maximum over the vocabulary, as a constant: it has no gradient."""
        maximum, _ = kernels.max_and_exponentials(jax.lax.stop_gradient(x))
        return maximum if self.axis is None else jax.lax.pmax(maximum, self.axis)

    def logsumexp(self, x: Float[Array, "B T C"]) -> Float[Array, "B T"]:
        """Returns log(sum(exp(x)))."""
        return _logsumexp(x, self.axis)


# A hand-written gradient, because JAX has none of a reduction that finds the maximum and the sum at
# once.
@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _logsumexp(x: Float[Array, "B T C"], axis: str | None) -> Float[Array, "B T"]:
    result, _ = _logsumexp_forward(x, axis)
    return result


def _logsumexp_forward(
    x: Float[Array, "B T C"], axis: str | None
) -> tuple[Float[Array, "B T"], tuple]:
    maximum, exponentials = kernels.max_and_exponentials(x)
    if axis is not None:
        largest = jax.lax.pmax(maximum, axis)
        exponentials = jax.lax.psum(exponentials * jnp.exp(maximum - largest), axis)
        maximum = largest
    result = maximum + jnp.log(exponentials)
    return result, (x, result)


def _logsumexp_backward(
    axis: str | None, saved: tuple, gradient: Float[Array, "B T"]
) -> tuple[Float[Array, "B T C"]]:
    x, result = saved
    return (gradient[..., None] * jnp.exp(x - result[..., None]),)


_logsumexp.defvjp(_logsumexp_forward, _logsumexp_backward)
