"""Cross-entropy with label smoothing (section 5.4), and the sums that a step reports."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.special_tokens import EOS, PAD


@struct.dataclass
class LossSums:
    """Sums over target tokens. The sums of several batches are added before they are divided.

    Fields are float32 scalars. Their type is Any, since JAX also builds trees of shapes and shardings.
    """

    loss: Any  # label-smoothed cross-entropy, nats
    nll: Any  # -log p(truth), nats
    correct: Any  # tokens for which the truth has the highest logit
    tokens: Any
    sentences: Any


# (logits, logits of the truth, sums of the logits) to the mean logit over the entries that share the smoothing.
LABEL_SMOOTHING_SUPPORTS = {
    # All entries (Szegedy et al. 2016).
    "uniform": lambda logits, truth, total: total / logits.shape[-1],
    # All but the truth and padding (the Annotated Transformer).
    "others": lambda logits, truth, total: (total - truth - logits[:, PAD]) / (logits.shape[-1] - 2),
}


def cross_entropy(
    logits: Float[Array, "B T V"], targets: Int[Array, "B T"], label_smoothing: float, support: str
) -> LossSums:
    """Returns the sums over the targets that are not padding.

    The target distribution is 1 - label_smoothing on the truth, plus label_smoothing spread evenly over `support`, a
    key of LABEL_SMOOTHING_SUPPORTS.
    """
    vocab_size = logits.shape[-1]
    logits, targets = logits.reshape(-1, vocab_size), targets.reshape(-1)
    # -sum_v q_v log p_v = logsumexp - sum_v q_v logit_v needs no (B T, V) array of log-probabilities.
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    truth = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    total = jnp.sum(logits, axis=-1)
    nll = normalizer - truth
    smooth = LABEL_SMOOTHING_SUPPORTS[support](logits, truth, total)
    loss = normalizer - (1.0 - label_smoothing) * truth - label_smoothing * smooth
    weights = (targets != PAD).astype(jnp.float32)
    return LossSums(
        loss=jnp.sum(weights * loss),
        nll=jnp.sum(weights * nll),
        correct=jnp.sum(weights * (truth >= jnp.max(logits, axis=-1))),
        tokens=jnp.sum(weights),
        sentences=jnp.sum(targets == EOS).astype(jnp.float32),
    )


def symmetric_kl(logits: Float[Array, "rows T V"], targets: Int[Array, "rows T"]) -> Float[Array, ""]:
    """Returns the sum of (KL(p || q) + KL(q || p)) / 2 over the targets that are not padding.

    p and q are rows 2i and 2i + 1, two passes of the same sentence (R-Drop, Liang et al. 2021, equation 2).
    """
    pairs = logits.reshape(-1, 2, *logits.shape[1:])
    p, q = jnp.moveaxis(jax.nn.softmax(pairs), 1, 0)
    # KL(p || q) + KL(q || p) = sum_v (p_v - q_v) (log p_v - log q_v), where the normalizers of both logs cancel.
    divergences = jnp.sum((p - q) * (pairs[:, 0] - pairs[:, 1]), axis=-1) / 2
    return jnp.sum(divergences * (targets[::2] != PAD))
