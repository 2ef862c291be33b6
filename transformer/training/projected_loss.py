"""The training criterion as a function of the model's output and the output table, a chunk of rows at a time."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.model import kernels
from transformer.model.partitioning import ROW_AXES, target_platform
from transformer.training.loss import Criterion, LossSums


@dataclasses.dataclass(frozen=True)
class ProjectedLoss:
    """Maps a `TokenModel` and a batch to the summed criterion and to the sums that a step reports."""

    training: Config  # `config.training`
    mesh: Mesh

    def __call__(self, model: nnx.Module, batch: Batch, rngs: nnx.Rngs | None) -> tuple[Float[Array, ""], LossSums]:
        """Computes R-Drop's second pass of each row only with dropout: in evaluation `rngs` is None."""
        r_drop = 0.0 if rngs is None else self.training.r_drop
        criterion = Criterion(self.training.label_smoothing, self.training.label_smoothing_support, r_drop)
        batch = {name: jnp.repeat(array, criterion.passes, axis=0) for name, array in batch.items()}
        targets, weights = batch.pop("target_output"), batch.pop("target_weights", None)
        hidden, (table, bias) = model.hidden(**batch, rngs=rngs), model.output_table_and_bias
        return projected_loss(criterion, self.mesh, hidden, table, targets, bias, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def projected_loss(
    criterion: Criterion,
    mesh: Mesh,
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    bias: Float[Array, " V"] | None = None,
    weights: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, ""], LossSums]:
    """Returns the summed criterion of the logits hidden table^T + bias, and the sums that a step reports.

    The logits of all rows never exist at once. A chunk's logits give its gradients at once, so that the backward pass
    recomputes nothing. Products take operands in the dtype of `hidden`; logits and the table's gradient are float32.
    """
    # The compiler removes the gradients.
    return _with_gradients(criterion, mesh, hidden, table, targets, bias, weights)[0]


def _backward(criterion: Criterion, mesh: Mesh, gradients: tuple, cotangents: tuple) -> tuple:
    scale, _ = cotangents  # the sums are reported, not trained on
    d_hidden, d_table, d_bias = gradients
    d_bias = jax.tree.map(lambda d: scale * d, d_bias)
    return (scale * d_hidden).astype(d_hidden.dtype), scale * d_table, None, d_bias, None


def _with_gradients(criterion: Criterion, mesh: Mesh, *operands: jax.Array | None) -> tuple:
    """Returns ((criterion, sums), (d_hidden, d_table, d_bias)), computed by all devices of the mesh.

    The devices split the rows over "data" and "fsdp", with R-Drop's rows of a sentence on one device, and the columns
    over "tensor"; collectives reduce statistics and gradients. The sentences must divide evenly over the devices.
    """
    hidden, table, targets, bias, weights = operands
    (vocab_size, d_model), sizes = table.shape, mesh.shape
    rows = P(ROW_AXES)
    # Between processes on CPUs, a reduce-scatter may return wrong sums (jax-ml/jax#40830).
    is_exact = target_platform() != "cpu" or jax.process_count() == 1
    splits_d_table = sizes["fsdp"] > 1 and d_model % sizes["fsdp"] == 0 and is_exact
    # The devices of "tensor" compute an equal number of columns each, which suits their matrix units.
    padding = -vocab_size % (kernels.COLUMN_MULTIPLE[target_platform()] * sizes["tensor"])
    padded = jnp.pad(table.astype(hidden.dtype), ((0, padding), (0, 0)))
    padded_bias = None if bias is None else jnp.pad(bias, (0, padding))

    def sum_over(axes: tuple[str, ...], x: Any) -> Any:
        # XLA on CPUs copies an array even for a sum over one device.
        axes = tuple(axis for axis in axes if sizes[axis] > 1)
        return jax.lax.psum(x, axes) if axes else x

    def on_device(*shards):
        axis = "tensor" if sizes["tensor"] > 1 else None
        (result, d_table, d_bias), d_hidden = _sum_chunks(criterion, vocab_size, axis, *shards)
        (result, d_bias), d_table = sum_over(ROW_AXES, (result, d_bias)), sum_over(("data",), d_table)
        if splits_d_table:
            d_table = jax.lax.psum_scatter(d_table, "fsdp", scatter_dimension=1, tiled=True)
        else:
            d_table = sum_over(("fsdp",), d_table)
        return result, (sum_over(("tensor",), d_hidden).astype(hidden.dtype), d_table, d_bias)

    result, (d_hidden, *d_output) = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(rows, P("tensor"), rows, P("tensor"), rows),
        out_specs=(P(), (rows, P("tensor", "fsdp" if splits_d_table else None), P("tensor"))),
        check_vma=False,
    )(hidden, padded, targets, padded_bias, weights)
    return result, (d_hidden, *jax.tree.map(lambda d: d[:vocab_size], d_output))


projected_loss.defvjp(_with_gradients, _backward)


def _sum_chunks(
    criterion: Criterion,
    vocab_size: int,
    axis: str | None,
    hidden: Float[Array, "B T D"],
    table: Float[Array, "C D"],
    targets: Int[Array, "B T"],
    bias: Float[Array, " C"] | None,
    weights: Float[Array, "B T"] | None,
) -> tuple[tuple, Float[Array, "B T D"]]:
    """Returns ((criterion, sums), d_table, d_bias) and d_hidden of the rows and the columns of logits of one device."""
    (rows, length, _), passes = hidden.shape, criterion.passes
    columns = jnp.arange(len(table)) + jax.lax.axis_index("tensor") * len(table)
    count = math.ceil(rows // passes / kernels.rows_per_chunk(4 * passes * length * len(table)))
    chunk_rows = passes * math.ceil(rows / passes / count)  # a sentence's passes are in one chunk

    def split(x):
        x = jnp.pad(x, ((0, count * chunk_rows - rows), *[(0, 0)] * (x.ndim - 1)))
        return x.reshape(count, chunk_rows, *x.shape[1:])

    def add_chunk(totals, chunk):
        hidden, targets, weights = chunk
        flat = hidden.reshape(-1, hidden.shape[-1])
        logits = kernels.product_with_transpose(flat, table, kernels.FLOAT32).reshape(*targets.shape, -1)
        logits = logits if bias is None else logits + bias[None, None]
        *result, d_logits = criterion.with_gradient(logits, targets, columns, vocab_size, axis, weights)
        d_bias = None if bias is None else jnp.sum(d_logits, axis=(0, 1))
        d_logits = d_logits.reshape(len(flat), -1).astype(hidden.dtype)
        # A sum over devices is rounded once, at its end.
        d_hidden = kernels.product(d_logits, table, hidden.dtype if axis is None else kernels.FLOAT32)
        d_table = kernels.transposed_product(d_logits, flat)
        return jax.tree.map(jnp.add, totals, (tuple(result), d_table, d_bias)), d_hidden.reshape(hidden.shape)

    start = (jnp.zeros(()), LossSums.zeros()), jnp.zeros(table.shape), None if bias is None else jnp.zeros(bias.shape)
    totals, d_hidden = jax.lax.scan(add_chunk, start, jax.tree.map(split, (hidden, targets, weights)))
    return totals, d_hidden.reshape(-1, *hidden.shape[1:])[:rows]
