"""Losses of target tokens as functions of logits, in nats. JAX differentiates them.

`columns` reduce the last axis of the logits (B, T, C), which devices may split. The losses of
padding are ignored.
"""

import dataclasses
import functools
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


# The summed criterion, and the sums that a step reports.
CriterionAndSums = tuple[Float[Array, ""], LossSums]

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
    logits: Logits, targets: Tokens, columns: Columns, training_config: Config, *teachers: Logits
) -> PerToken:
    """Returns the cross-entropy with `training.label_smoothing`."""
    return smoothed_cross_entropy(
        logits,
        targets,
        columns,
        training_config.label_smoothing,
        training_config.label_smoothing_support,
    )


# Functions of (logits, targets, columns, `config.training`, *logits of teachers).
TOKEN_LOSSES = {"cross_entropy": label_smoothed}


def token_losses(
    logits: Logits,
    targets: Tokens,
    columns: Columns,
    *teachers: Logits,
    training_config: Config,
    passes: int,
) -> tuple[PerToken, PerToken]:
    """Returns the criterion that is trained on, and the loss that is reported.

    With two passes (R-Drop), rows 2i and 2i + 1 are passes of the same sentence. The logits of
    teachers are for experimental losses (docs/extending.md).
    """
    loss = TOKEN_LOSSES[training_config.loss](logits, targets, columns, training_config, *teachers)
    if passes == 1:
        return loss, loss
    # The paper adds the losses of both passes (Liang et al. 2021, equation 3). This is their mean,
    # so all terms are halved.
    return loss + training_config.r_drop / 2 * symmetric_kl(logits, columns), loss


def sum_losses(
    losses: tuple[PerToken, PerToken],
    logits: Logits,
    targets: Tokens,
    columns: Columns,
    weights: PerToken,
) -> CriterionAndSums:
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

    R-Drop, Liang et al. 2021. Padded columns have the probability 0.
    """
    return _symmetric_kl(logits, *columns.max_and_exponentials(logits), columns.axis)


# JAX would write six arrays of the size of the logits for the gradient. By hand it is one formula
# of both rows, which the compiler fuses with the gradient of the cross-entropy.
@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _symmetric_kl(
    logits: Logits,
    maximum: PerToken,
    exponentials: PerToken,
    axis: str | None,
) -> PerToken:
    result, _ = _symmetric_kl_forward(logits, maximum, exponentials, axis)
    return result


def _symmetric_kl_forward(logits, maximum, exponentials, axis):
    p, log_ratio = _probabilities_and_log_ratios(logits, maximum, exponentials)

    # KL(p || q) is computed beside q, and then swapped. Otherwise XLA for CPUs would fuse this sum
    # with the gradients, for which it needs more arrays and twice the time.
    kl = jnp.sum(_other_pass(p) * -log_ratio, axis=-1)
    if axis is not None:
        kl = jax.lax.psum(kl, axis)
    kl = _other_pass(kl)
    return (kl + _other_pass(kl)) / 2, (logits, maximum, exponentials, kl)


def _symmetric_kl_backward(axis, residuals, gradient):
    *distribution, kl = residuals
    p, log_ratio = _probabilities_and_log_ratios(*distribution)

    # d KL(p || q) = p (log p - log q - KL(p || q)) and d KL(q || p) = p - q, by the logits of p
    d_logits = p * (log_ratio - kl[..., None] + 1) - _other_pass(p)

    # Both rows have the divergence of the pair.
    gradient = (gradient + _other_pass(gradient)) / 2
    return gradient[..., None] * d_logits, None, None


_symmetric_kl.defvjp(_symmetric_kl_forward, _symmetric_kl_backward)


def _probabilities_and_log_ratios(
    logits: Logits, maximum: PerToken, exponentials: PerToken
) -> tuple[Logits, Logits]:
    """Returns p and log p - log q, where q are the probabilities of the other pass."""
    p = jnp.exp(logits - maximum[..., None]) / exponentials[..., None]
    normalizers = maximum + jnp.log(exponentials)
    log_ratio = logits - _other_pass(logits) - (normalizers - _other_pass(normalizers))[..., None]
    return p, log_ratio


def _other_pass(x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
    """Swaps rows 2i and 2i + 1, the two passes of a sentence."""
    pairs = x.reshape(-1, 2, *x.shape[1:])
    return jnp.flip(pairs, axis=1).reshape(x.shape)
