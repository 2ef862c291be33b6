"""Losses that compare the candidate translations of a source by a metric.

The candidates of a source are consecutive rows of a batch (`batch.plan=groups`). Each has a reward,
the score of a metric. A loss is a function of log p of the whole candidates. JAX differentiates it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Shaped

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.model.embedding import TokenModel
from transformer.support.special_tokens import PAD
from transformer.training.columns import PerToken, Tokens
from transformer.training.loss import LossSums, cross_entropy, token_losses
from transformer.training.projected_loss import Output, ProjectedLoss, projected_loss

PerCandidate = Float[Array, "G K"]  # K candidates of each of G sources
PerSource = Float[Array, " G"]


def minimum_risk(log_p: PerCandidate, rewards: PerCandidate, training: Config) -> PerSource:
    """Returns the expected risk, sum_k Q(k) (1 - reward_k) (Shen et al. 2016, equation 11).

    Q is proportional to p^risk_sharpness. It sums to 1 over the candidates.
    """
    q = jax.nn.softmax(training.risk_sharpness * log_p, axis=1)
    return jnp.sum(q * (1.0 - rewards), axis=1)


def contrastive(log_p: PerCandidate, rewards: PerCandidate, training: Config) -> PerSource:
    """Returns -log sigmoid(preference_scale (log p(best) - log p(worst))).

    This is the preference term of CPO (Xu et al. 2024, equation 6), for the candidates with the
    highest and the lowest reward. It is 0 if all rewards of a source are equal.
    """
    highest = jnp.argmax(rewards, axis=1, keepdims=True)  # (G, 1)
    lowest = jnp.argmin(rewards, axis=1, keepdims=True)
    best, worst = (jnp.take_along_axis(log_p, i, axis=1)[:, 0] for i in (highest, lowest))
    loss = -jax.nn.log_sigmoid(training.preference_scale * (best - worst))
    return jnp.where((highest == lowest)[:, 0], 0.0, loss)


# Functions of (log p, rewards, `config.training`). None: every row is a training pair by itself.
CANDIDATE_LOSSES: dict[str, Any] = {
    "none": None,
    "minimum_risk": minimum_risk,
    "contrastive": contrastive,
}


class CandidateLoss(ProjectedLoss):
    """Adds `training.likelihood_weight` times a token loss to the candidate loss of each source.

    The token loss is the one of plain training, for the candidate with the highest reward, the
    first of equals. The reported sums are over the tokens of these candidates.
    """

    def __call__(
        self,
        model: TokenModel,
        batch: Batch,
        rngs: nnx.Rngs | None,
    ) -> tuple[Float[Array, ""], LossSums]:
        """Computes the loss of a batch with `rewards` (G, K), or as `ProjectedLoss` without."""
        if "rewards" not in batch:
            return super().__call__(model, batch, rngs)
        rewards = batch["rewards"]
        targets = batch["target_output"]
        is_token = jnp.float32(targets != PAD)
        output = _output(model, batch, len(rewards), rngs)

        # log p of whole candidates, from the token losses that are the gradient of their weights.
        token_nll = jax.grad(self._sum_nll, argnums=2)(
            jax.lax.stop_gradient(output), targets, is_token
        )
        log_p = -jnp.sum(is_token * token_nll, axis=1).reshape(rewards.shape)

        # The gradient of the loss is that of a sum of token losses with these weights (G, K).
        loss = CANDIDATE_LOSSES[self.training_config.candidate_loss]
        slopes = jax.grad(lambda x: jnp.sum(loss(x, rewards, self.training_config)))(log_p)
        criterion = self._sum_nll(output, targets, -slopes.reshape(-1, 1) * is_token)

        # The likelihood is that of one candidate of each source.
        best = jnp.argmax(rewards, axis=1)  # (G,)
        output = output._replace(hidden=_take_candidates(output.hidden, best))
        targets = _take_candidates(targets, best)
        is_token = _take_candidates(is_token, best)
        losses = functools.partial(token_losses, training_config=self.training_config, passes=1)
        likelihood, sums = projected_loss(losses, 1, self.mesh, output, targets, is_token)
        if self.training_config.likelihood_weight:
            criterion += self.training_config.likelihood_weight * likelihood
        return criterion, sums

    def _sum_nll(self, output: Output, targets: Tokens, weights: PerToken) -> Float[Array, ""]:
        def nll(logits, targets, columns):
            losses = cross_entropy(logits, targets, columns)
            return losses, losses

        return projected_loss(nll, 1, self.mesh, output, targets, weights)[0]


def _output(model: Any, batch: Batch, num_sources: int, rngs: nnx.Rngs | None) -> Output:
    """Returns the output of a `Transformer`. The candidates of a source share one encoder pass."""
    source = batch["source"]
    copies = len(source) // num_sources
    source = source.reshape(num_sources, copies, -1)[:, 0]  # (G, S)
    memory = model.encode(source, rngs=rngs)
    memory = jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), memory)
    hidden = model.decoder(batch["target_input"], memory, rngs=rngs)
    return Output(hidden, *model.output_table_and_bias)


def _take_candidates(
    x: Shaped[Array, "B ..."], indices: Int[Array, " G"]
) -> Shaped[Array, "G ..."]:
    """Returns one row of each source."""
    groups = x.reshape(len(indices), -1, *x.shape[1:])  # (G, K, ...)
    return jnp.take_along_axis(groups, indices.reshape(-1, *[1] * x.ndim), axis=1)[:, 0]
