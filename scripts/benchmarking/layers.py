"""The paper's Table 1, measured: exponents of length n and width d, and longest paths.

The exponents describe the growth of time and memory. A layer is a function from (B, n, d) to
(B, n, d). Attention has one head and no projections, as in Table 1.
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

# The terms of Table 1 dominate if n is far above d (for the exponents of n), and d far above n (for
# the exponents of d).
LENGTHS = (512, 1024, 2048)
NARROW = 16
WIDTHS = (256, 512, 1024)
SHORT = 32
REPETITIONS = 9
# Batch size for the exponents of n.
LENGTH_ROWS = 4
# Batch size for the exponents of d.
WIDTH_ROWS = 16
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
# r of Table 1: the positions that restricted self-attention reads.
NEIGHBOURS = 16
# k of Table 1: the positions that the convolution reads.
WIDTH = 3


def self_attention(x: Float[Array, "B n d"]) -> Float[Array, "B n d"]:
    heads = x[:, :, None]  # (B, n, 1, d)
    mask = jnp.ones((1, 1, 1, x.shape[1]), bool)
    weights = masked_softmax(dot_product_score(heads, heads), mask)  # (B, 1, n, n)
    return jnp.einsum("bhts,bsd->btd", weights, x)


def restricted_self_attention(x: Float[Array, "B n d"]) -> Float[Array, "B n d"]:
    """Attends to the NEIGHBOURS positions around each position."""
    n, d = x.shape[1:]
    # The r neighbours of each position, with zeros beyond both ends.
    before = NEIGHBOURS // 2
    padded = jnp.pad(x, ((0, 0), (before, NEIGHBOURS - 1 - before), (0, 0)))
    positions = jnp.arange(n)[:, None] + jnp.arange(NEIGHBOURS)[None]  # (n, r)
    is_real = (positions >= before) & (positions < n + before)
    around = padded[:, positions]  # (B, n, r, d)
    # Equation 1, over the neighbours only.
    scores = jnp.einsum("btd,btrd->btr", x, around) / math.sqrt(d)
    weights = jax.nn.softmax(jnp.where(is_real[None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("btr,btrd->btd", weights, around)


def recurrent(d: int) -> Layer:
    rnn = nnx.RNN(nnx.GRUCell(d, d, rngs=nnx.Rngs(0)))
    # A traced function must not change a module from outside, so each call makes a copy.
    graph, state = nnx.split(rnn)
    return lambda x: nnx.merge(graph, state, copy=True)(x)


def convolution(d: int) -> Layer:
    return nnx.Conv(d, d, kernel_size=(WIDTH,), rngs=nnx.Rngs(0))


class Kind(NamedTuple):
    """A row of Table 1.

    Attributes:
      make: makes a layer of width d.
      complexity, path: complexity per layer and maximum path length, as text.
      exponents: the exponents of n and d in the complexity.
      steps: the sequential operations for length n.
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
        # Time and memory as functions of n, at a small d.
        costs = [cost_of(kind, n, NARROW, LENGTH_ROWS) for n in LENGTHS]
        seconds, sizes = zip(*costs, strict=True)
        time_of_n = fitted_exponent(LENGTHS, seconds)
        memory_of_n = fitted_exponent(LENGTHS, sizes)
        # Time as a function of d, at a small n.
        costs = [cost_of(kind, SHORT, d, WIDTH_ROWS) for d in WIDTHS]
        seconds, _ = zip(*costs, strict=True)
        time_of_d = fitted_exponent(WIDTHS, seconds)

        exponent_of_n, exponent_of_d = kind.exponents
        rows.append(
            (
                name,
                kind.complexity,
                str(exponent_of_n),
                f"{time_of_n:.2f}",
                f"{memory_of_n:.2f}",
                str(exponent_of_d),
                f"{time_of_d:.2f}",
                kind.path,
                str(longest_path(kind, PATH_LENGTH, PATH_WIDTH)),
            )
        )
    return markdown.table([HEADER, *rows])


def cost_of(kind: Kind, n: int, d: int, rows: int) -> tuple[float, int]:
    """Returns the median time of a layer, in seconds, and the bytes of its arrays.

    The input is `rows` float32 sequences (n, d).
    """
    x = jax.random.normal(jax.random.key(0), (rows, n, d))
    # The compiler states the bytes of temporary arrays and of the result.
    program = jax.jit(kind.make(d)).lower(x).compile()
    timer = timeit.Timer(lambda: jax.block_until_ready(program(x)))
    timer.timeit(1)  # a warm-up
    seconds = statistics.median(timer.repeat(REPETITIONS, number=1))
    memory = program.memory_analysis()
    return seconds, memory.temp_size_in_bytes + memory.output_size_in_bytes


def fitted_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Returns the slope of log(cost) over log(size), by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def longest_path(kind: Kind, n: int, d: int) -> int:
    """Returns the length of the path from the first input to the last output of stacked layers.

    The gradient of the last output with respect to the first input is zero with too few layers. The
    path is the least number of layers without this, times the sequential operations of a layer.
    """
    layer = kind.make(d)
    x = jax.random.normal(jax.random.key(1), (1, n, d))
    # The outputs that depend on each input. Every layer of the stack has the same pattern.
    jacobian = jax.jacobian(lambda x: layer(x).sum(axis=-1))(x)[0, :, 0]  # (outputs, inputs, d)
    depends = jnp.any(jacobian != 0.0, axis=-1)  # (outputs, inputs)

    is_reached = jnp.zeros((n,), bool).at[0].set(True)  # positions that depend on the first input
    for num_layers in range(1, n + 1):
        is_reached = (depends & is_reached[None]).any(axis=1)
        if is_reached[-1]:
            return num_layers * kind.steps(n)
    raise ValueError("the last output never depends on the first input")
