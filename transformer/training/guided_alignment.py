"""Guided alignment: a loss that pulls cross-attention to links of words (Chen et al. 2016)."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from transformer.config.types import guided_heads
from transformer.data.batches.collation import Batch
from transformer.model.embedding import TokenModel
from transformer.training.loss import CriterionAndSums
from transformer.training.projected_loss import ProjectedLoss

SMALLEST = 1e-6  # smaller weights have the loss of this one


class GuidedLoss(ProjectedLoss):
    """Adds the loss of `training.guided_heads` to the criterion, for batches with links.

    The reported sums do not include it.
    """

    def __call__(
        self,
        model: TokenModel,
        batch: Batch,
        rngs: nnx.Rngs | None,
    ) -> CriterionAndSums:
        batch = dict(batch)
        links = batch.pop("links", None)
        if links is None:
            return super().__call__(model, batch, rngs)

        # Attention stores its weights, "weights", within `nnx.capture`.
        capture: Any = nnx.capture(super().__call__, nnx.Intermediate)
        (loss, sums), captured = capture(model, batch, rngs)
        layers = captured["decoder"]["layers"]
        heads = guided_heads(self.training_config)
        attentions = [
            layers[layer]["cross_attention"]["weights"].get_value()[0][:, head]  # (B, T, S)
            for layer, head in heads
        ]

        # R-Drop has two passes of each sentence.
        passes = len(attentions[0]) // len(links)
        guided = sum(
            alignment_loss(attention, jnp.repeat(links, passes, axis=0)) for attention in attentions
        )
        target_weights = batch.get("target_weights", jnp.ones((len(links), 1)))
        guided *= jnp.repeat(target_weights, passes, axis=0)

        # The mean over passes and heads.
        weight = self.training_config.guided_weight
        return loss + weight * jnp.sum(guided) / (passes * len(heads)), sums


def alignment_loss(
    attention: Float[Array, "B T S"],
    links: Bool[Array, "B T S"],
) -> Float[Array, "B T"]:
    """Returns the cross-entropy of a head's weights, in nats.

    The truth is the uniform distribution over the linked source tokens. The loss is 0 for target
    tokens without links, which may attend to anything.
    """
    log_p = jnp.log(jnp.maximum(attention, SMALLEST))
    linked = jnp.sum(jnp.where(links, log_p, 0.0), axis=-1)
    return -linked / jnp.maximum(jnp.sum(links, axis=-1), 1)
