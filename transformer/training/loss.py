"""Losses of target tokens as functions of logits, in nats. JAX differentiates them.

`columns` reduce the last axis of the logits. The losses of padding are ignored.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.support.special_tokens import PAD
from transformer.training.columns import Columns


@struct.dataclass
class LossSums:
    """Sums over target tokens, float32 scalars.

    Typed Any, since JAX builds trees of shapes and shardings too.
    """

    loss: Any  # label-smoothed cross-entropy, nats
    nll: Any  # -log p(truth), nats
    correct: Any  # tokens for which the truth has the highest logit
    tokens: Any

    @classmethod
    def zeros(cls) -> "LossSums":
        return cls(*(jnp.zeros(()) for _ in dataclasses.fields(cls)))


# (columns, targets (B, T, 1)) to the weight of each column in the smoothing; the weights sum to 1.
LABEL_SMOOTHING_SUPPORTS = {
    "uniform": lambda columns, targets: 1 / columns.vocab_size,  # Szegedy et al. 2016
    # All but the truth and padding (the Annotated Transformer).
    "others": lambda columns, targets: (
        ((columns.tokens != targets) & (columns.tokens != PAD)) / (columns.vocab_size - 2)
    ),
}


def token_losses(
    logits: Float[Array, "B T C"],
    targets: Int[Array, "B T"],
    columns: Columns,
    *teachers: Float[Array, "B T C"],
    training: Config,
    passes: int,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Returns the criterion that is trained on, and the loss that is reported. `training` is
    `config.training`.

    With two passes (R-Drop), rows 2i and 2i + 1 are passes of the same sentence. The logits of
    teachers are there for losses of experiments; see docs/extending.md.
    """
    loss = smoothed_cross_entropy(
        logits, targets, columns, training.label_smoothing, training.label_smoothing_support
    )
    if passes == 1:
        return loss, loss
    # The paper adds the losses of both passes (equation 3). This is their mean, so all terms are
    # halved.
    return loss + training.r_drop / 2 * symmetric_kl(logits, columns), loss


def sum_losses(
    losses: tuple[Float[Array, "B T"], Float[Array, "B T"]],
    logits: Float[Array, "B T C"],
    targets: Int[Array, "B T"],
    columns: Columns,
    weights: Float[Array, "B T"],
) -> tuple[Float[Array, ""], LossSums]:
    """Returns the sums of a result of `token_losses`, and of all else that a step reports, weighted
    by token.
    """
    criterion, loss = losses
    nll = cross_entropy(logits, targets, columns)
    is_correct = columns.take(logits, targets) >= columns.max(logits)
    reported = LossSums(loss, nll, is_correct, jnp.ones_like(loss))
    return jnp.sum(weights * criterion), jax.tree.map(lambda x: jnp.sum(weights * x), reported)


def cross_entropy(
    logits: Float[Array, "B T C"], targets: Int[Array, "B T"], columns: Columns
) -> Float[Array, "B T"]:
    """Returns -log p(target)."""
    return columns.logsumexp(logits) - columns.take(logits, targets)


def smoothed_cross_entropy(
    logits: Float[Array, "B T C"],
    targets: Int[Array, "B T"],
    columns: Columns,
    smoothing: float | Float[Array, ""],
    support: str,
) -> Float[Array, "B T"]:
    """Returns -sum_v q(v) log p(v), where q has 1 - smoothing on the target and spreads the rest
    (section 5.4).

    `support` is a key of `LABEL_SMOOTHING_SUPPORTS`.
    """
    weights = LABEL_SMOOTHING_SUPPORTS[support](columns, targets[..., None])
    truth = columns.take(logits, targets)
    spread = columns.sum(weights * logits)
    return columns.logsumexp(logits) - (1.0 - smoothing) * truth - smoothing * spread


def symmetric_kl(logits: Float[Array, "B T C"], columns: Columns) -> Float[Array, "B T"]:
    """Returns (KL(p || q) + KL(q || p)) / 2 for p and q in rows 2i and 2i + 1, in both (R-Drop,
    Liang et al. 2021).
    """
    log_p = logits - columns.logsumexp(logits)[..., None]
    first, second = log_p[::2], log_p[1::2]
    divergence = columns.sum((jnp.exp(first) - jnp.exp(second)) * (first - second)) / 2
    return jnp.repeat(divergence, 2, axis=0)
