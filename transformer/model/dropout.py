"""Dropout (section 5.4), with random bits that cost less than the products around them."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key, UInt32


def dropout(x: Float[Array, "*shape"], rate: float, rngs: nnx.Rngs | None) -> Float[Array, "*shape"]:
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate).

    `rngs` must have a stream named "dropout"; None means evaluation, and x comes back as it is.
    """
    if rngs is None or rate == 0.0:
        return x
    threshold = jnp.uint32(round(rate * 2**32))
    keep = random_bits(rngs.dropout(), x.shape) >= threshold
    # In float32: bfloat16 would round 1 - rate, and so scale every activation wrongly.
    scaled = (x / jnp.float32(1.0 - rate)).astype(x.dtype)
    return jnp.where(keep, scaled, jnp.zeros((), x.dtype))


def random_bits(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """32 random bits an element: a hash of the element's index under a key.

    JAX's own generators take longer for a mask than the matrix product that it masks: on two CPU cores 15 ms
    against 3 ms for 2M elements, where this takes 0.9 ms. It is elementwise, so compilers fuse it into what
    uses it and recompute it in the backward pass instead of storing it, and an element's bits do not depend on how
    the array is spread over devices. Two rounds of a 32-bit multiply and xor-shift mixer are ample for masks;
    nothing else uses them.
    """
    bits = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        bits = bits + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
        stride = stride * shape[axis] % 2**32
    # Two words for JAX's threefry, its default; four for rbg, which a new key has twice the same two of.
    for first, second in jax.random.key_data(key).reshape(-1, 2):
        bits = _mix(_mix(bits ^ first) + second)
    return bits


def _mix(bits: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A bijection of 32-bit words; every input bit moves about half of the output's (lowbias32, Wellons 2018)."""
    bits = (bits ^ (bits >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> jnp.uint32(16))
