"""The masked inputs of masked_lm (Devlin et al. 2019), and the loss of ctc."""

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
from transformer.model.single_stack import BLANK, CtcTransformer, emits_token, left_align
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL
from transformer.training.columns import Tokens, pad_rows, rows_per_chunk
from transformer.training.loss import CriterionAndSums, LossSums

MASK = BOS  # the input in place of a masked token; no source has BOS
# Of the masked tokens, these fractions become MASK and a random token. The rest stays (Devlin et
# al. 2019, section 3.1).
MASKED_FRACTION = 0.8
RANDOM_FRACTION = 0.1


def make_masking(
    training_config: Config, pieces: Sequence[str]
) -> Callable[[Batch, jax.Array], Batch]:
    """Returns a function of (batch, key) that masks source tokens and makes them the targets."""
    # Without whole-word masking, each token is a word.
    starts = np.ones(len(pieces), bool)
    if training_config.whole_word_masking:
        starts = word_starts(pieces)

    def inputs(batch, key):
        source, targets = mask_tokens(batch["source"], starts, training_config.masked_fraction, key)
        return batch | {"source": source, "target_output": targets}

    return inputs


def mask_tokens(
    tokens: Int[Array, "B S"],
    starts: Bool[np.ndarray, " V"],
    fraction: float,
    key: Key[Array, ""],
) -> tuple[Int[Array, "B S"], Int[Array, "B S"]]:
    """Returns (inputs, targets).

    The inputs are the tokens with some masked. The targets are the masked tokens at their
    positions, and PAD elsewhere. Each word is masked as a whole with the probability `fraction`;
    `starts` marks the first tokens of words in the vocabulary.
    """
    word_key, kind_key, token_key = jax.random.split(key, 3)

    # All tokens of a word share the random number of the word.
    is_start = jnp.asarray(starts)[tokens]
    # A sentence begins with a word, which some vocabularies do not mark.
    is_start |= jnp.pad(tokens[:, :-1] == EOS, ((0, 0), (1, 0)), constant_values=True)
    words = jnp.maximum(jnp.cumsum(is_start, axis=1) - 1, 0)  # (B, S), the word of each token
    numbers = jax.random.uniform(word_key, tokens.shape)
    numbers = jnp.take_along_axis(numbers, words, axis=1)
    is_masked = (numbers < fraction) & (tokens >= SPECIAL)

    # A masked token becomes MASK, a random token, or stays.
    kinds = jax.random.uniform(kind_key, tokens.shape)
    random_tokens = jax.random.randint(token_key, tokens.shape, SPECIAL, len(starts))
    random_or_same = jnp.where(kinds < MASKED_FRACTION + RANDOM_FRACTION, random_tokens, tokens)
    replaced = jnp.where(kinds < MASKED_FRACTION, MASK, random_or_same)
    return jnp.where(is_masked, replaced, tokens), jnp.where(is_masked, tokens, PAD)


def ctc_loss(
    mesh: Mesh,
    model: CtcTransformer,
    batch: Batch,
    rngs: nnx.Rngs | None,
) -> CriterionAndSums:
    """Returns the sum of -log p(target) and the sums that a step reports.

    p(target) sums over all alignments with the frames. Targets that need more frames than the
    source has get no loss, and their tokens do not count. The logits of all frames never exist at
    once: the backward pass recomputes the logits of each chunk.
    """
    hidden = model.hidden(batch["source"], rngs)
    table, _ = model.output_table_and_bias
    frames = model.frames(batch["source"])

    bytes_per_row = 4 * hidden.shape[1] * len(table)
    max_rows = rows_per_chunk(bytes_per_row, 4 * table.size)
    arrays = (hidden, frames, batch["target_output"])
    chunks = [_split(array, max_rows, row_shards(mesh)) for array in arrays]

    @jax.checkpoint
    def sums_of_chunk(chunk):
        return chunk_sums(model, *chunk)

    sums = jax.lax.map(sums_of_chunk, chunks)
    sums = jax.tree.map(jnp.sum, sums)
    return sums.loss, sums


def chunk_sums(
    model: CtcTransformer,
    hidden: Float[Array, "B F D"],
    frames: Int[Array, "B F"],
    targets: Tokens,
) -> LossSums:
    """Returns the sums over some rows, from the logits of all their frames."""
    labels = jnp.where(targets == EOS, PAD, targets)
    logits = model.logits(hidden)
    loss = optax.ctc_loss(logits, frames == PAD, labels, labels == PAD, blank_id=BLANK)  # (B,)

    # A target with too few frames has no alignment, and a huge loss.
    is_possible = needed_frames(labels) <= jnp.sum(frames != PAD, axis=1)
    loss = jnp.sum(jnp.where(is_possible, loss, 0.0))
    is_token = (labels != PAD) & is_possible[:, None]

    # For the accuracy, the most likely label of each frame.
    best = jnp.where(frames == PAD, BLANK, jnp.argmax(logits, axis=-1))
    length = labels.shape[1]
    predicted = left_align(best, emits_token(best))[:, :length]
    predicted = jnp.pad(predicted, ((0, 0), (0, length - predicted.shape[1])))
    correct = jnp.sum(is_token & (predicted == labels))

    sums = LossSums(loss=loss, nll=loss, correct=correct, tokens=jnp.sum(is_token))
    return jax.tree.map(lambda x: x.astype(jnp.float32), sums)


def needed_frames(labels: Tokens) -> Int[Array, " B"]:
    """Returns the smallest number of frames for these labels.

    Equal neighbours have a BLANK between them.
    """
    is_repeated = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] != PAD)
    return jnp.sum(labels != PAD, axis=1) + jnp.sum(is_repeated, axis=1)


def _split(x: Array, max_rows: int, devices: int) -> Array:
    """Splits rows into N equal chunks of at most `max_rows` on each device.

    A chunk has every N-th row, and perhaps padding.
    """
    rows_per_device = len(x) // devices
    count = math.ceil(rows_per_device / max_rows)
    rows = devices * math.ceil(rows_per_device / count)

    x = pad_rows(x, count * rows).reshape(rows, count, *x.shape[1:])
    return jnp.swapaxes(x, 0, 1)  # (count, rows, ...)
