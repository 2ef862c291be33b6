"""Tiny random models, batches for them, and the loss with its gradients.

No model here is compiled as a whole: that takes longer than one evaluation, operation by operation.
The tests share the sizes of `tiny_config`, and take gradients at one shape, LARGE, so that they
share compiled operations.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
from flax import nnx

from configs import base
from tests.data.sentences import MemorySentences
from tests.meshes import one_device
from transformer.data.batches.collation import assemble_batch
from transformer.data.batches.epoch_plan import Bucket, PlannedBatch
from transformer.model.transformer import Transformer
from transformer.support.special_tokens import EOS, PAD
from transformer.training import projected_loss
from transformer.training.columns import Columns
from transformer.training.loss import LossSums, smoothed_cross_entropy, sum_losses

VOCAB = 20
LOSS = projected_loss.ProjectedLoss(base.get_config().training, one_device())
SMALL, LARGE = (3, 8, 6), (5, 16, 12)  # rows, positions of source and of target
# differences that rounding explains, by dtype of the products
ROUNDING = {"float32": 1e-5, "bfloat16": 3e-2}


class Model(NamedTuple):
    """A model's structure and its parameters, as training keeps them."""

    graph: nnx.GraphDef
    parameters: dict

    @property
    def module(self) -> nnx.Module:
        return nnx.merge(self.graph, nnx.State(self.parameters))


def tiny_config(**changes) -> ml_collections.ConfigDict:
    """Returns the group `config.model` of a very small model, in float32 unless `changes` says
    otherwise.
    """
    config = base.get_config().model
    tiny = {
        "num_layers": 2,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
        "max_positions": 24,
        "dtype": "float32",
    }
    config.update({**tiny, **changes})
    return config


def random_model(make: Callable[[], nnx.Module], seed: int = 0) -> Model:
    """Returns the model that `make` creates, with random parameters, so that no bias is 0 and no
    scale is 1.
    """
    graph, state = nnx.split(nnx.eval_shape(make), nnx.Param)
    random = np.random.default_rng(seed)

    def draw(path, leaf) -> jax.Array:
        values = random.normal(size=leaf.shape).astype(np.float32) * 0.3
        return jnp.asarray(1.0 + values if path[-1].key == "scale" else values)

    return Model(graph, jax.tree_util.tree_map_with_path(draw, nnx.to_pure_dict(state)))


def tiny_transformer(**changes) -> Model:
    config = tiny_config(**changes)
    return random_model(lambda: Transformer(config, VOCAB, VOCAB, rngs=nnx.Rngs(0)))


def sentences(lengths: list[tuple[int, int]], seed: int = 0) -> MemorySentences:
    """Returns pairs of random tokens with these lengths, which include EOS."""
    random = np.random.default_rng(seed)
    return MemorySentences(
        [[random.integers(EOS + 1, VOCAB, length - 1) for length in pair] for pair in lengths]
    )


def batch_of(
    pairs: MemorySentences, rows: list[int], shape: tuple[int, int, int], packed: bool = False
) -> dict[str, jax.Array]:
    """Returns all pairs as one batch of this shape, pair i in row rows[i].

    The remaining rows are filler.
    """
    batch = assemble_batch(
        pairs,
        PlannedBatch(Bucket(*shape, is_packed=packed), np.arange(len(rows)), np.array(rows)),
    )
    return {name: jnp.asarray(array) for name, array in batch.items()}


def loss_and_gradients(model: Model, batch: dict[str, jax.Array]) -> tuple[LossSums, dict]:
    """Returns the LossSums of the batch and the gradients of the summed loss, without dropout."""

    def loss(parameters):
        return LOSS(nnx.merge(model.graph, nnx.State(parameters)), batch, None)

    projected = projected_loss.projected_loss

    # outside of jit, shard_map compiles a program for each operation
    def compiled(losses, passes, mesh, *arrays):
        return jax.jit(functools.partial(projected, losses, passes, mesh))(*arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projected_loss, "projected_loss", compiled)
        gradients, sums = jax.grad(loss, has_aux=True)(model.parameters)
    return sums, gradients


def cross_entropy(
    logits: jax.Array, targets: jax.Array, label_smoothing: float = 0.1, support: str = "uniform"
) -> LossSums:
    """Returns what a step reports for these logits."""
    columns = Columns.whole(logits.shape[-1])
    losses = smoothed_cross_entropy(logits, targets, columns, label_smoothing, support)
    return sum_losses((losses, losses), logits, targets, columns, jnp.float32(targets != PAD))[1]


def logits_of(
    graph: nnx.GraphDef, parameters: dict, batch: dict, rngs: nnx.Rngs | None = None
) -> jax.Array:
    """Returns the logits (B, T, V) of a batch of the loader."""
    inputs = {name: array for name, array in batch.items() if name != "target_output"}
    return nnx.merge(graph, nnx.State(parameters))(**inputs, rngs=rngs)


def assert_gradients_close(actual: dict, expected: dict, tolerance: float = 1e-5) -> None:
    """Asserts that each gradient differs from the expected one by at most `tolerance` times its
    norm.

    Some gradients are zero up to rounding, such as those of key biases, which the softmax cancels.
    So a norm counts as at least a thousandth of the norm of all gradients.
    """
    floor = 1e-3 * np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(expected)))
    actual, expected = dict(flat(actual)), dict(flat(expected))
    assert actual.keys() == expected.keys()
    for path, wanted in expected.items():
        difference = np.linalg.norm(actual[path] - wanted)
        assert difference <= tolerance * max(np.linalg.norm(wanted), floor), path


def flat(tree: dict) -> list[tuple[str, np.ndarray]]:
    """Returns (path, array) for every leaf, with the parts of the path joined by slashes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), np.asarray(leaf))
        for path, leaf in leaves
    ]
