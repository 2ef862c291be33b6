"""Cross-entropy against smoothed targets (section 5.4), and the sums that a step reports."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.special_tokens import EOS, PAD


@struct.dataclass
class LossSums:
    """Totals over target tokens. LossSums of parts add up to the sum of the whole; divide once, at the end.

    Scalars: float32 arrays on the device, and what stands for these on the host or in a tree of shapes.
    """

    loss: Any  # label-smoothed cross-entropy, nats
    nll: Any  # -log p(truth), nats
    correct: Any  # tokens whose truth has the highest logit
    tokens: Any
    sentences: Any


def cross_entropy(
    logits: Float[Array, "B T V"], targets: Int[Array, "B T"], label_smoothing: float, form: str
) -> LossSums:
    """LossSums over the targets that are not padding.

    With smoothing eps the target distribution over V entries is, for `form`
    "uniform" (Szegedy et al. 2016): eps / V on every entry, and 1 - eps more on the truth;
    "others" (the Annotated Transformer): eps / (V - 2) on all but truth and padding, 1 - eps on the truth.
    """
    vocab_size = logits.shape[-1]
    logits, targets = logits.reshape(-1, vocab_size), targets.reshape(-1)
    # -sum_v q_v log p_v = logsumexp - sum_v q_v logit_v, so no (B T, V) array of log-probabilities is needed.
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    truth = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    total = jnp.sum(logits, axis=-1)
    nll = normalizer - truth
    others = total - truth - logits[:, PAD]
    smooth = total / vocab_size if form == "uniform" else others / (vocab_size - 2)
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
    """Sum of (KL(p || q) + KL(q || p)) / 2 over the targets, where rows 2i and 2i + 1, p and q, are one row twice.

    Padding is not counted (R-Drop, Liang et al. 2021, equation 2).
    """
    pairs = logits.reshape(-1, 2, *logits.shape[1:])
    p, q = jnp.moveaxis(jax.nn.softmax(pairs), 1, 0)
    # KL(p || q) + KL(q || p) = sum_v (p_v - q_v) (log p_v - log q_v), in which the normalizers of both logs cancel out.
    divergences = jnp.sum((p - q) * (pairs[:, 0] - pairs[:, 1]), axis=-1) / 2
    return jnp.sum(divergences * (targets[::2] != PAD))
