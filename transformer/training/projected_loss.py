"""The training criterion as a function of the decoder's output and the output table, a chunk of rows at a time."""

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

from transformer.config_types import Config
from transformer.data.batches.collation import Batch
from transformer.distributed.sharding import BATCH
from transformer.model.partitioning import ROW_AXES, row_shards
from transformer.model.products import FLOAT32, product, product_with_transpose, transposed_product
from transformer.training.loss import Criterion, LossSums

_COLUMN_MULTIPLE = {"cpu": 1}
_DEFAULT_COLUMN_MULTIPLE = 128  # tiles of matrix units
# Float32 logits of a chunk, on each device. TPUs keep small chunks in their vector memory. Each chunk adds to the whole
# gradient of the table, which smaller ones would do more often.
_CHUNK_BYTES = {"cpu": 2**26, "tpu": 2**26}
_DEFAULT_CHUNK_BYTES = 2**29


@dataclasses.dataclass(frozen=True)
class ProjectedLoss:
    """Maps (hidden, table, targets) to the summed criterion and to what a step reports; logits are hidden table^T.

    The logits of all rows never exist at once. A chunk's logits give its gradients at once, so that the backward pass
    recomputes nothing. Devices share the rows of the mesh axes "data" and "fsdp", and the columns of "tensor": only
    statistics of rows and the gradients cross devices.
    """

    criterion: Criterion
    mesh: Mesh

    @classmethod
    def from_config(cls, training: Config, mesh: Mesh) -> "ProjectedLoss":
        return cls(Criterion.from_config(training, _platform(mesh)), mesh)

    @property
    def passes(self) -> int:
        """The number of rows for each sentence."""
        return self.criterion.passes

    def without_r_drop(self) -> "ProjectedLoss":
        """Returns the loss of single passes, as in evaluation."""
        return dataclasses.replace(self, criterion=dataclasses.replace(self.criterion, r_drop=0.0))

    def __call__(
        self, hidden: Float[Array, "B T D"], table: Float[Array, "V D"], targets: Int[Array, "B T"]
    ) -> tuple[Float[Array, ""], LossSums]:
        """Products take operands in the dtype of `hidden`. Logits and the table's gradient are float32."""
        return _projected_loss(self, hidden, table, targets)

    def of_batch(self, model: nnx.Module, batch: Batch, rngs: nnx.Rngs | None) -> tuple[Float[Array, ""], LossSums]:
        """Returns the summed criterion of a model with `hidden` and `output_table`, whose inputs are in the batch."""
        inputs = {name: array for name, array in batch.items() if name != "target_output"}
        return self(model.hidden(**inputs, rngs=rngs), model.output_table, batch["target_output"])

    def over_devices(self, hidden: jax.Array, table: jax.Array, targets: jax.Array, with_gradients: bool) -> tuple:
        """Returns (criterion, sums), and the gradients of hidden and table if requested."""
        mesh, (vocab_size, d_model) = self.mesh.shape, table.shape
        is_shared = len(hidden) // self.passes % row_shards(self.mesh) == 0  # R-Drop compares the rows of a sentence
        rows = BATCH if is_shared else P()
        columns = _COLUMN_MULTIPLE.get(_platform(self.mesh), _DEFAULT_COLUMN_MULTIPLE) * mesh["tensor"]
        padded = jnp.pad(table.astype(hidden.dtype), ((0, -vocab_size % columns), (0, 0)))
        splits_gradient = is_shared and mesh["fsdp"] > 1 and d_model % mesh["fsdp"] == 0

        def on_device(hidden, table, targets):
            result, gradients = self._sum_chunks(hidden, table, targets, vocab_size, with_gradients)
            if is_shared:
                result = self._sum_over(ROW_AXES, result)
            if not with_gradients:
                return result, ()
            of_hidden, of_table = gradients
            if is_shared:
                of_table = self._sum_over(("data",), of_table)
                if splits_gradient:
                    of_table = jax.lax.psum_scatter(of_table, "fsdp", scatter_dimension=1, tiled=True)
                else:
                    of_table = self._sum_over(("fsdp",), of_table)
            return result, (self._sum_over(("tensor",), of_hidden).astype(hidden.dtype), of_table)

        table_gradient = P("tensor", "fsdp" if splits_gradient else None)
        result, gradients = jax.shard_map(
            on_device,
            mesh=self.mesh,
            in_specs=(rows, P("tensor"), rows),
            out_specs=(P(), (rows, table_gradient) if with_gradients else ()),
            check_vma=False,
        )(hidden, padded, targets)
        return result, (gradients[0], gradients[1][:vocab_size]) if with_gradients else ()

    def _sum_over(self, axes: tuple[str, ...], x: Any) -> Any:
        """Sums arrays over the devices of mesh axes. XLA on CPUs copies an array even for a sum over one device."""
        axes = tuple(axis for axis in axes if self.mesh.shape[axis] > 1)
        return jax.lax.psum(x, axes) if axes else x

    def _sum_chunks(
        self, hidden: jax.Array, table: jax.Array, targets: jax.Array, vocab_size: int, with_gradients: bool
    ) -> tuple:
        """Sums over the rows and columns of this device."""
        (rows, length, _), passes = hidden.shape, self.criterion.passes
        count = _number_of_chunks(rows // passes, 4 * passes * length * len(table), _platform(self.mesh))
        columns = jnp.arange(len(table)) + jax.lax.axis_index("tensor") * len(table)
        axis = "tensor" if self.mesh.shape["tensor"] > 1 else None

        def add_chunk(totals, chunk):
            hidden, targets = chunk
            flat = hidden.reshape(-1, hidden.shape[-1])
            logits = product_with_transpose(flat, table, FLOAT32).reshape(*targets.shape, -1)
            *result, gradient = self.criterion.with_gradient(logits, targets, columns, vocab_size, axis)
            if not with_gradients:
                return jax.tree.map(jnp.add, totals, (tuple(result), ())), ()
            gradient = gradient.reshape(len(flat), -1).astype(hidden.dtype)
            # A sum over devices is rounded once, at its end.
            of_hidden = product(gradient, table, hidden.dtype if axis is None else FLOAT32)
            of_table = transposed_product(gradient, flat)
            return jax.tree.map(jnp.add, totals, (tuple(result), of_table)), of_hidden.reshape(hidden.shape)

        start = ((jnp.zeros(()), LossSums.zeros()), jnp.zeros(table.shape) if with_gradients else ())
        chunks = [_split(x, count, passes) for x in (hidden, targets)]
        (result, of_table), of_hidden = jax.lax.scan(add_chunk, start, chunks)
        return result, (of_hidden.reshape(-1, *hidden.shape[1:])[:rows], of_table) if with_gradients else ()


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _projected_loss(loss: ProjectedLoss, hidden: jax.Array, table: jax.Array, targets: jax.Array) -> tuple:
    return loss.over_devices(hidden, table, targets, with_gradients=False)[0]


def _forward(loss: ProjectedLoss, hidden: jax.Array, table: jax.Array, targets: jax.Array) -> tuple:
    return loss.over_devices(hidden, table, targets, with_gradients=True)


def _backward(loss: ProjectedLoss, gradients: tuple, cotangents: tuple) -> tuple:
    scale, _ = cotangents  # the sums are reported, not trained on
    of_hidden, of_table = gradients
    return (scale * of_hidden).astype(of_hidden.dtype), scale * of_table, None


_projected_loss.defvjp(_forward, _backward)


def _number_of_chunks(sentences: int, bytes_per_sentence: int, platform: str) -> int:
    per_chunk = max(_CHUNK_BYTES.get(platform, _DEFAULT_CHUNK_BYTES) // bytes_per_sentence, 1)
    return math.ceil(sentences / per_chunk)


def _split(x: jax.Array, count: int, passes: int) -> jax.Array:
    """Splits rows into `count` equal chunks, the last filled with padding. A sentence's passes are in one chunk."""
    rows = passes * math.ceil(len(x) / passes / count)
    x = jnp.pad(x, ((0, count * rows - len(x)), *[(0, 0)] * (x.ndim - 1)))
    return x.reshape(count, rows, *x.shape[1:])


def _platform(mesh: Mesh) -> str:
    return mesh.devices.flat[0].platform
