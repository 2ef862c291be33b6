"""Losses that compare the candidate translations of a source by a metric.

The candidates of a source are consecutive rows of a batch (`batch.plan=groups`). Each has a reward,
the score of a metric. A loss is a function of log p of the whole candidates. JAX differentiates it.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Shaped

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.support.special_tokens import PAD
from transformer.training.loss import LossSums, token_losses
from transformer.training.projected_loss import (
    ProjectedLoss,
    projected_loss,
    target_log_probabilities,
)
from transformer.training.projection import Output

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
CANDIDATE_LOSSES: dict[str, Callable[..., PerSource] | None] = {
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
        model: nnx.Module,
        batch: Batch,
        rngs: nnx.Rngs | None,
    ) -> tuple[Float[Array, ""], LossSums]:
        """Computes the loss of a batch with `rewards` (G, K), or as `ProjectedLoss` without."""
        if "rewards" not in batch:
            return super().__call__(model, batch, rngs)
        rewards = batch["rewards"]
        targets = batch["target_output"]
        sources = _split_candidates(batch["source"], rewards)[:, 0]  # (G, S)
        hidden = _hidden(model, sources, batch["target_input"], rngs)
        output = Output(hidden, *model.output_table_and_bias)

        token_log_p = target_log_probabilities(self.mesh, output, targets)
        log_p = jnp.sum(jnp.where(targets != PAD, token_log_p, 0.0), axis=1)
        loss = CANDIDATE_LOSSES[self.training.candidate_loss]
        criterion = jnp.sum(loss(_split_candidates(log_p, rewards), rewards, self.training))

        # The token loss reads one candidate of each source.
        best = jnp.argmax(rewards, axis=1)  # (G,)
        output = output._replace(hidden=_take_candidate(output.hidden, best, rewards))
        targets = _take_candidate(targets, best, rewards)
        weights = jnp.float32(targets != PAD)
        losses = functools.partial(token_losses, training=self.training, passes=1)
        likelihood, sums = projected_loss(losses, 1, self.mesh, output, targets, weights)
        if self.training.likelihood_weight:
            criterion += self.training.likelihood_weight * likelihood
        return criterion, sums


def _hidden(
    model: nnx.Module,
    sources: Int[Array, "G S"],
    target_input: Int[Array, "B T"],
    rngs: nnx.Rngs | None,
) -> Float[Array, "B T D"]:
    """Returns the decoder's output. The candidates of a source share one pass of the encoder."""
    memory = model.encoder(sources, rngs=rngs)
    segments = model.encoder.visible_segments(sources)
    copies = len(target_input) // len(sources)
    memory, segments = (jnp.repeat(x, copies, axis=0) for x in (memory, segments))
    return model.decoder(target_input, memory, segments, rngs=rngs)


def _split_candidates(
    x: Shaped[Array, "B *rest"], rewards: PerCandidate
) -> Shaped[Array, "G K *rest"]:
    return x.reshape(*rewards.shape, *x.shape[1:])


def _take_candidate(
    x: Shaped[Array, "B *rest"], index: Int[Array, " G"], rewards: PerCandidate
) -> Shaped[Array, "G *rest"]:
    """Returns one row of each source."""
    index = index.reshape(-1, *[1] * x.ndim)
    return jnp.take_along_axis(_split_candidates(x, rewards), index, axis=1)[:, 0]
