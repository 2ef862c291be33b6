"""Dropout (section 5.4), with random bits that are cheap compared with matmuls."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Key, UInt32

Rate = float | Float[Array, ""]


def is_zero(rate: Rate) -> bool:
    """True if the rate is the number 0.

    Arrays count as positive, because their value is unknown while a program is traced.
    """
    return isinstance(rate, float) and rate == 0.0


def dropout(x: Float[Array, "*shape"], rate: Rate, rngs: nnx.Rngs | None) -> Float[Array, "*shape"]:
    """Zeroes each element with probability `rate` and multiplies the rest by 1 / (1 - rate).

    Without `rngs`, as in evaluation, returns x unchanged. All calls of a forward pass share the key
    of the stream "dropout", and the count of the stream numbers them. A key for each call would
    take two more GPU kernels.
    """
    if rngs is None or is_zero(rate):
        return x
    keep = is_kept(x.shape, rate, rngs)
    # In float32: bfloat16 would round 1 - rate, and so scale every activation wrongly.
    scaled = (x / jnp.float32(1.0 - rate)).astype(x.dtype)
    return jnp.where(keep, scaled, jnp.zeros((), x.dtype))


def is_kept(shape: tuple[int, ...], rate: Rate, rngs: nnx.Rngs) -> Bool[Array, "..."]:
    """Returns booleans that are false with probability `rate`, and counts the call."""
    stream = rngs.dropout
    call = stream.count[...]
    # A traced rate of 0 does not count, as if `dropout` had returned x before.
    stream.count[...] = call + jnp.uint32(rate > 0)
    bits = random_bits(stream.key[...], call, shape)
    return bits >= jnp.uint32(np.round(rate * 2.0**32))


def random_bits(
    key: Key[Array, ""],
    call: UInt32[Array, ""],
    shape: tuple[int, ...],
) -> UInt32[Array, "..."]:
    """Returns 32 random bits per element: a hash of its index, the key and the call's number.

    JAX's own generators take longer than the matmul whose input they mask (docs/paper.md has the
    times). Compilers fuse the hash into its use and recompute it in the backward pass instead of
    storing a mask. The bits do not depend on the sharding. Two rounds of a 32-bit multiply and
    xor-shift mixer suffice for masks, the only use.
    """
    # The call's number enters through constants that are added to arrays, because an operation on
    # the key would be a separate GPU kernel.
    offset = _mix(call + jnp.uint32(1))

    # The index of each element in row-major order, plus the offset.
    bits = jnp.full(shape, offset)
    stride = 1
    for axis in reversed(range(len(shape))):
        bits = bits + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
        stride = stride * shape[axis] % 2**32

    # Threefry keys have two words. Keys of rbg have four; a new one repeats its two words.
    for first, second in jax.random.key_data(key).reshape(-1, 2):
        bits = _mix(_mix(bits ^ first) + _mix(offset) + second)
    return bits


def _mix(bits: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Applies lowbias32 (Wellons 2018).

    The function is a bijection. A flip of an input bit flips about half of the output bits.
    """
    bits = (bits ^ (bits >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> jnp.uint32(16))
