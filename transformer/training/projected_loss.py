"""A loss as a function of the model's output and the output table, one chunk of rows at a time.

The logits of all rows never exist at once. The forward pass computes the gradients of each chunk
from its logits, so that the backward pass recomputes nothing. Losses of whole sentences are
functions of `target_log_probabilities` instead, whose backward pass computes the logits again.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.model.matmul import FLOAT32, matmul, matmul_tn
from transformer.model.partitioning import target_platform
from transformer.support.special_tokens import PAD
from transformer.training.columns import Columns, PerToken, Tokens
from transformer.training.loss import LossSums, cross_entropy, sum_losses, token_losses
from transformer.training.projection import Chunks, Layout, Output, compute_logits, output_of

# A function of (logits, targets, columns, *logits of teachers). It returns the criterion of each
# token, and the loss that is reported.
TokenLosses = Callable[..., tuple[PerToken, PerToken]]


@dataclass(frozen=True)
class ProjectedLoss:
    """Maps a `TokenModel` and a batch to the summed criterion and the sums that a step reports."""

    training: Config  # `config.training`
    mesh: Mesh

    # constant models, whose logits the training loss receives too
    teachers: tuple[nnx.Module, ...] = ()

    def __call__(
        self,
        model: nnx.Module,
        batch: Batch,
        rngs: nnx.Rngs | None,
    ) -> tuple[Float[Array, ""], LossSums]:
        """Computes the loss of training, or of evaluation if `rngs` is None.

        Only training has the second pass of R-Drop and the teachers.
        """
        # Each sentence has a row for each pass, and counts once.
        passes = 2 if self.training.r_drop and rngs is not None else 1
        batch = {name: jnp.repeat(array, passes, axis=0) for name, array in batch.items()}
        targets = batch.pop("target_output")
        weights = (targets != PAD) / jnp.float32(passes)
        weights *= batch.pop("target_weights", 1.0)

        output = output_of(model, batch, rngs)
        teachers = self.teachers if rngs is not None else ()
        teacher_outputs = tuple(output_of(teacher, batch, None) for teacher in teachers)
        losses = functools.partial(token_losses, training=self.training, passes=passes)
        return projected_loss(losses, passes, self.mesh, output, targets, weights, teacher_outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def projected_loss(
    losses: TokenLosses,
    passes: int,
    mesh: Mesh,
    output: Output,
    targets: Tokens,
    weights: PerToken,
    teachers: tuple[Output, ...] = (),
) -> tuple[Float[Array, ""], LossSums]:
    """Returns the weighted sum of the criterion over all tokens, and the sums that a step reports.

    `losses` receives the logits of some rows, with all passes of a sentence, and the logits of each
    teacher, which are constants. The operands of matmuls have the dtype of `hidden`. Logits and the
    gradient of the table are float32.
    """
    # If nothing needs the gradients, the compiler removes them.
    return _with_gradients(losses, passes, mesh, output, targets, weights, teachers)[0]


def _backward(losses, passes, mesh, gradient: Output, cotangents: tuple) -> tuple:
    # The sums are reported, not trained on.
    scale, _ = cotangents
    scaled = jax.tree.map(lambda d: (scale * d).astype(d.dtype), gradient)
    return scaled, None, None, None


def _with_gradients(losses, passes, mesh, output, targets, weights, teachers=()):
    """Returns ((criterion, sums), gradient of the output), computed by all devices of the mesh.

    The arguments are those of `projected_loss`. The devices split the rows over "data" and "fsdp",
    with all passes of a sentence on one device. They split the columns over "tensor". Collectives
    reduce statistics and gradients. The sentences must divide evenly over the devices.
    """
    layout = Layout(mesh, len(output.table))
    row_axes = layout.row_axes

    # Between processes on CPUs, a reduce-scatter may return wrong sums (jax-ml/jax#40830).
    is_exact = target_platform() != "cpu" or jax.process_count() == 1
    fsdp = mesh.shape["fsdp"]
    scatters = fsdp > 1 and output.table.shape[1] % fsdp == 0 and is_exact

    def on_device(outputs, targets, weights):
        columns = layout.columns(outputs[0].table)
        totals, d_hidden = _sum_chunks(losses, passes, columns, row_axes, outputs, targets, weights)

        # Each device has the sums over its rows. The gradient of `hidden` is a sum over columns.
        result, d_table, d_bias = totals
        result, d_bias = _sum_over(row_axes, (result, d_bias))
        if scatters:
            d_table = _sum_over(row_axes[:-1], d_table)
            d_table = jax.lax.psum_scatter(d_table, "fsdp", scatter_dimension=1, tiled=True)
        else:
            d_table = _sum_over(row_axes, d_table)
        d_hidden = _sum_over((layout.tensor,), d_hidden).astype(output.hidden.dtype)
        return result, Output(d_hidden, d_table, d_bias)

    rows = P(row_axes)
    specs = layout.specs
    gradient_specs = specs._replace(table=P(layout.tensor, "fsdp" if scatters else None))
    sharded = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=((specs,) * (1 + len(teachers)), rows, rows),
        out_specs=(P(), gradient_specs),
    )
    outputs = tuple(map(layout.pad, (output, *teachers)))
    result, (d_hidden, *d_table_and_bias) = sharded(outputs, targets, weights)
    vocab_size = layout.vocab_size
    return result, Output(d_hidden, *jax.tree.map(lambda d: d[:vocab_size], d_table_and_bias))


projected_loss.defvjp(_with_gradients, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def target_log_probabilities(mesh: Mesh, output: Output, targets: Tokens) -> PerToken:
    """Returns log p(target) at each position, in nats.

    The devices share the work as in `projected_loss`. The gradient is that of a sum of token losses
    with a weight for each token, the cotangent.
    """
    layout = Layout(mesh, len(output.table))

    def on_device(output, targets):
        columns = layout.columns(output.table)
        chunks = Chunks.of(targets, 1, len(output.table))

        def log_p(chunk):
            hidden, targets = chunk
            logits = compute_logits(hidden, output.table, output.bias, columns)
            return -cross_entropy(logits, targets, columns)

        parts = jax.lax.map(log_p, (chunks.split(output.hidden), chunks.split(targets)))
        return parts.reshape(-1, parts.shape[-1])[: len(targets)]  # (B, T)

    rows = P(layout.row_axes)
    sharded = jax.shard_map(on_device, mesh=mesh, in_specs=(layout.specs, rows), out_specs=rows)
    return sharded(layout.pad(output), targets)


def _log_probabilities_and_residuals(mesh, output, targets):
    return target_log_probabilities(mesh, output, targets), (output, targets)


def _log_probabilities_backward(mesh, residuals, cotangent) -> tuple:
    output, targets = residuals

    def losses(logits, targets, columns):
        log_p = -cross_entropy(logits, targets, columns)
        return log_p, log_p

    _, gradient = _with_gradients(losses, 1, mesh, output, targets, cotangent)
    return gradient, None


target_log_probabilities.defvjp(_log_probabilities_and_residuals, _log_probabilities_backward)


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
) -> tuple[tuple, Float[Array, "B T D"]]:
    """Returns ((criterion, sums), d_table, d_bias), summed over the rows of a device, and d_hidden.

    The outputs are the model's and its teachers'. Their tables have the columns of the device.
    """
    hidden, table, bias = outputs[0]
    d_model = hidden.shape[-1]

    def add_chunk(totals, chunk):
        hiddens, targets, weights = chunk
        logits, *teacher_logits = (
            compute_logits(x, output.table, output.bias, columns)
            for output, x in zip(outputs, hiddens, strict=True)
        )

        def sums(logits):
            of_tokens = losses(logits, targets, columns, *teacher_logits)
            return sum_losses(of_tokens, logits, targets, columns, weights)

        (criterion, reported), d_logits = jax.value_and_grad(sums, has_aux=True)(logits)

        # The gradients of logits = hidden table^T + bias.
        d_bias = None if bias is None else jnp.sum(d_logits, axis=(0, 1))
        flat = hiddens[0].reshape(-1, d_model)  # (rows T, D)
        d_logits = d_logits.reshape(len(flat), -1).astype(flat.dtype)  # (rows T, C)

        # A sum over devices is rounded once, at its end.
        d_hidden = matmul(d_logits, table, flat.dtype if columns.axis is None else FLOAT32)
        d_table = matmul_tn(d_logits, flat)

        totals = jax.tree.map(jnp.add, totals, ((criterion, reported), d_table, d_bias))
        return totals, d_hidden.reshape(hiddens[0].shape)

    # The sums start from zeros that, like the sums, differ between devices of these axes.
    axes = (*row_axes, columns.axis)
    scalars = jax.tree.map(lambda _: _varying_zeros((), row_axes), (0.0, LossSums.zeros()))
    d_table = _varying_zeros(table.shape, axes)
    d_bias = None if bias is None else _varying_zeros(bias.shape, axes)

    chunks = Chunks.of(targets, passes, len(table))
    hiddens = tuple(chunks.split(output.hidden) for output in outputs)
    parts = (hiddens, chunks.split(targets), chunks.split(weights))
    totals, d_hidden = jax.lax.scan(add_chunk, (scalars, d_table, d_bias), parts)
    return totals, d_hidden.reshape(-1, *hidden.shape[1:])[: len(hidden)]  # (B, T, D)


def _varying_zeros(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> jax.Array:
    return jax.lax.pcast(jnp.zeros(shape), tuple(filter(None, axes)), to="varying")
