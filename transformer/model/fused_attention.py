"""Fused dot-product attention: kernels that never store the (B, H, T, S) scores.
`model.attention_implementation`.

Each kernel runs on some devices and computes some masks. Attention that no kernel can compute takes
the plain form of `MultiHeadAttention`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, PartitionSpec
from jaxtyping import Array, Float

from transformer.model.masks import Mask
from transformer.model.partitioning import ROW_AXES, row_shards

TPU_LANES = 128  # splash attention computes blocks of multiples of this many queries and keys
MAX_BLOCK = 512
# positions from which cuDNN is faster than the plain form on an H200 (docs/devices.md)
CUDNN_LENGTH = 64
Queries, Keys, Values = Float[Array, "B T H d"], Float[Array, "B S H d"], Float[Array, "B S H d"]


class FusedAttention(NamedTuple):
    """A kernel and its conditions. Queries, keys and values are bfloat16 with heads of one width.

    At positions that attend to nothing the result is finite and need not be 0. These are padding,
    whose vectors are neither attended to nor part of the loss.
    """

    attend: Callable[[Queries, Keys, Values, Mask], Queries]
    runs_on: Callable[[AbstractDevice], bool]
    accepts: Callable[[Queries, Keys, bool], bool]  # a function of (queries, keys, is_packed)


def fused_attention(
    kernels: Sequence[FusedAttention],
    queries: Queries,
    keys: Keys,
    values: Float[Array, "B S H dv"],
    mask: Mask,
) -> Queries | None:
    """Returns the heads by the first kernel that can compute them on the active mesh, or None if
    none can.

    Each device computes its own rows and heads. Without a mesh there is no kernel.
    """
    mesh, (rows, _, heads, width) = jax.sharding.get_abstract_mesh(), queries.shape
    if mesh.empty or mesh.abstract_device is None or queries.dtype != jnp.bfloat16:
        return None
    if not keys.shape[2:] == values.shape[2:] == (heads, width):
        return None
    if rows % row_shards(mesh) or heads % mesh.shape["tensor"]:
        return None
    by_rows, by_heads = PartitionSpec(ROW_AXES), PartitionSpec(ROW_AXES, None, "tensor")
    for kernel in kernels:
        if kernel.runs_on(mesh.abstract_device) and kernel.accepts(queries, keys, mask.is_packed):
            # The kernels are opaque to the compiler's partitioner, and Pallas does not annotate
            # what it varies over.
            specs = {"in_specs": (by_heads, by_heads, by_heads, by_rows), "out_specs": by_heads}
            return jax.shard_map(kernel.attend, **specs, check_vma=False)(
                queries, keys, values, mask
            )
    return None


def cudnn_attention(
    queries: Queries, keys: Keys, values: Values, mask: Mask, implementation: str = "cudnn"
) -> Queries:
    """Attends over rows of one sentence each, by their lengths.

    `implementation` is an argument of `jax.nn.dot_product_attention`; "xla" computes the same on
    every device.
    """

    def lengths(segments: jax.Array) -> jax.Array:
        # Rows without tokens count as one token long: a softmax over no keys would be 0 / 0.
        return jnp.maximum(jnp.sum(segments != 0, axis=1, dtype=jnp.int32), 1)

    return jax.nn.dot_product_attention(
        *(queries, keys, values),
        is_causal=mask.is_causal,
        query_seq_lengths=lengths(mask.query_segments),
        key_value_seq_lengths=lengths(mask.key_segments),
        implementation=implementation,
    )


def splash_attention(
    queries: Queries, keys: Keys, values: Values, mask: Mask, interpret: bool = False
) -> Queries:
    """Attends within segments by JAX's Pallas kernel for TPUs.

    Other devices `interpret` it, operation by operation.
    """
    # Here because it takes 0.2 s to import, which only programs for TPUs should spend.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = queries.shape[1], keys.shape[1]
    visible = (masks.CausalMask if mask.is_causal else masks.FullMask)(shape)
    blocks = [
        field.name
        for field in dataclasses.fields(kernels.BlockSizes)
        if field.name.startswith("block_")
    ]
    attend = kernels.make_splash_mha(
        masks.MultiHeadMask([visible] * queries.shape[2]),
        block_sizes=kernels.BlockSizes(**dict.fromkeys(blocks, math.gcd(*shape, MAX_BLOCK))),
        head_shards=1,  # `fused_attention` has split them
        q_seq_shards=1,
        interpret=interpret,
    )
    scaled = (queries / jnp.float32(math.sqrt(queries.shape[-1]))).astype(queries.dtype)
    by_head = [jnp.swapaxes(x, 1, 2) for x in (scaled, keys, values)]
    heads = jax.vmap(attend)(*by_head, kernels.SegmentIds(mask.query_segments, mask.key_segments))
    return jnp.swapaxes(heads, 1, 2)


def _runs_cudnn(device: AbstractDevice) -> bool:
    # The mesh does not tell the compute capability. Absent GPUs are targets of `scripts.plan`,
    # which are all recent.
    present = jax.local_devices() if jax.default_backend() == "gpu" else []
    is_nvidia = device.platform == "gpu" and device.device_kind.startswith("NVIDIA")
    return is_nvidia and all(float(gpu.compute_capability) >= 8.0 for gpu in present)


def _fits_cudnn(queries: Queries, keys: Keys, is_packed: bool, least: int = CUDNN_LENGTH) -> bool:
    # For packed rows JAX also computes the gradient of the bias, which nothing needs
    # (jax-ml/jax#39512), and it refuses to differentiate attention over odd lengths (JAX 0.10). A
    # step with heads of 16 failed on an H200 (JAX 0.11.2).
    lengths, width = (queries.shape[1], keys.shape[1]), queries.shape[-1]
    suits = all(length % 2 == 0 and length >= least for length in lengths)
    return suits and not is_packed and width in range(32, 129, 8)


def _fits_splash(queries: Queries, keys: Keys, is_packed: bool) -> bool:
    return is_packed and queries.shape[1] % TPU_LANES == 0 and keys.shape[1] % TPU_LANES == 0


CUDNN = FusedAttention(cudnn_attention, _runs_cudnn, _fits_cudnn)
SPLASH = FusedAttention(splash_attention, lambda device: device.platform == "tpu", _fits_splash)
# The kernels to try; attention that none of them can compute is plain.
ATTENTION_IMPLEMENTATIONS = {
    "auto": (CUDNN, SPLASH),
    # also where it is slower
    "cudnn": (CUDNN._replace(accepts=functools.partial(_fits_cudnn, least=2)),),
    "plain": (),
}
