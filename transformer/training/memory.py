"""The memory of a program, and an estimate of a batch's that is good enough to find the shape that needs most."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh

from transformer.config_types import Config, head_widths
from transformer.data.batches.epoch_plan import Bucket
from transformer.model.fused_attention import ATTENTION_IMPLEMENTATIONS, choose_kernel
from transformer.model.kernels import product_dtype
from transformer.training.objectives import OBJECTIVES


def activation_bytes(config: Config, bucket: Bucket) -> int:
    """Estimates the bytes of the arrays that a batch of this shape creates in the model, gradients included.

    Plain attention stores its scores in float32, with a gradient of the same size; fused attention, on which the active
    mesh decides, stores none. Logits do not count, since only a chunk's exist.
    """
    model, objective = config.model, OBJECTIVES[config.training.objective]
    source_length, target_length = objective.stack_lengths(model, bucket.source_length, bucket.target_length)
    num_decoder_layers = model.num_decoder_layers or model.num_layers
    attentions = (
        (model.num_layers, source_length, source_length),
        (num_decoder_layers if model.decoder_self_attention == "attention" else 0, target_length, target_length),
        (num_decoder_layers, target_length, source_length),
    )
    stored = (attention for attention in attentions if not _is_fused(model, bucket.rows, *attention[1:]))
    pairs = sum(layers * queries * keys for layers, queries, keys in stored)
    d_k, d_v = head_widths(model)
    score_size = d_k if model.attention == "additive" else 1  # tanh(q + k) for each pair
    scores = 2 * pairs * model.num_heads * score_size
    # Per position and layer: about six vectors of the residual stream, queries and keys, values and the heads' outputs,
    # and three vectors of the inner layer.
    positions = model.num_layers * source_length + num_decoder_layers * target_length
    activations = positions * (6 * model.d_model + 2 * model.num_heads * (d_k + d_v) + 3 * model.d_ff)
    return bucket.rows * (4 * scores + product_dtype(model.dtype).itemsize * activations)


def by_memory(config: Config, buckets: Sequence[Bucket], mesh: AbstractMesh) -> list[Bucket]:
    """Returns the shapes, the one that needs most memory on the devices of the mesh first."""
    with jax.sharding.use_abstract_mesh(mesh):
        return sorted(buckets, key=lambda bucket: activation_bytes(config, bucket), reverse=True)


def bytes_used(memory: Any) -> int:
    """Returns the bytes on a device while a program with this `memory_analysis()` runs."""
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return used - memory.alias_size_in_bytes  # donated arguments share the memory of outputs


def _is_fused(model: Config, rows: int, query_length: int, key_length: int) -> bool:
    """Tells whether a kernel computes attention over these lengths, as `MultiHeadAttention` decides."""
    if model.attention != "dot_product" or model.attention_dropout > 0:
        return False
    (d_k, d_v), dtype = head_widths(model), product_dtype(model.dtype)
    queries, keys, values = (
        jax.ShapeDtypeStruct((rows, length, model.num_heads, width), dtype)
        for length, width in ((query_length, d_k), (key_length, d_k), (key_length, d_v))
    )
    kernels = ATTENTION_IMPLEMENTATIONS[model.attention_implementation]
    # Packed training has one shape only, and validation packs no rows.
    return choose_kernel(kernels, queries, keys, values, is_packed=False) is not None
