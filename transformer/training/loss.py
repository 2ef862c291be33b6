"""Cross-entropy with label smoothing (section 5.4), R-Drop's divergence, and their gradients with respect to logits."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.special_tokens import PAD

_LOWEST = float(np.finfo(np.float32).min)


@struct.dataclass
class LossSums:
    """Sums over target tokens. The sums of several batches are added before they are divided.

    Fields are float32 scalars. Their type is Any, since JAX also builds trees of shapes and shardings.
    """

    loss: Any  # label-smoothed cross-entropy, nats
    nll: Any  # -log p(truth), nats
    correct: Any  # tokens for which the truth has the highest logit
    tokens: Any

    @classmethod
    def zeros(cls) -> "LossSums":
        return cls(*(jnp.zeros(()) for _ in dataclasses.fields(cls)))


# (columns (1, 1, C), targets (B, T, 1), vocab_size) to the share of each column in the smoothing; they sum to 1.
LABEL_SMOOTHING_SUPPORTS = {
    # All columns (Szegedy et al. 2016).
    "uniform": lambda columns, targets, vocab_size: jnp.full(columns.shape, 1 / vocab_size),
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

    label_smoothing: float
    support: str  # a key of LABEL_SMOOTHING_SUPPORTS
    r_drop: float  # weight of the divergence; 0: one pass
    reads_once: bool  # computes all statistics in one reading of the logits: faster on accelerators, slower on CPUs

    @classmethod
    def from_config(cls, training: Config, platform: str) -> "Criterion":
        """Returns the criterion of the group `config.training` for the platform of JAX devices: cpu, gpu, tpu."""
        return cls(training.label_smoothing, training.label_smoothing_support, training.r_drop, platform != "cpu")

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
    ) -> tuple[Float[Array, ""], LossSums, Float[Array, "B T C"]]:
        """Returns the summed criterion, the sums that a step reports, and the gradient with respect to the logits.

        `columns` are the consecutive numbers of the columns in the vocabulary. Those of `vocab_size` or more are
        ignored. The other columns are on the devices of the mesh axis `axis`; None: there are no others.
        """
        is_padded = len(columns) * (1 if axis is None else jax.lax.axis_size(axis)) > vocab_size
        first, columns, labels = columns[0], columns[None, None], targets[..., None]
        smoothing = self.label_smoothing * LABEL_SMOOTHING_SUPPORTS[self.support](columns, labels, vocab_size)
        if is_padded:
            logits = jnp.where(columns < vocab_size, logits, _LOWEST)
            smoothing = jnp.where(columns < vocab_size, smoothing, 0.0)
        is_truth = columns == labels
        if self.reads_once:
            rows = _statistics_in_one_reading(logits, is_truth, smoothing)
        else:
            rows = _statistics(logits, targets - first, smoothing)
        rows = _all_columns(rows, axis)
        normalizer = rows.maximum + jnp.log(rows.exponentials)
        weights = (targets != PAD) / jnp.float32(self.passes)  # each sentence counts once
        sums = LossSums(
            loss=jnp.sum(weights * (normalizer - (1.0 - self.label_smoothing) * rows.truth - rows.smooth)),
            nll=jnp.sum(weights * (normalizer - rows.truth)),
            correct=jnp.sum(weights * (rows.truth >= rows.maximum)),
            tokens=jnp.sum(weights),
        )
        # On CPUs the compiler reuses the exponentials that have been summed.
        p = jnp.exp(logits - rows.maximum[..., None]) * (1 / rows.exponentials)[..., None]
        gradient = weights[..., None] * (p - (1.0 - self.label_smoothing) * is_truth - smoothing)
        if self.r_drop == 0.0:
            return sums.loss, sums, gradient
        # The paper adds the losses of both passes (equation 3). This is their mean, so all terms are halved.
        divergence, of_divergence = _symmetric_kl(logits, p, targets, axis)
        weight = self.r_drop / 2
        return sums.loss + weight * divergence, sums, gradient + weight * of_divergence


class _RowStatistics(NamedTuple):
    """Reductions of each row of logits."""

    maximum: Float[Array, "B T"]
    exponentials: Float[Array, "B T"]  # sum of exp(logit - maximum)
    truth: Float[Array, "B T"]  # the logit of the truth
    smooth: Float[Array, "B T"]  # the logits' sum, weighted by the smoothing


def _statistics(logits: jax.Array, truths: Int[Array, "B T"], smoothing: jax.Array) -> _RowStatistics:
    """Computes a reduction at a time. `truths` are columns of `logits`, or beyond them."""
    is_here = (truths >= 0) & (truths < logits.shape[-1])
    truth = jnp.take_along_axis(logits, jnp.where(is_here, truths, 0)[..., None], axis=-1)[..., 0]
    maximum = jnp.max(logits, axis=-1)
    exponentials = jnp.sum(jnp.exp(logits - maximum[..., None]), axis=-1)
    return _RowStatistics(maximum, exponentials, jnp.where(is_here, truth, 0.0), jnp.sum(smoothing * logits, axis=-1))


def _statistics_in_one_reading(logits: jax.Array, is_truth: jax.Array, smoothing: jax.Array) -> _RowStatistics:
    """Computes all reductions together."""

    def combine(some: tuple, others: tuple) -> tuple:
        maximum = jnp.maximum(some[0], others[0])
        exponentials = some[1] * jnp.exp(some[0] - maximum) + others[1] * jnp.exp(others[0] - maximum)
        return maximum, exponentials, some[2] + others[2], some[3] + others[3]

    start = tuple(map(jnp.float32, (_LOWEST, 0.0, 0.0, 0.0)))
    operands = (logits, jnp.ones_like(logits), jnp.where(is_truth, logits, 0.0), smoothing * logits)
    return _RowStatistics(*jax.lax.reduce(operands, start, combine, (logits.ndim - 1,)))


def _all_columns(rows: _RowStatistics, axis: str | None) -> _RowStatistics:
    """Combines the statistics of the columns of each device."""
    if axis is None:
        return rows
    maximum = jax.lax.pmax(rows.maximum, axis)
    exponentials = rows.exponentials * jnp.exp(rows.maximum - maximum)
    return _RowStatistics(maximum, *jax.lax.psum((exponentials, rows.truth, rows.smooth), axis))


def _symmetric_kl(
    logits: Float[Array, "B T C"], p: Float[Array, "B T C"], targets: Int[Array, "B T"], axis: str | None
) -> tuple[Float[Array, ""], Float[Array, "B T C"]]:
    """Returns the sum of (KL(p || q) + KL(q || p)) / 2 over the targets that are not padding, and its gradient.

    p and q are the probabilities of rows 2i and 2i + 1 (R-Drop, equation 2).
    """
    pairs, (p, q) = logits.reshape(-1, 2, *logits.shape[1:]), jnp.moveaxis(p.reshape(-1, 2, *p.shape[1:]), 1, 0)
    # KL(p || q) + KL(q || p) = sum_v (p_v - q_v) d_v with d_v = log p_v - log q_v, where both normalizers cancel.
    d = pairs[:, 0] - pairs[:, 1]
    under_p, under_q = jnp.sum(p * d, axis=-1), jnp.sum(q * d, axis=-1)
    if axis is not None:
        under_p, under_q = jax.lax.psum((under_p, under_q), axis)
    weights = (targets[::2] != PAD) / 2
    of_first = p - q + p * (d - under_p[..., None])
    of_second = q - p - q * (d - under_q[..., None])
    gradient = jnp.stack([of_first, of_second], axis=1) * weights[:, None, :, None]
    return jnp.sum(weights * (under_p - under_q)), gradient.reshape(logits.shape)
