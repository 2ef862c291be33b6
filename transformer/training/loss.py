"""Cross-entropy with label smoothing (section 5.4), R-Drop's divergence, and their gradients with respect to logits."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.model.kernels import LOWEST, RowStatistics, row_statistics
from transformer.support.special_tokens import PAD


@struct.dataclass
class LossSums:
    """Sums over target tokens, float32 scalars. Typed Any, since JAX builds trees of shapes and shardings too."""

    loss: Any  # label-smoothed cross-entropy, nats
    nll: Any  # -log p(truth), nats
    correct: Any  # tokens for which the truth has the highest logit
    tokens: Any

    @classmethod
    def zeros(cls) -> "LossSums":
        return cls(*(jnp.zeros(()) for _ in dataclasses.fields(cls)))


# (columns (1, 1, C), targets (B, T, 1), vocab_size) to the weight of each column in the smoothing; they sum to 1.
LABEL_SMOOTHING_SUPPORTS = {
    "uniform": lambda columns, targets, vocab_size: jnp.full(columns.shape, 1 / vocab_size),  # Szegedy et al. 2016
    # All but the truth and padding (the Annotated Transformer).
    "others": lambda columns, targets, vocab_size: ((columns != targets) & (columns != PAD)) / (vocab_size - 2),
}


@dataclasses.dataclass(frozen=True)
class Criterion:
    """The training criterion as a function of logits, or of some columns of them.

    It is cross-entropy against a distribution with 1 - label_smoothing on the truth and label_smoothing spread evenly
    over the columns of a support. With R-Drop, it adds the divergence between rows 2i and 2i + 1, two passes of the
    same sentence (Liang et al. 2021).
    """

    label_smoothing: Any  # a float; traced in trials that train together
    support: str  # a key of LABEL_SMOOTHING_SUPPORTS
    r_drop: float  # weight of the divergence; 0: one pass

    @property
    def passes(self) -> int:
        """The number of rows for each sentence."""
        return 1 if self.r_drop == 0.0 else 2

    def with_gradient(
        self,
        logits: Float[Array, "B T C"],
        targets: Int[Array, "B T"],
        columns: Int[Array, "C"],
        vocab_size: int,
        axis: str | None = None,
        token_weights: Float[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, ""], LossSums, Float[Array, "B T C"]]:
        """Returns the summed criterion, the sums that a step reports, and the gradient with respect to the logits.

        `token_weights` weight all sums, also the number of tokens. `columns` are the consecutive numbers of the columns
        in the vocabulary. Those of `vocab_size` or more are ignored. With `axis`, the remaining columns are on the
        devices of this mesh axis.
        """
        is_padded = len(columns) * (1 if axis is None else jax.lax.axis_size(axis)) > vocab_size
        truths, columns, labels = targets - columns[0], columns[None, None], targets[..., None]
        smoothing = self.label_smoothing * LABEL_SMOOTHING_SUPPORTS[self.support](columns, labels, vocab_size)
        if is_padded:
            logits = jnp.where(columns < vocab_size, logits, LOWEST)
            smoothing = jnp.where(columns < vocab_size, smoothing, 0.0)
        rows = row_statistics(logits, truths, smoothing)
        if axis is not None:
            maximum = jax.lax.pmax(rows.maximum, axis)
            exponentials = rows.exponentials * jnp.exp(rows.maximum - maximum)
            rows = RowStatistics(maximum, *jax.lax.psum((exponentials, rows.truth, rows.smooth), axis))
        normalizer = rows.maximum + jnp.log(rows.exponentials)
        weights = (targets != PAD) / jnp.float32(self.passes)  # each sentence counts once
        weights = weights if token_weights is None else weights * token_weights
        sums = LossSums(
            loss=jnp.sum(weights * (normalizer - (1.0 - self.label_smoothing) * rows.truth - rows.smooth)),
            nll=jnp.sum(weights * (normalizer - rows.truth)),
            correct=jnp.sum(weights * (rows.truth >= rows.maximum)),
            tokens=jnp.sum(weights),
        )
        # On CPUs the compiler reuses the exponentials that have been summed.
        p = jnp.exp(logits - rows.maximum[..., None]) * (1 / rows.exponentials)[..., None]
        d_logits = weights[..., None] * (p - (1.0 - self.label_smoothing) * (columns == labels) - smoothing)
        if self.r_drop == 0.0:
            return sums.loss, sums, d_logits
        # The paper adds the losses of both passes (equation 3). This is their mean, so all terms are halved.
        divergence, d_divergence = _symmetric_kl(logits, p, weights[::2], axis)
        weight = self.r_drop / 2
        return sums.loss + weight * divergence, sums, d_logits + weight * d_divergence


def _symmetric_kl(
    logits: Float[Array, "B T C"], p: Float[Array, "B T C"], weights: Float[Array, "R T"], axis: str | None
) -> tuple[Float[Array, ""], Float[Array, "B T C"]]:
    """Returns the sum of (KL(p || q) + KL(q || p)) / 2 over rows 2i, 2i + 1, and its gradient (R-Drop, equation 2).

    The `weights` of a pair of rows include the 1 / 2.
    """
    pairs, (p, q) = logits.reshape(-1, 2, *logits.shape[1:]), jnp.moveaxis(p.reshape(-1, 2, *p.shape[1:]), 1, 0)
    # KL(p || q) + KL(q || p) = sum_v (p_v - q_v) r_v with r_v = log p_v - log q_v, where both normalizers cancel.
    log_ratio = pairs[:, 0] - pairs[:, 1]
    mean_under_p, mean_under_q = jnp.sum(p * log_ratio, axis=-1), jnp.sum(q * log_ratio, axis=-1)
    if axis is not None:
        mean_under_p, mean_under_q = jax.lax.psum((mean_under_p, mean_under_q), axis)
    d_first = p - q + p * (log_ratio - mean_under_p[..., None])
    d_second = q - p - q * (log_ratio - mean_under_q[..., None])
    d_logits = jnp.stack([d_first, d_second], axis=1) * weights[:, None, :, None]
    return jnp.sum(weights * (mean_under_p - mean_under_q)), d_logits.reshape(logits.shape)
