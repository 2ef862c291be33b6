"""The paper's Table 1, measured: exponents of length n and width d in time and memory, and longest
paths.

A layer is a function from (B, n, d) to (B, n, d). Attention is that of one head, without
projections, as in Table 1.
"""

import argparse
import math
import statistics
import timeit
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import Array, Float

from scripts import markdown
from transformer.model.attention import dot_product_score, masked_softmax

Layer = Callable[[Float[Array, "B n d"]], Float[Array, "B n d"]]

# Where the terms of Table 1 dominate: n far above d for exponents of n, d far above n for those of
# d.
LENGTHS = (512, 1024, 2048)
NARROW = 16
WIDTHS = (256, 512, 1024)
SHORT = 32
REPETITIONS = 9
ROWS = {"lengths": 4, "widths": 16}
PATH_LENGTH = 128
PATH_WIDTH = 4
HEADER = (
    "layer",
    "complexity in Table 1",
    "exponent of n: stated",
    "time",
    "memory",
    "exponent of d: stated",
    "time",
    "longest path: stated",
    f"of {PATH_LENGTH} positions",
)
NEIGHBOURS = 16  # r: positions that restricted self-attention reads
WIDTH = 3  # k: positions that the convolution reads


def self_attention(x: Float[Array, "B n d"]) -> Float[Array, "B n d"]:
    everything = jnp.ones((1, 1, 1, x.shape[1]), bool)
    weights = masked_softmax(dot_product_score(x[:, :, None], x[:, :, None]), everything)
    return jnp.einsum("bhts,bsd->btd", weights, x)


def restricted_self_attention(x: Float[Array, "B n d"]) -> Float[Array, "B n d"]:
    """Attends to the NEIGHBOURS positions around each one."""
    n, d = x.shape[1:]
    before = NEIGHBOURS // 2
    padded = jnp.pad(x, ((0, 0), (before, NEIGHBOURS - 1 - before), (0, 0)))
    positions = jnp.arange(n)[:, None] + jnp.arange(NEIGHBOURS)[None]
    is_real = (positions >= before) & (positions < n + before)
    around = padded[:, positions]  # (B, n, r, d)
    scores = jnp.einsum("btd,btrd->btr", x, around) / math.sqrt(d)
    weights = jax.nn.softmax(jnp.where(is_real[None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("btr,btrd->btd", weights, around)


def recurrent(d: int) -> Layer:
    graph, state = nnx.split(nnx.RNN(nnx.GRUCell(d, d, rngs=nnx.Rngs(0))))
    return lambda x: nnx.merge(graph, state, copy=True)(x)


def convolution(d: int) -> Layer:
    return nnx.Conv(d, d, kernel_size=(WIDTH,), rngs=nnx.Rngs(0))


class Kind(NamedTuple):
    """A kind of layer with the exponents of n and d, and the sequential `steps`, that Table 1
    states.
    """

    make: Callable[[int], Layer]
    complexity: str
    exponents: tuple[int, int]
    path: str
    steps: Callable[[int], int]


KINDS = {
    "self-attention": Kind(lambda d: self_attention, "n^2 d", (2, 1), "1", lambda n: 1),
    "recurrent": Kind(recurrent, "n d^2", (1, 2), "n", lambda n: n),
    "convolutional": Kind(convolution, "k n d^2", (1, 2), "n / k", lambda n: 1),
    "self-attention (restricted)": Kind(
        lambda d: restricted_self_attention, "r n d", (1, 1), "n / r", lambda n: 1
    ),
}


def measure(arguments: argparse.Namespace) -> str:
    rows = []
    for name, kind in KINDS.items():
        logging.info("Measuring %s.", name)
        by_length = [cost_of(kind, n, NARROW, ROWS["lengths"]) for n in LENGTHS]
        by_width = [cost_of(kind, SHORT, d, ROWS["widths"]) for d in WIDTHS]
        # in time, in memory
        of_n = [fitted_exponent(LENGTHS, costs) for costs in zip(*by_length, strict=True)]
        of_d = fitted_exponent(WIDTHS, [seconds for seconds, _ in by_width])
        values = (
            name,
            kind.complexity,
            kind.exponents[0],
            *of_n,
            kind.exponents[1],
            of_d,
            kind.path,
        )
        values = (*values, longest_path(kind, PATH_LENGTH, PATH_WIDTH))
        rows.append(
            [f"{value:.2f}" if isinstance(value, float) else str(value) for value in values]
        )
    return markdown.table([HEADER, *rows])


def cost_of(kind: Kind, n: int, d: int, rows: int) -> tuple[float, int]:
    """Returns the median seconds of a layer on `rows` float32 sequences (n, d), and the bytes of
    its arrays.
    """
    x = jax.random.normal(jax.random.key(0), (rows, n, d))
    program = jax.jit(kind.make(d)).lower(x).compile()
    timer = timeit.Timer(lambda: jax.block_until_ready(program(x)))
    timer.timeit(1)  # a warm-up
    seconds = timer.repeat(REPETITIONS, number=1)
    memory = program.memory_analysis()
    return statistics.median(seconds), memory.temp_size_in_bytes + memory.output_size_in_bytes


def fitted_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Returns the slope of log(cost) over log(size), by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def longest_path(kind: Kind, n: int, d: int) -> int:
    """Returns the length of the shortest path from the first input to the last output through
    stacked layers.

    It is the number of layers that make the gradient of the last output with respect to the first
    input nonzero, times the sequential operations of a layer.
    """
    layer = kind.make(d)
    x = jax.random.normal(jax.random.key(1), (1, n, d))
    reached = jnp.zeros((n,), bool).at[0].set(True)
    # Which outputs of a layer depend on which of its inputs; every layer of a stack has the same
    # pattern.
    depends = jax.jacobian(lambda x: layer(x).sum(axis=-1))(x)[0, :, 0]  # (n outputs, n inputs, d)
    depends = jnp.any(depends != 0.0, axis=-1)
    for layers in range(1, n + 1):
        reached = (depends & reached[None]).any(axis=1)
        if reached[-1]:
            return layers * kind.steps(n)
    raise ValueError("the last output never depends on the first input")
