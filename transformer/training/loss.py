"""Losses of target tokens as functions of logits, in nats. JAX differentiates them.

`columns` reduce the last axis of the logits (B, T, C), which devices may split. The losses of
padding are ignored.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from transformer.config.types import Config
from transformer.support.special_tokens import PAD
from transformer.training.columns import Columns, Logits, PerToken, Tokens


@struct.dataclass
class LossSums:
    """Sums over target tokens, float32 scalars.

    The type is Any, because JAX builds trees of shapes and shardings too.
    """

    loss: Any  # label-smoothed cross-entropy, nats
    nll: Any  # -log p(truth), nats
    correct: Any  # tokens for which the truth has the highest logit
    tokens: Any

    @classmethod
    def zeros(cls) -> "LossSums":
        return cls(*(jnp.zeros(()) for _ in dataclasses.fields(cls)))


# Functions of (columns, targets (B, T, 1)) that return the weight of each column in the smoothing.
# The weights sum to 1.
LABEL_SMOOTHING_SUPPORTS = {
    # Szegedy et al. 2016
    "uniform": lambda columns, targets: 1 / columns.vocab_size,
    # all but the truth and padding (the Annotated Transformer)
    "others": lambda columns, targets: (
        ((columns.tokens != targets) & (columns.tokens != PAD)) / (columns.vocab_size - 2)
    ),
}


def label_smoothed(
    logits: Logits, targets: Tokens, columns: Columns, training: Config, *teachers: Logits
) -> PerToken:
    """Returns the cross-entropy with `training.label_smoothing`."""
    return smoothed_cross_entropy(
        logits, targets, columns, training.label_smoothing, training.label_smoothing_support
    )


# Functions of (logits, targets, columns, `config.training`, *logits of teachers).
TOKEN_LOSSES = {"cross_entropy": label_smoothed}


def token_losses(
    logits: Logits,
    targets: Tokens,
    columns: Columns,
    *teachers: Logits,
    training: Config,
    passes: int,
) -> tuple[PerToken, PerToken]:
    """Returns the criterion that is trained on, and the loss that is reported.

    `training` is `config.training`. With two passes (R-Drop), rows 2i and 2i + 1 are passes of the
    same sentence. The logits of teachers are for experimental losses (docs/extending.md).
    """
    loss = TOKEN_LOSSES[training.loss](logits, targets, columns, training, *teachers)
    if passes == 1:
        return loss, loss
    # The paper adds the losses of both passes (Liang et al. 2021, equation 3). This is their mean,
    # so all terms are halved.
    return loss + training.r_drop / 2 * symmetric_kl(logits, columns), loss


def sum_losses(
    losses: tuple[PerToken, PerToken],
    logits: Logits,
    targets: Tokens,
    columns: Columns,
    weights: PerToken,
) -> tuple[Float[Array, ""], LossSums]:
    """Returns the weighted sums of a result of `token_losses` and of the other reported values."""
    criterion, loss = losses
    nll = cross_entropy(logits, targets, columns)
    is_correct = columns.take(logits, targets) >= columns.max(logits)
    reported = LossSums(loss, nll, is_correct, jnp.ones_like(loss))
    return jnp.sum(weights * criterion), jax.tree.map(lambda x: jnp.sum(weights * x), reported)


def cross_entropy(logits: Logits, targets: Tokens, columns: Columns) -> PerToken:
    """Returns -log p(target)."""
    return columns.logsumexp(logits) - columns.take(logits, targets)


def smoothed_cross_entropy(
    logits: Logits,
    targets: Tokens,
    columns: Columns,
    smoothing: float | Float[Array, ""],
    support: str,
) -> PerToken:
    """Returns -sum_v q(v) log p(v) (label smoothing, section 5.4).

    q(v) is 1 - smoothing on the target, plus smoothing times the weights of `support`, a key of
    `LABEL_SMOOTHING_SUPPORTS`.
    """
    # log p(v) = logits[v] - logsumexp(logits), and q sums to 1.
    weights = LABEL_SMOOTHING_SUPPORTS[support](columns, targets[..., None])
    truth = columns.take(logits, targets)
    spread = columns.sum(weights * logits)
    return columns.logsumexp(logits) - (1.0 - smoothing) * truth - smoothing * spread


def symmetric_kl(logits: Logits, columns: Columns) -> PerToken:
    """Returns (KL(p || q) + KL(q || p)) / 2 for p in row 2i and q in row 2i + 1, in both rows.

    R-Drop, Liang et al. 2021.
    """
    log_p = logits - columns.logsumexp(logits)[..., None]
    first = log_p[::2]
    second = log_p[1::2]
    divergence = columns.sum((jnp.exp(first) - jnp.exp(second)) * (first - second)) / 2
    return jnp.repeat(divergence, 2, axis=0)  # (B / 2, T) to (B, T)
