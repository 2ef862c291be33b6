"""Guided alignment: a loss that pulls heads of cross-attention to given links of words (Chen et al.
2016).
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from transformer.config.types import guided_heads
from transformer.data.batches.collation import Batch
from transformer.training.loss import LossSums
from transformer.training.projected_loss import ProjectedLoss

SMALLEST = 1e-6  # smaller weights have the loss of this one


class GuidedLoss(ProjectedLoss):
    """Adds the loss of `guided_heads` to the criterion for batches with links; the sums do not have
    it.
    """

    def __call__(
        self, model: nnx.Module, batch: Batch, rngs: nnx.Rngs | None
    ) -> tuple[Float[Array, ""], LossSums]:
        batch = dict(batch)
        if (links := batch.pop("links", None)) is None:
            return super().__call__(model, batch, rngs)
        (loss, sums), captured = nnx.capture(super().__call__, nnx.Intermediate)(model, batch, rngs)
        layers, heads = captured["decoder"]["layers"], guided_heads(self.training)
        attentions = [
            layers[i]["cross_attention"]["weights"].get_value()[0][:, head] for i, head in heads
        ]
        passes = len(attentions[0]) // len(links)  # of R-Drop
        guided = sum(
            alignment_loss(attention, jnp.repeat(links, passes, axis=0)) for attention in attentions
        )
        guided *= jnp.repeat(batch.get("target_weights", jnp.ones((len(links), 1))), passes, axis=0)
        return loss + self.training.guided_weight * jnp.sum(guided) / (passes * len(heads)), sums


def alignment_loss(
    attention: Float[Array, "B T S"], links: Bool[Array, "B T S"]
) -> Float[Array, "B T"]:
    """Returns the cross-entropy of a head's weights, in nats, against the uniform distribution over
    the linked tokens.

    It is 0 for tokens without links, which may attend to anything.
    """
    log_p = jnp.log(jnp.maximum(attention, SMALLEST))
    return -jnp.sum(jnp.where(links, log_p, 0.0), axis=-1) / jnp.maximum(jnp.sum(links, axis=-1), 1)
