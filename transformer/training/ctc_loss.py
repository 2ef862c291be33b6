"""The loss of connectionist temporal classification: over all alignments of frames and target (Graves et al. 2006)."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.model.ctc import BLANK, CtcTransformer, compact, is_kept
from transformer.special_tokens import EOS, PAD
from transformer.training.loss import LossSums
from transformer.training.programs import Batch


class CtcLoss:
    """Maps a model and a batch to -log p(target) and to what a step reports.

    Targets that need more frames than there are have no loss, and their tokens do not count.
    """

    passes = 1

    def without_r_drop(self) -> "CtcLoss":
        return self

    def of_batch(self, model: CtcTransformer, batch: Batch, rngs: nnx.Rngs | None) -> tuple[Float[Array, ""], LossSums]:
        labels = jnp.where(batch["target_output"] == EOS, PAD, batch["target_output"])
        logits, frames = model(batch["source"], rngs), model.frames(batch["source"])
        loss = optax.ctc_loss(logits, frames == PAD, labels, labels == PAD, blank_id=BLANK)
        is_possible = needed_frames(labels) <= jnp.sum(frames != PAD, axis=1)
        loss = jnp.sum(jnp.where(is_possible, loss, 0.0))
        is_token = (labels != PAD) & is_possible[:, None]
        sums = LossSums(
            loss=loss,
            nll=loss,
            correct=jnp.sum(is_token & (_greedy(logits, frames, labels.shape[1]) == labels)),
            tokens=jnp.sum(is_token),
            sentences=jnp.sum((batch["target_output"] == EOS) & is_possible[:, None]),
        )
        return loss, jax.tree.map(lambda x: x.astype(jnp.float32), sums)


def needed_frames(labels: Int[Array, "B T"]) -> Int[Array, "B"]:
    """Returns the fewest frames that can have these labels: equal neighbours have a BLANK between them."""
    is_repeated = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] != PAD)
    return jnp.sum(labels != PAD, axis=1) + jnp.sum(is_repeated, axis=1)


def _greedy(logits: Float[Array, "B F V"], frames: Int[Array, "B F"], length: int) -> Int[Array, "B T"]:
    """Returns the tokens of the most likely labels, cut or padded to `length`."""
    best = jnp.where(frames == PAD, BLANK, jnp.argmax(logits, axis=-1))
    tokens = compact(best, is_kept(best))[:, :length]
    return jnp.pad(tokens, ((0, 0), (0, length - tokens.shape[1])))
