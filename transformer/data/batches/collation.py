"""The arrays of a batch, filled with its sentences' tokens, and their placement on devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding

from transformer.config.types import Config
from transformer.data.batches.epoch_plan import Bucket, PlannedBatch
from transformer.data.corpus.corpus import Corpus, ragged_arange
from transformer.data.corpus.epoch import Epoch
from transformer.data.sources.mixture import annotations
from transformer.distributed.mesh import BATCH
from transformer.support.special_tokens import BOS, PAD

Batch = dict[str, Any]  # the arrays of `assemble`: whole in NumPy, on devices, or abstract
Arrays = dict[str, jax.Array]  # sharded by rows over the devices of all processes


def place(arrays: dict[str, np.ndarray], mesh: Mesh) -> Arrays:
    """Returns the arrays of a batch sharded by rows over the mesh; each process copies only the
    rows of its devices.
    """
    rows = NamedSharding(mesh, BATCH)
    return {
        name: jax.make_array_from_callback(x.shape, rows, x.__getitem__)
        for name, x in arrays.items()
    }


def assemble(corpus: Corpus | Epoch, batch: PlannedBatch) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch, with PAD (0) at every position that holds no token.

    `source` (B, S) and `target_output` (B, T) are tokens, then EOS; `target_input` (B, T) is BOS,
    then tokens. A side without tokens has no arrays. A packed batch also has, for both sides,
    `source_segments` (B, S), the number of the sentence in its row from 1, and `source_positions`
    (B, S), from 0 in each sentence. If pairs have weights in the loss, `target_weights` (B, T) has
    that of each target token; if words have links, `links` (B, T, S) are theirs.
    """
    bucket = batch.bucket
    arrays = {}
    annotated = corpus.annotations(batch.sentences)
    sides = []  # the sentences of each side
    firsts = []  # the first position of each sentence in its row
    for side, (name, length) in enumerate(
        (("source", bucket.source_length), ("target", bucket.target_length))
    ):
        if not length:
            continue
        tokens, lengths = corpus.sequences(side, batch.sentences)
        sides.append((tokens, lengths))
        positions = ragged_arange(lengths)
        before = np.cumsum(lengths) - lengths
        # of each sentence in its row
        offsets = before - before[np.searchsorted(batch.rows, batch.rows)]
        indices = np.repeat(batch.rows * length + offsets, lengths) + positions
        if side == 0:
            values = {"source": tokens}
        else:
            values = {
                "target_input": np.where(positions == 0, BOS, np.roll(tokens, 1)),
                "target_output": tokens,
            }
            if annotated.weights is not None:
                values["target_weights"] = np.repeat(annotated.weights, lengths)
        firsts.append(offsets)
        if batch.packed:
            segments = 1 + ragged_arange(np.bincount(batch.rows))
            values |= {
                f"{name}_segments": np.repeat(segments, lengths),
                f"{name}_positions": positions,
            }
        for key, flat in values.items():
            filled = np.full(
                bucket.rows * length, PAD, np.float32 if key == "target_weights" else np.int32
            )
            filled[indices] = flat
            arrays[key] = filled.reshape(bucket.rows, length)
    if annotated.links is not None:
        shape = bucket.rows, bucket.target_length, bucket.source_length
        arrays["links"] = annotated.link_tokens(sides, batch.rows, firsts, shape)
    return arrays


def abstract_batch(bucket: Bucket, sharding: Sharding, config: Config | None = None) -> Batch:
    """Returns the shapes of the arrays of a training batch from this bucket; without `config`, of a
    held-out batch.
    """
    source = bucket.source_length
    target = bucket.target_length
    sides = {"source": source, "target_input": target, "target_output": target}
    if config and config.batch.plan == "packed":
        for side, length in (("source", source), ("target", target)):
            sides |= {f"{side}_segments": length, f"{side}_positions": length}
    arrays = {name: ((bucket.rows, length), jnp.int32) for name, length in sides.items() if length}
    annotated = annotations(config.data) if config else ()
    if "pair_weights" in annotated:
        arrays["target_weights"] = (bucket.rows, target), jnp.float32
    if "alignments" in annotated:
        arrays["links"] = (bucket.rows, target, source), jnp.bool
    return {name: jax.ShapeDtypeStruct(*array, sharding=sharding) for name, array in arrays.items()}
