"""Dropout (section 5.4), with random bits that are cheap compared with matrix products."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Key, UInt32

Rate = float | Float[Array, ""]


def is_zero(rate: Rate) -> bool:
    """Tells whether a rate is the number 0.

    The value of an array is unknown while a program is traced.
    """
    return isinstance(rate, float) and rate == 0.0


def dropout(x: Float[Array, "*shape"], rate: Rate, rngs: nnx.Rngs | None) -> Float[Array, "*shape"]:
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate).

    The count of the stream "dropout" numbers the calls of a forward pass, which share its key: on a
    GPU, a key for each call would take two kernels. Without `rngs`, as in evaluation, x is returned
    unchanged.
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
    stream.count[...] = call + jnp.uint32(rate > 0)  # as if a rate of 0 had returned before
    return random_bits(stream.key[...], call, shape) >= jnp.uint32(np.round(rate * 2.0**32))


def random_bits(
    key: Key[Array, ""], call: UInt32[Array, ""], shape: tuple[int, ...]
) -> UInt32[Array, "..."]:
    """Returns 32 random bits per element: a hash of the element's index, the key and the number of
    the call.

    JAX's own generators take longer than the matrix product that they mask (docs/paper.md has the
    times). Compilers fuse the hash into its use and recompute it in the backward pass instead of
    storing a mask, and the bits do not depend on the sharding. Two rounds of a 32-bit multiply and
    xor-shift mixer suffice for masks, the only use.
    """
    # The call's number enters by constants that are added to arrays: an operation on the key would
    # be another kernel.
    offset = _mix(call + jnp.uint32(1))
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
    """Applies a bijection in which each input bit flips about half of the output bits (lowbias32,
    Wellons 2018).
    """
    bits = (bits ^ (bits >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> jnp.uint32(16))
