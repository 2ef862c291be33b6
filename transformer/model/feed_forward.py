"""Position-wise feed-forward networks (section 3.3) and their gated variants (Shazeer 2020)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float

from transformer.config_types import Config
from transformer.model.dropout import dropout
from transformer.model.linear import Linear


class Gated(NamedTuple):
    """An activation whose result is multiplied with a second linear map of the input."""

    function: Callable[[jax.Array], jax.Array]


# jax.nn.gelu is the tanh approximation by default, unlike PyTorch's, which is exact.
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "glu": Gated(jax.nn.sigmoid),
    "geglu": Gated(jax.nn.gelu),
    "swiglu": Gated(jax.nn.silu),
}


class FeedForward(nnx.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2); gated: (f(x W1 + b1) * (x W3 + b3)) W2 + b2."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        options = {"dtype": config.dtype, "rngs": rngs}
        self.inner = Linear(config.d_model, config.d_ff, **options)
        self.outer = Linear(config.d_ff, config.d_model, **options)
        function = ACTIVATIONS[config.activation]
        is_gated = isinstance(function, Gated)
        self.gate = Linear(config.d_model, config.d_ff, **options) if is_gated else None
        self.activation = function.function if is_gated else function
        self.dropout_rate = config.activation_dropout

    def __call__(self, x: Float[Array, "B T D"], rngs: nnx.Rngs | None = None) -> Float[Array, "B T D"]:
        hidden = self.activation(self.inner(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.outer(dropout(hidden, self.dropout_rate, rngs))
