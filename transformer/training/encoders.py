"""Parts of the objectives of encoders: the masked inputs of masked_lm (Devlin et al. 2019), and the
loss of CTC.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.data.corpus.annotations import word_starts
from transformer.model.partitioning import row_shards
from transformer.model.single_stack import BLANK, CtcTransformer, compact, emits_token
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL
from transformer.training.columns import rows_per_chunk
from transformer.training.loss import LossSums

MASK = BOS  # the input in place of a masked token; no source has BOS
# The fractions of the chosen tokens that become MASK and a random token; the rest stays (Devlin et
# al. 2019, 3.1).
MASKED_FRACTION, RANDOM_FRACTION = 0.8, 0.1


def make_masking(training: Config, pieces: Sequence[str]) -> Callable[[Batch, jax.Array], Batch]:
    """Returns a function of (batch, key) that masks tokens of the source and makes them the
    targets.
    """
    starts = word_starts(pieces) if training.whole_word_masking else np.ones(len(pieces), bool)

    def inputs(batch: Batch, key: jax.Array) -> Batch:
        source, targets = mask_tokens(batch["source"], starts, training.masked_fraction, key)
        return batch | {"source": source, "target_output": targets}

    return inputs


def mask_tokens(
    tokens: Int[Array, "B S"], starts: Bool[np.ndarray, "V"], fraction: float, key: Key[Array, ""]
) -> tuple[Int[Array, "B S"], Int[Array, "B S"]]:
    """Returns (inputs, targets): the tokens with some masked, and the masked ones at their
    positions, PAD elsewhere.

    A word, whose first token `starts` marks in the vocabulary, is masked as a whole with the
    probability `fraction`.
    """
    word_key, kind_key, token_key = jax.random.split(key, 3)
    words = jnp.maximum(jnp.cumsum(jnp.asarray(starts)[tokens], axis=1) - 1, 0)
    draws = jnp.take_along_axis(jax.random.uniform(word_key, tokens.shape), words, axis=1)
    is_chosen = (draws < fraction) & (tokens >= SPECIAL)
    kinds = jax.random.uniform(kind_key, tokens.shape)
    random_tokens = jax.random.randint(token_key, tokens.shape, SPECIAL, len(starts))
    kept_or_random = jnp.where(kinds < MASKED_FRACTION + RANDOM_FRACTION, random_tokens, tokens)
    replaced = jnp.where(kinds < MASKED_FRACTION, MASK, kept_or_random)
    return jnp.where(is_chosen, replaced, tokens), jnp.where(is_chosen, tokens, PAD)


def ctc_loss(
    mesh: Mesh, model: CtcTransformer, batch: Batch, rngs: nnx.Rngs | None
) -> tuple[Float[Array, ""], LossSums]:
    """Returns the sum of -log p(target), over all alignments with the frames, and the sums that a
    step reports.

    The logits of all frames never exist at once: the backward pass computes each chunk's again.
    Targets that need more frames than there are have no loss, and their tokens do not count.
    """
    hidden, (table, _) = model.hidden(batch["source"], rngs), model.output_table_and_bias
    arrays = hidden, model.frames(batch["source"]), batch["target_output"]
    most_rows = rows_per_chunk(4 * hidden.shape[1] * len(table))
    chunks = [_split(array, most_rows, row_shards(mesh)) for array in arrays]
    sums = jax.lax.map(jax.checkpoint(lambda chunk: chunk_sums(model, *chunk)), chunks)
    sums = jax.tree.map(jnp.sum, sums)
    return sums.loss, sums


def chunk_sums(
    model: CtcTransformer,
    hidden: Float[Array, "B F D"],
    frames: Int[Array, "B F"],
    targets: Int[Array, "B T"],
) -> LossSums:
    """Returns the sums over some rows, from the logits of all their frames."""
    labels = jnp.where(targets == EOS, PAD, targets)
    logits = model.logits(hidden)
    loss = optax.ctc_loss(logits, frames == PAD, labels, labels == PAD, blank_id=BLANK)
    is_possible = needed_frames(labels) <= jnp.sum(frames != PAD, axis=1)
    loss = jnp.sum(jnp.where(is_possible, loss, 0.0))
    is_token = (labels != PAD) & is_possible[:, None]
    best = jnp.where(frames == PAD, BLANK, jnp.argmax(logits, axis=-1))
    predicted = compact(best, emits_token(best))[:, : labels.shape[1]]
    predicted = jnp.pad(predicted, ((0, 0), (0, labels.shape[1] - predicted.shape[1])))
    correct = jnp.sum(is_token & (predicted == labels))
    sums = LossSums(loss=loss, nll=loss, correct=correct, tokens=jnp.sum(is_token))
    return jax.tree.map(lambda x: x.astype(jnp.float32), sums)


def needed_frames(labels: Int[Array, "B T"]) -> Int[Array, "B"]:
    """Returns the fewest frames that can have these labels: equal neighbours have a BLANK between
    them.
    """
    is_repeated = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] != PAD)
    return jnp.sum(labels != PAD, axis=1) + jnp.sum(is_repeated, axis=1)


def _split(x: Array, most_rows: int, devices: int) -> Array:
    """Splits rows into equal chunks of at most `most_rows` on each device: every N-th row, filled
    up with padding.
    """
    rows_per_device = len(x) // devices
    count = math.ceil(rows_per_device / most_rows)
    rows = devices * math.ceil(rows_per_device / count)
    x = jnp.pad(x, ((0, count * rows - len(x)), *[(0, 0)] * (x.ndim - 1)))
    return jnp.swapaxes(x.reshape(rows, count, *x.shape[1:]), 0, 1)
