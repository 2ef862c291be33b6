"""Fused dot-product attention, which never stores the (B, H, T, S) scores.

`model.attention_implementation` names the implementations to try. Each runs on some devices and
computes some masks. Attention that none of them can compute takes the plain form of
`MultiHeadAttention`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, PartitionSpec
from jaxtyping import Array, Float

from transformer.model.masks import Mask
from transformer.model.partitioning import ROW_AXES, row_shards

TPU_LANES = 128  # splash attention computes blocks of multiples of this many queries and keys
MAX_BLOCK = 512
# cuDNN is faster than the plain form from this many positions on, on an H200 (docs/devices.md).
CUDNN_LENGTH = 64

Queries = Float[Array, "B T H d"]
Keys = Float[Array, "B S H d"]
Values = Float[Array, "B S H d"]


class FusedAttention(NamedTuple):
    """An implementation and its conditions.

    Queries, keys and values are bfloat16 with heads of one width. At positions that attend to
    nothing the result is finite and need not be 0. These positions are padding: nothing attends to
    their vectors, and the loss ignores them.
    """

    attend: Callable[[Queries, Keys, Values, Mask], Queries]
    runs_on: Callable[[AbstractDevice], bool]
    accepts: Callable[[Queries, Keys, bool], bool]  # a function of (queries, keys, is_packed)


def fused_attention(
    implementations: Sequence[FusedAttention],
    queries: Queries,
    keys: Keys,
    values: Float[Array, "B S H dv"],
    mask: Mask,
) -> Queries | None:
    """Returns the heads by the first implementation that suits the active mesh, or None.

    Each device computes its own rows and heads. Without a mesh the result is None.
    """
    mesh = jax.sharding.get_abstract_mesh()
    rows, _, heads, width = queries.shape
    if mesh.empty or mesh.abstract_device is None or queries.dtype != jnp.bfloat16:
        return None
    if not keys.shape[2:] == values.shape[2:] == (heads, width):
        return None
    if rows % row_shards(mesh) or heads % mesh.shape["tensor"]:
        return None

    by_rows = PartitionSpec(ROW_AXES)
    by_heads = PartitionSpec(ROW_AXES, None, "tensor")
    for attend, runs_on, accepts in implementations:
        if runs_on(mesh.abstract_device) and accepts(queries, keys, mask.is_packed):
            # The compiler's partitioner cannot split the implementations, and Pallas does not
            # annotate the axes over which its results vary.
            sharded_attend = jax.shard_map(
                attend,
                in_specs=(by_heads, by_heads, by_heads, by_rows),
                out_specs=by_heads,
                check_vma=False,
            )
            return sharded_attend(queries, keys, values, mask)
    return None


def cudnn_attention(
    queries: Queries,
    keys: Keys,
    values: Values,
    mask: Mask,
    implementation: Any = "cudnn",
) -> Queries:
    """Attends over rows of one sentence each, by their lengths.

    `implementation` is an argument of `jax.nn.dot_product_attention`; "xla" computes the same on
    every device.
    """

    def lengths(segments):
        # A row without tokens gets the length 1: a softmax over no keys would be 0 / 0.
        return jnp.maximum(jnp.sum(segments != 0, axis=1, dtype=jnp.int32), 1)

    return jax.nn.dot_product_attention(
        queries,
        keys,
        values,
        is_causal=mask.is_causal,
        query_seq_lengths=lengths(mask.query_segments),
        key_value_seq_lengths=lengths(mask.key_segments),
        implementation=implementation,
    )


def splash_attention(
    queries: Queries,
    keys: Keys,
    values: Values,
    mask: Mask,
    interpret: bool = False,
) -> Queries:
    """Attends within segments by JAX's Pallas kernel for TPUs.

    With `interpret`, other devices run it operation by operation.
    """
    # Imported here because the import takes 0.2 s, which only programs for TPUs should spend.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    lengths = (queries.shape[1], keys.shape[1])  # (T, S)
    head_mask = masks.CausalMask(lengths) if mask.is_causal else masks.FullMask(lengths)
    block = math.gcd(*lengths, MAX_BLOCK)
    names = [field.name for field in dataclasses.fields(splash.BlockSizes)]
    block_sizes: dict[str, Any] = {name: block for name in names if name.startswith("block_")}
    attend = splash.make_splash_mha(
        masks.MultiHeadMask([head_mask] * queries.shape[2]),
        block_sizes=splash.BlockSizes(**block_sizes),
        head_shards=1,  # `fused_attention` has split the heads
        q_seq_shards=1,
        interpret=interpret,
    )

    scaled = (queries / jnp.float32(math.sqrt(queries.shape[-1]))).astype(queries.dtype)
    by_head = [jnp.swapaxes(x, 1, 2) for x in (scaled, keys, values)]  # (B, H, T or S, d)
    segments = splash.SegmentIds(mask.query_segments, mask.key_segments)
    heads = jax.vmap(attend)(*by_head, segments)
    return jnp.swapaxes(heads, 1, 2)  # (B, T, H, d)


def _runs_cudnn(device: AbstractDevice) -> bool:
    # The mesh lacks the compute capability. Absent GPUs are targets of `scripts.plan`, which are
    # all recent.
    present = jax.local_devices() if jax.default_backend() == "gpu" else []
    is_nvidia = device.platform == "gpu" and device.device_kind.startswith("NVIDIA")
    return is_nvidia and all(float(gpu.compute_capability) >= 8.0 for gpu in present)


def _fits_cudnn(
    queries: Queries,
    keys: Keys,
    is_packed: bool,
    min_length: int = CUDNN_LENGTH,
) -> bool:
    # For packed rows JAX also computes the gradient of the bias, which nothing needs
    # (jax-ml/jax#39512). JAX 0.10 refuses to differentiate attention over odd lengths. A step with
    # heads of 16 failed on an H200 (JAX 0.11.2).
    lengths = (queries.shape[1], keys.shape[1])
    fits_lengths = all(length % 2 == 0 and length >= min_length for length in lengths)
    return fits_lengths and not is_packed and queries.shape[-1] in range(32, 129, 8)


def _fits_splash(queries: Queries, keys: Keys, is_packed: bool) -> bool:
    return is_packed and queries.shape[1] % TPU_LANES == 0 and keys.shape[1] % TPU_LANES == 0


CUDNN = FusedAttention(cudnn_attention, _runs_cudnn, _fits_cudnn)
SPLASH = FusedAttention(splash_attention, lambda device: device.platform == "tpu", _fits_splash)
# The implementations to try, in this order.
ATTENTION_IMPLEMENTATIONS = {
    "auto": (CUDNN, SPLASH),
    # also at lengths for which it is slower
    "cudnn": (CUDNN._replace(accepts=functools.partial(_fits_cudnn, min_length=2)),),
    "plain": (),
}
