"""A loss as a function of the model's output and the output table, one chunk of rows at a time.

The logits of all rows never exist at once. The forward pass computes the gradients of each chunk
from its logits, so that the backward pass recomputes nothing.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.model.embedding import TokenModel
from transformer.model.matmul import FLOAT32, matmul, matmul_nt, matmul_tn
from transformer.model.partitioning import ROW_AXES, target_platform
from transformer.support.special_tokens import PAD
from transformer.training.columns import (
    COLUMN_MULTIPLE,
    LOWEST,
    Columns,
    Logits,
    PerToken,
    Tokens,
    pad_rows,
    rows_per_chunk,
)
from transformer.training.loss import CriterionAndSums, LossSums, sum_losses, token_losses

# A function of (logits, targets, columns, *logits of teachers). It returns the criterion of each
# token, and the loss that is reported.
TokenLosses = Callable[..., tuple[PerToken, PerToken]]


class Output(NamedTuple):
    """The output of a model: its logits are hidden table^T + bias."""

    hidden: Float[Array, "B T D"]
    table: Float[Array, "V D"]
    bias: Float[Array, " V"] | None = None


@dataclass(frozen=True)
class ProjectedLoss:
    """Maps a `TokenModel` and a batch to the summed criterion and the sums that a step reports."""

    training_config: Config
    mesh: Mesh

    # constant models, whose logits the training loss receives too
    teachers: tuple[TokenModel, ...] = ()

    def __call__(
        self,
        model: TokenModel,
        batch: Batch,
        rngs: nnx.Rngs | None,
    ) -> CriterionAndSums:
        """Computes the loss of training, or of evaluation if `rngs` is None.

        Only training has the second pass of R-Drop and the teachers.
        """
        # Each sentence has a row for each pass, and counts once.
        passes = 2 if self.training_config.r_drop and rngs is not None else 1
        batch = {name: jnp.repeat(array, passes, axis=0) for name, array in batch.items()}
        targets = batch.pop("target_output")
        weights = (targets != PAD) / jnp.float32(passes)
        weights *= batch.pop("target_weights", 1.0)

        output = _output(model, batch, rngs)
        teachers = self.teachers if rngs is not None else ()
        teacher_outputs = tuple(_output(teacher, batch, None) for teacher in teachers)
        losses = functools.partial(
            token_losses, training_config=self.training_config, passes=passes
        )
        return projected_loss(losses, passes, self.mesh, output, targets, weights, teacher_outputs)


def _output(model: TokenModel, batch: Batch, rngs: nnx.Rngs | None) -> Output:
    return Output(model.hidden(**batch, rngs=rngs), *model.output_table_and_bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def projected_loss(
    losses: TokenLosses,
    passes: int,
    mesh: Mesh,
    output: Output,
    targets: Tokens,
    weights: PerToken,
    teachers: tuple[Output, ...] = (),
) -> CriterionAndSums:
    """Returns the weighted sum of the criterion over all tokens, and the sums that a step reports.

    `losses` receives the logits of some rows, with all passes of a sentence, and the logits of each
    teacher, which are constants. The operands of matmuls have the dtype of `hidden`. Logits and the
    gradient of the table are float32. The gradient of `weights` is the criterion of each token.
    """
    # If nothing needs the gradients, the compiler removes them.
    return _with_gradients(losses, passes, mesh, output, targets, weights, teachers)[0]


def _backward(losses, passes, mesh, gradients: tuple, cotangents: tuple) -> tuple:
    # The sums are reported, not trained on.
    scale, _ = cotangents
    output, weights = jax.tree.map(lambda d: (scale * d).astype(d.dtype), gradients)
    return output, None, weights, None


def _with_gradients(losses, passes, mesh, output, targets, weights, teachers=()):
    """Returns ((criterion, sums), gradients of output and weights), computed by all devices.

    The arguments are those of `projected_loss`. The devices split the rows over "data" and "fsdp",
    with all passes of a sentence on one device. They split the columns over "tensor". Collectives
    reduce statistics and gradients. The sentences must divide evenly over the devices.
    """
    vocab_size, d_model = output.table.shape
    row_axes = tuple(axis for axis in ROW_AXES if mesh.shape[axis] > 1)
    tensor = "tensor" if mesh.shape["tensor"] > 1 else None

    # Between processes on CPUs, a reduce-scatter may return wrong sums (jax-ml/jax#40830).
    is_exact = target_platform() != "cpu" or jax.process_count() == 1
    scatters = "fsdp" in row_axes and d_model % mesh.shape["fsdp"] == 0 and is_exact

    # Each device of "tensor" computes the same number of columns, a multiple of its matrix units.
    multiple = COLUMN_MULTIPLE[target_platform()] * mesh.shape["tensor"]
    padding = -vocab_size % multiple
    outputs = tuple(_pad_columns(x, padding) for x in (output, *teachers))

    def on_device(outputs, targets, weights):
        width = len(outputs[0].table)
        first = 0 if tensor is None else jax.lax.axis_index(tensor) * width
        tokens = (first + jnp.arange(width))[None, None]  # (1, 1, C)
        columns = Columns(tokens, vocab_size, tensor, padding > 0)
        totals, (d_hidden, of_tokens) = _sum_chunks(
            losses, passes, columns, row_axes, outputs, targets, weights
        )

        # Each device has the sums over its rows. The gradient of `hidden` is a sum over columns.
        result, d_table, d_bias = totals
        result, d_bias = _sum_over(row_axes, (result, d_bias))
        if scatters:
            d_table = _sum_over(row_axes[:-1], d_table)
            d_table = jax.lax.psum_scatter(d_table, "fsdp", scatter_dimension=1, tiled=True)
        else:
            d_table = _sum_over(row_axes, d_table)
        d_hidden = _sum_over((tensor,), d_hidden).astype(output.hidden.dtype)
        return result, Output(d_hidden, d_table, d_bias), of_tokens

    rows = P(row_axes)
    specs = Output(rows, P(tensor), P(tensor))
    gradient_specs = specs._replace(table=P(tensor, "fsdp" if scatters else None))
    sharded = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=((specs,) * len(outputs), rows, rows),
        out_specs=(P(), gradient_specs, rows),
    )
    result, (d_hidden, *d_table_and_bias), of_tokens = sharded(outputs, targets, weights)
    d_output = Output(d_hidden, *jax.tree.map(lambda d: d[:vocab_size], d_table_and_bias))
    return result, (d_output, of_tokens)


projected_loss.defvjp(_with_gradients, _backward)


def _pad_columns(output: Output, padding: int) -> Output:
    """Adds columns without tokens, and converts the table to the dtype of `hidden`."""
    hidden, table, bias = output
    table = jnp.pad(table.astype(hidden.dtype), ((0, padding), (0, 0)))
    return Output(hidden, table, None if bias is None else jnp.pad(bias, (0, padding)))


def _sum_over(axes: tuple[str | None, ...], x):
    axes = tuple(filter(None, axes))
    return jax.lax.psum(x, axes) if axes else x


def _sum_chunks(
    losses: TokenLosses,
    passes: int,
    columns: Columns,
    row_axes: tuple[str, ...],
    outputs: tuple[Output, ...],
    targets: Tokens,
    weights: PerToken,
) -> tuple[tuple, tuple[Float[Array, "B T D"], PerToken]]:
    """Returns sums over the rows of a device, and values of each token.

    The sums are ((criterion, sums), d_table, d_bias), the values (d_hidden, criterion). The outputs
    are the model's and its teachers'. Their tables have the columns of the device.
    """
    hidden, table, bias = outputs[0]
    rows, length = targets.shape

    # Chunks of equal size, as few as memory allows. All passes of a sentence are in one chunk.
    sentences = rows // passes
    bytes_per_sentence = 4 * passes * length * len(table)
    count = math.ceil(sentences / rows_per_chunk(bytes_per_sentence, 4 * table.size))
    chunk_rows = passes * math.ceil(sentences / count)

    def add_chunk(totals, chunk):
        sums, (d_hidden, of_tokens) = _chunk_gradients(losses, columns, outputs, *chunk)
        totals = jax.tree.map(jnp.add, totals, sums)
        return totals, (d_hidden.reshape(-1, *hidden.shape[1:]), of_tokens)

    # The sums start from zeros that, like the sums, differ between devices of these axes.
    axes = (*row_axes, columns.axis)
    scalars = jax.tree.map(lambda _: _varying_zeros((), row_axes), (0.0, LossSums.zeros()))
    d_table = _varying_zeros(table.shape, axes)
    d_bias = None if bias is None else _varying_zeros(bias.shape, axes)

    def split(x):
        x = pad_rows(x, count * chunk_rows)
        return x.reshape(count, chunk_rows, *x.shape[1:])  # (count, chunk_rows, ...)

    arrays = (tuple(output.hidden for output in outputs), targets, weights)
    chunks = jax.tree.map(split, arrays)
    totals, parts = jax.lax.scan(add_chunk, (scalars, d_table, d_bias), chunks)
    # (B, T, D) and (B, T)
    return totals, tuple(x.reshape(-1, *x.shape[2:])[:rows] for x in parts)


def _varying_zeros(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> jax.Array:
    return jax.lax.pcast(jnp.zeros(shape), tuple(filter(None, axes)), to="varying")


def _chunk_gradients(
    losses: TokenLosses,
    columns: Columns,
    outputs: tuple[Output, ...],
    hiddens: tuple[Float[Array, "B T D"], ...],
    targets: Tokens,
    weights: PerToken,
) -> tuple[tuple, tuple[Float[Array, "BT D"], PerToken]]:
    """Returns the results of `_sum_chunks` for some rows, from their logits.

    `hiddens` are the rows of the outputs.
    """
    logits, *teacher_logits = (
        _logits(hidden, output, columns) for hidden, output in zip(hiddens, outputs, strict=True)
    )

    def sum_tokens(logits):
        of_tokens = losses(logits, targets, columns, *teacher_logits)
        criterion, reported = sum_losses(of_tokens, logits, targets, columns, weights)
        return criterion, (reported, of_tokens[0])

    gradient = jax.value_and_grad(sum_tokens, has_aux=True)
    (criterion, (reported, of_tokens)), d_logits = gradient(logits)  # d_logits: (B, T, C)

    # The gradients of logits = hidden table^T + bias.
    _, table, bias = outputs[0]
    d_bias = None if bias is None else jnp.sum(d_logits, axis=(0, 1))
    hidden = hiddens[0].reshape(-1, table.shape[1])  # (B T, D)
    d_logits = d_logits.reshape(len(hidden), -1).astype(hidden.dtype)  # (B T, C)

    # A sum over devices is rounded once, at its end.
    d_hidden = matmul(d_logits, table, hidden.dtype if columns.axis is None else FLOAT32)
    d_table = matmul_tn(d_logits, hidden)
    return ((criterion, reported), d_table, d_bias), (d_hidden, of_tokens)


def _logits(
    hidden: Float[Array, "B T D"],
    output: Output,
    columns: Columns,
) -> Logits:
    flat = hidden.reshape(-1, hidden.shape[-1])  # (B T, D)
    logits = matmul_nt(flat, output.table, FLOAT32)
    logits = logits.reshape(*hidden.shape[:2], -1)  # (B, T, C)
    if output.bias is not None:
        logits = logits + output.bias[None, None]
    if columns.is_padded:
        logits = jnp.where(columns.tokens < columns.vocab_size, logits, LOWEST)
    return logits
