"""The logits of a model's output, for chunks of rows and for the devices of a mesh."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Shaped

from transformer.data.batches.collation import Batch
from transformer.model.matmul import FLOAT32, matmul_nt
from transformer.model.partitioning import ROW_AXES, target_platform
from transformer.training.columns import (
    COLUMN_MULTIPLE,
    LOWEST,
    Columns,
    Logits,
    Tokens,
    rows_per_chunk,
)


class Output(NamedTuple):
    """The output of a model: its logits are hidden table^T + bias."""

    hidden: Float[Array, "B T D"]
    table: Float[Array, "V D"]
    bias: Float[Array, " V"] | None = None


def output_of(model: nnx.Module, batch: Batch, rngs: nnx.Rngs | None) -> Output:
    """Returns the output for the model's inputs, the arrays of a batch without the targets."""
    return Output(model.hidden(**batch, rngs=rngs), *model.output_table_and_bias)


@dataclass(frozen=True)
class Layout:
    """The division of rows, and of the columns of the vocabulary, among the devices of a mesh.

    The devices split the rows over "data" and "fsdp", and the columns over "tensor".
    """

    mesh: Mesh
    vocab_size: int

    @property
    def row_axes(self) -> tuple[str, ...]:
        return tuple(axis for axis in ROW_AXES if self.mesh.shape[axis] > 1)

    @property
    def tensor(self) -> str | None:
        return "tensor" if self.mesh.shape["tensor"] > 1 else None

    @property
    def padding(self) -> int:
        """The columns that are added to the vocabulary.

        Each device of "tensor" computes the same number of columns, a multiple of its matrix units.
        """
        return -self.vocab_size % (COLUMN_MULTIPLE[target_platform()] * self.mesh.shape["tensor"])

    @property
    def specs(self) -> Output:
        return Output(hidden=P(self.row_axes), table=P(self.tensor), bias=P(self.tensor))

    def pad(self, output: Output) -> Output:
        hidden, table, bias = output
        padding = self.padding
        table = jnp.pad(table.astype(hidden.dtype), ((0, padding), (0, 0)))
        return Output(hidden, table, None if bias is None else jnp.pad(bias, (0, padding)))

    def columns(self, table: Float[Array, "C D"]) -> Columns:
        """Returns the columns of this device, given its part of the table."""
        width = len(table)
        first = 0 if self.tensor is None else jax.lax.axis_index(self.tensor) * width
        tokens = (first + jnp.arange(width))[None, None]  # (1, 1, C)
        return Columns(tokens, self.vocab_size, self.tensor, self.padding > 0)


class Chunks(NamedTuple):
    """Chunks of equal size, as few as memory allows."""

    count: int
    rows: int  # of a chunk

    @classmethod
    def of(cls, targets: Tokens, passes: int, num_columns: int) -> "Chunks":
        """Returns the chunks of a device's rows, with all passes of a sentence in one chunk."""
        rows, length = targets.shape
        sentences = rows // passes
        bytes_per_sentence = 4 * passes * length * num_columns
        count = math.ceil(sentences / rows_per_chunk(bytes_per_sentence))
        return cls(count, passes * math.ceil(sentences / count))

    def split(self, x: Shaped[Array, "B *rest"]) -> Shaped[Array, "N rows *rest"]:
        """Splits the rows. Zeros fill the last chunk."""
        filler = self.count * self.rows - len(x)
        x = jnp.pad(x, ((0, filler), *[(0, 0)] * (x.ndim - 1)))
        return x.reshape(self.count, self.rows, *x.shape[1:])


def compute_logits(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "C D"],
    bias: Float[Array, " C"] | None,
    columns: Columns,
) -> Logits:
    flat = hidden.reshape(-1, hidden.shape[-1])  # (B T, D)
    logits = matmul_nt(flat, table, FLOAT32)
    logits = logits.reshape(*hidden.shape[:2], -1)  # (B, T, C)
    if bias is not None:
        logits = logits + bias[None, None]
    if columns.is_padded:
        logits = jnp.where(columns.tokens < columns.vocab_size, logits, LOWEST)
    return logits
