"""The arrays of a batch, filled with tokens, and their placement on devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding

from transformer.config.types import Config
from transformer.data.batches.epoch_plan import Bucket, PlannedBatch
from transformer.data.corpus.corpus import Corpus, ragged_arange
from transformer.data.corpus.epoch import Epoch
from transformer.data.sources.mixture import annotation_keys
from transformer.distributed.mesh import BATCH
from transformer.support.special_tokens import BOS, PAD

Batch = dict[str, Any]  # the arrays of `assemble_batch`: whole in NumPy, on devices, or abstract
Arrays = dict[str, jax.Array]  # sharded by rows over the devices of all processes


def place_batch(arrays: dict[str, np.ndarray], mesh: Mesh) -> Arrays:
    """Shards the arrays of a batch by rows over the mesh.

    Each process copies only the rows of its devices.
    """
    rows = NamedSharding(mesh, BATCH)
    return {
        name: jax.make_array_from_callback(x.shape, rows, x.__getitem__)
        for name, x in arrays.items()
    }


def assemble_batch(corpus: Corpus | Epoch, batch: PlannedBatch) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch, with PAD (0) at every position without a token.

    `source` (B, S) and `target_output` (B, T) have the tokens, then EOS. `target_input` (B, T) has
    BOS, then the tokens. A side without tokens has no arrays. A packed batch also has, for both
    sides, `source_segments` (B, S), the number of the sentence in its row from 1, and
    `source_positions` (B, S), from 0 in each sentence. If pairs have weights in the loss,
    `target_weights` (B, T) gives each target token the weight of its pair. If words have links,
    `links` (B, T, S) is true for the tokens of linked words. If candidates have rewards, `rewards`
    (G, K) has those of the K candidates of each source, which are K rows.
    """
    # All values of a side are first computed for the concatenated tokens of its sentences, and then
    # scattered into the rows.
    bucket = batch.bucket
    annotated = corpus.annotations(batch.sentences)
    arrays = {}
    sides = []  # the sentences of each side
    firsts = []  # the first position of each sentence in its row
    row_lengths = {"source": bucket.source_length, "target": bucket.target_length}
    for side, (name, row_length) in enumerate(row_lengths.items()):
        if not row_length:
            continue
        tokens, lengths = corpus.sequences(side, batch.sentences)
        sides.append((tokens, lengths))

        # The sentences of a row follow each other without a gap.
        positions = ragged_arange(lengths)  # of each token in its sentence
        before = np.cumsum(lengths) - lengths  # tokens of the sentences before each sentence
        first_in_row = np.searchsorted(batch.rows, batch.rows)
        first = before - before[first_in_row]
        firsts.append(first)
        indices = np.repeat(batch.rows * row_length + first, lengths) + positions

        if name == "source":
            values = {"source": tokens}
        else:
            # The target input is the target output, shifted right after BOS (section 3.1).
            target_input = np.where(positions == 0, BOS, np.roll(tokens, 1))
            values = {"target_input": target_input, "target_output": tokens}
            if annotated.weights is not None:
                values["target_weights"] = np.repeat(annotated.weights, lengths)

        if bucket.is_packed:
            segments = 1 + ragged_arange(np.bincount(batch.rows))
            values[f"{name}_segments"] = np.repeat(segments, lengths)
            values[f"{name}_positions"] = positions

        for key, flat in values.items():
            dtype = np.float32 if key == "target_weights" else np.int32
            array = np.full(bucket.rows * row_length, PAD, dtype)
            array[indices] = flat
            arrays[key] = array.reshape(bucket.rows, row_length)  # (B, S) or (B, T)

    if annotated.links is not None:
        shape = bucket.rows, bucket.target_length, bucket.source_length
        arrays["links"] = annotated.link_tokens(sides, batch.rows, firsts, shape)
    if annotated.rewards is not None:
        rewards = np.zeros(bucket.rows, np.float32)
        rewards[batch.rows] = annotated.rewards
        arrays["rewards"] = rewards.reshape(-1, bucket.candidates)
    return arrays


def abstract_batch(bucket: Bucket, sharding: Sharding, config: Config | None = None) -> Batch:
    """Returns the shapes of the arrays of a training batch; without `config`, of a held-out one."""
    source = bucket.source_length
    target = bucket.target_length

    # The arrays of integers, by the length of their rows.
    lengths = {"source": source, "target_input": target, "target_output": target}
    if bucket.is_packed:
        for side, length in (("source", source), ("target", target)):
            lengths[f"{side}_segments"] = length
            lengths[f"{side}_positions"] = length

    def abstract(
        *row_shape: int, dtype: Any = jnp.int32, rows: int = bucket.rows
    ) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *row_shape), dtype, sharding=sharding)

    arrays = {name: abstract(length) for name, length in lengths.items() if length}
    annotations = annotation_keys(config.data) if config else ()
    if "pair_weights" in annotations:
        arrays["target_weights"] = abstract(target, dtype=jnp.float32)
    if "alignments" in annotations:
        arrays["links"] = abstract(target, source, dtype=jnp.bool)
    if "rewards" in annotations:
        candidates = bucket.candidates
        arrays["rewards"] = abstract(candidates, dtype=jnp.float32, rows=bucket.rows // candidates)
    return arrays
