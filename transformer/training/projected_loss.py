"""A loss as a function of the model's output and the output table, a chunk of rows at a time.

The logits of all rows never exist at once. A chunk's logits give its gradients in the forward pass,
so that the backward pass recomputes nothing.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.model.matmul import FLOAT32, matmul, matmul_nt, matmul_tn
from transformer.model.partitioning import ROW_AXES, target_platform
from transformer.support.special_tokens import PAD
from transformer.training.columns import COLUMN_MULTIPLE, LOWEST, Columns, rows_per_chunk
from transformer.training.loss import LossSums, sum_losses, token_losses

# (logits, targets, columns, *logits of teachers) to the criterion of each token, and the loss that
# is reported
TokenLosses = Callable[..., tuple[Float[Array, "B T"], Float[Array, "B T"]]]


class Output(NamedTuple):
    """The output of a model, whose logits are hidden table^T + bias."""

    hidden: Float[Array, "B T D"]
    table: Float[Array, "V D"]
    bias: Float[Array, " V"] | None = None


@dataclass(frozen=True)
class ProjectedLoss:
    """Maps a `TokenModel` and a batch to the summed criterion and to the sums that a step reports."""

    training: Config  # `config.training`
    mesh: Mesh
    # constant models, whose logits the training loss receives too
    teachers: tuple[nnx.Module, ...] = ()

    def __call__(
        self, model: nnx.Module, batch: Batch, rngs: nnx.Rngs | None
    ) -> tuple[Float[Array, ""], LossSums]:
        """Computes R-Drop's second pass of each row only with dropout: in evaluation `rngs` is
        None.
        """
        passes = 2 if self.training.r_drop and rngs is not None else 1
        batch = {name: jnp.repeat(array, passes, axis=0) for name, array in batch.items()}
        targets = batch.pop("target_output")
        weights = (targets != PAD) / jnp.float32(passes)  # each sentence counts once
        weights *= batch.pop("target_weights", 1.0)
        output = _output(model, batch, rngs)
        teachers = (
            ()
            if rngs is None
            else tuple(_output(teacher, batch, None) for teacher in self.teachers)
        )
        losses = functools.partial(token_losses, training=self.training, passes=passes)
        return projected_loss(losses, passes, self.mesh, output, targets, weights, teachers)


def _output(model: nnx.Module, batch: Batch, rngs: nnx.Rngs | None) -> Output:
    return Output(model.hidden(**batch, rngs=rngs), *model.output_table_and_bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def projected_loss(
    losses: TokenLosses,
    passes: int,
    mesh: Mesh,
    output: Output,
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    teachers: tuple[Output, ...] = (),
) -> tuple[Float[Array, ""], LossSums]:
    """Returns the weighted sum of the criterion over all tokens, and the sums that a step reports.

    `losses` receives the logits of some rows, with all passes of a sentence, and those of each
    teacher, which are constants. Matmuls take operands in the dtype of `hidden`; logits and the
    table's gradient are float32.
    """
    # The compiler removes the gradients.
    return _with_gradients(losses, passes, mesh, output, targets, weights, teachers)[0]


def _backward(
    losses: TokenLosses, passes: int, mesh: Mesh, gradient: Output, cotangents: tuple
) -> tuple:
    scale, _ = cotangents  # the sums are reported, not trained on
    scaled = jax.tree.map(lambda d: (scale * d).astype(d.dtype), gradient)
    return scaled, None, None, None


def _with_gradients(
    losses: TokenLosses,
    passes: int,
    mesh: Mesh,
    output: Output,
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    teachers: tuple[Output, ...] = (),
) -> tuple:
    """Returns ((criterion, sums), gradient of the output), computed by all devices of the mesh.

    The devices split the rows over "data" and "fsdp", with the passes of a sentence on one device,
    and the columns over "tensor"; collectives reduce statistics and gradients. The sentences must
    divide evenly over the devices.
    """
    hidden, (vocab_size, d_model) = output.hidden, output.table.shape
    split = {axis for axis, size in mesh.shape.items() if size > 1}
    row_axes = tuple(axis for axis in ROW_AXES if axis in split)
    rows = P(row_axes)
    tensor = "tensor" if "tensor" in split else None
    # Between processes on CPUs, a reduce-scatter may return wrong sums (jax-ml/jax#40830).
    is_exact = target_platform() != "cpu" or jax.process_count() == 1
    scatters = "fsdp" in split and d_model % mesh.shape["fsdp"] == 0 and is_exact
    # The devices of "tensor" compute an equal number of columns each, which suits their matrix
    # units.
    padding = -vocab_size % (COLUMN_MULTIPLE[target_platform()] * mesh.shape["tensor"])

    def pad(output: Output) -> Output:
        hidden, table, bias = output
        table = jnp.pad(table.astype(hidden.dtype), ((0, padding), (0, 0)))
        return Output(hidden, table, None if bias is None else jnp.pad(bias, (0, padding)))

    def on_device(outputs: tuple[Output, ...], targets: jax.Array, weights: jax.Array) -> tuple:
        width = len(outputs[0].table)
        first = 0 if tensor is None else jax.lax.axis_index(tensor) * width
        columns = Columns((first + jnp.arange(width))[None, None], vocab_size, tensor, padding > 0)
        totals, d_hidden = _sum_chunks(losses, passes, columns, row_axes, outputs, targets, weights)
        result, d_table, d_bias = totals
        result, d_bias = _sum_over(row_axes, (result, d_bias))
        if scatters:
            d_table = _sum_over(row_axes[:-1], d_table)
            d_table = jax.lax.psum_scatter(d_table, "fsdp", scatter_dimension=1, tiled=True)
        else:
            d_table = _sum_over(row_axes, d_table)
        return result, Output(_sum_over((tensor,), d_hidden).astype(hidden.dtype), d_table, d_bias)

    specs = Output(rows, P(tensor), P(tensor))
    result, gradient = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=((specs,) * (1 + len(teachers)), rows, rows),
        out_specs=(P(), specs._replace(table=P(tensor, "fsdp" if scatters else None))),
    )(tuple(map(pad, (output, *teachers))), targets, weights)
    d_hidden, *d_output = gradient
    return result, Output(d_hidden, *jax.tree.map(lambda d: d[:vocab_size], d_output))


projected_loss.defvjp(_with_gradients, _backward)


def _sum_over(axes: tuple[str | None, ...], x: Any) -> Any:
    axes = tuple(filter(None, axes))
    return jax.lax.psum(x, axes) if axes else x


def _sum_chunks(
    losses: TokenLosses,
    passes: int,
    columns: Columns,
    row_axes: tuple[str, ...],
    outputs: tuple[Output, ...],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
) -> tuple[tuple, Float[Array, "B T D"]]:
    """Returns ((criterion, sums), d_table, d_bias) and d_hidden of the rows and the columns of
    logits of one device.
    """
    whole, table, bias = outputs[0]
    rows, length = targets.shape
    count = math.ceil(rows // passes / rows_per_chunk(4 * passes * length * len(table)))
    chunk_rows = passes * math.ceil(rows / passes / count)  # a sentence's passes are in one chunk

    def split(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, ((0, count * chunk_rows - rows), *[(0, 0)] * (x.ndim - 1)))
        return x.reshape(count, chunk_rows, *x.shape[1:])

    def add_chunk(totals: tuple, chunk: tuple) -> tuple:
        hiddens, targets, weights = chunk
        logits, *teachers = (
            _logits(output._replace(hidden=x), columns)
            for output, x in zip(outputs, hiddens, strict=True)
        )

        def sums(logits: jax.Array) -> tuple[jax.Array, LossSums]:
            return sum_losses(
                losses(logits, targets, columns, *teachers), logits, targets, columns, weights
            )

        criterion, gradient, reported = jax.vjp(sums, logits, has_aux=True)
        (d_logits,) = gradient(jnp.ones_like(criterion))
        d_bias = None if bias is None else jnp.sum(d_logits, axis=(0, 1))
        flat = hiddens[0].reshape(-1, whole.shape[-1])
        d_logits = d_logits.reshape(len(flat), -1).astype(flat.dtype)
        # A sum over devices is rounded once, at its end.
        d_hidden = matmul(d_logits, table, flat.dtype if columns.axis is None else FLOAT32)
        d_table = matmul_tn(d_logits, flat)
        totals = jax.tree.map(jnp.add, totals, ((criterion, reported), d_table, d_bias))
        return totals, d_hidden.reshape(hiddens[0].shape)

    def zeros(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> jax.Array:
        """Returns zeros that differ between devices of these axes, as the sums do."""
        return jax.lax.pcast(jnp.zeros(shape), tuple(filter(None, axes)), to="varying")

    axes = (*row_axes, columns.axis)
    scalars = jax.tree.map(lambda _: zeros((), row_axes), (0.0, LossSums.zeros()))
    start = scalars, zeros(table.shape, axes), None if bias is None else zeros(bias.shape, axes)
    chunks = tuple(split(output.hidden) for output in outputs), split(targets), split(weights)
    totals, d_hidden = jax.lax.scan(add_chunk, start, chunks)
    return totals, d_hidden.reshape(-1, *whole.shape[1:])[:rows]


def _logits(output: Output, columns: Columns) -> Float[Array, "B T C"]:
    hidden, table, bias = output
    flat = hidden.reshape(-1, hidden.shape[-1])
    logits = matmul_nt(flat, table, FLOAT32).reshape(*hidden.shape[:2], -1)
    logits = logits if bias is None else logits + bias[None, None]
    return (
        jnp.where(columns.tokens < columns.vocab_size, logits, LOWEST)
        if columns.is_padded
        else logits
    )
