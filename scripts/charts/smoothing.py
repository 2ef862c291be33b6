"""The distribution that label smoothing trains towards (section 5.4)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scripts.charts import heat_map, theme
from scripts.charts.heat_map import Axis
from transformer.support.errors import UserError
from transformer.support.special_tokens import PAD
from transformer.training.columns import Columns
from transformer.training.loss import smoothed_cross_entropy

TARGETS = (2, 1, PAD, 3, 3)  # as in the Annotated Transformer
CELL = 24  # points
HEADERS = {"others": "spread over all other tokens", "uniform": "spread over all tokens"}


def draw(
    smoothing: float = 0.4,
    targets: Sequence[int] = TARGETS,
    vocab_size: int = 5,
    supports: Sequence[str] = ("others", "uniform"),
    columns: int = 2,
) -> Any:
    """Returns the smoothed distribution of each target as a row of a heat map.

    There is a panel for each way to spread the probability.

    Args:
      smoothing: `config.training.label_smoothing`.
      targets: token ids; 0 is padding.
      supports: values of `config.training.label_smoothing_support`.

    Raises:
      UserError: `smoothing` is not in 0 ... 1, without 1.
    """
    if not 0 <= smoothing < 1:
        raise UserError(f"smoothing={smoothing}: must be in 0 ... 1, without 1")
    labels = ["padding" if target == PAD else str(target) for target in targets]
    matrices = {}
    for support in supports:
        header = HEADERS.get(support, support)
        matrices[header] = distributions(smoothing, targets, vocab_size, support)
    chart = heat_map.panels(
        matrices,
        Axis("target token", labels),
        Axis("token of the vocabulary"),
        in_row=columns,
        cell=(CELL, CELL),
        value="probability",
        domain=(0, 1),
        numbers=".2~f",
        legend=heat_map.gradient(CELL * len(targets) * 0.7),
    )
    return theme.themed(chart)


def distributions(
    smoothing: float, targets: Sequence[int], vocab_size: int, support: str
) -> np.ndarray:
    """Returns the distribution (T, V) of each target, with 0 for padding.

    It is computed from the loss. The gradient of cross-entropy with respect to the logits is p - q,
    where p is the model's distribution and q the smoothed one. Equal logits give p = 1 / V.
    """
    labels = jnp.asarray([targets])  # (1, T)

    def loss(logits: jax.Array) -> jax.Array:
        losses = smoothed_cross_entropy(
            logits, labels, Columns.whole(vocab_size), smoothing, support
        )
        return jnp.sum(jnp.where(labels == PAD, 0.0, losses))

    gradient = jax.grad(loss)(jnp.zeros((1, len(targets), vocab_size)))
    # Padding has no loss, so its gradient is 0.
    p = np.where(np.asarray(targets)[:, None] == PAD, 0.0, 1 / vocab_size)
    return p - np.asarray(gradient[0], np.float64)
