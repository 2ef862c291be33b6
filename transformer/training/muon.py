"""The optimizer Muon (Jordan et al. 2024) over stacks of matrices, on every mesh."""

import functools
import math
from collections import defaultdict

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer.config.types import Config
from transformer.distributed.mesh import sharding_rule
from transformer.model.partitioning import is_for_one_cpu, target_platform

BETA = 0.95  # decay of the momentum
# Root mean square of an update at a rate of 1. It is the usual size of Adam's updates, so that
# learning rates are comparable.
UPDATE_RMS = 0.2
STACKED = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)

# The shardings of a stack of matrices, from that of its matrices to whole matrices on each device.
# The partitioner would replicate the stack to move two axes at once, and without the first
# constraint it would move each matrix separately.
TO_WHOLE_MATRICES = (
    P(None, "fsdp", "tensor"),
    P("data", "fsdp", "tensor"),
    P(("data", "fsdp"), None, "tensor"),
    P(("data", "fsdp", "tensor")),
)


def muon(optimizer_config: Config, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Returns Muon for the matrices between activations, and Adam for all other parameters.

    Both have Nesterov's momentum.
    """
    # The identities keep the structure of the state of `optax.contrib.muon`, which checkpoints
    # have.
    matrices = optax.chain(
        scale_by_muon(optimizer_config.epsilon),
        optax.identity(),
        optax.identity(),
        optax.scale_by_learning_rate(schedule),
    )
    adam = optax.adamw(
        schedule,
        b1=optimizer_config.beta1,
        b2=optimizer_config.beta2,
        eps=optimizer_config.epsilon,
        weight_decay=0.0,
        nesterov=True,
    )

    def label(path, leaf):
        # The projection to logits is not between activations.
        names = [key.key for key in path]
        is_inner = names[-1] == "kernel" and leaf.ndim == 2 and "projection" not in names
        return "muon" if is_inner else "adam"

    labels = functools.partial(jax.tree_util.tree_map_with_path, label)
    return optax.partition({"muon": matrices, "adam": adam}, labels)


def scale_by_muon(epsilon: float) -> optax.GradientTransformation:
    """Returns the transformation of gradients of matrices: momentum, orthogonalized.

    `epsilon` is added to a matrix's norm. The state is that of Optax's transformation of the same
    name.
    """

    def update(updates, state, params=None):
        count = optax.safe_increment(state.count)
        momentum = optax.tree.update_moment(updates, state.mu, BETA, 1)
        # Nesterov's momentum: the momentum after one more update by the same gradient.
        ahead = jax.tree.map(
            lambda momentum, gradient: BETA * momentum + (1 - BETA) * gradient,
            optax.tree.bias_correction(momentum, BETA, optax.safe_increment(count)),
            optax.tree.bias_correction(updates, BETA, count),
        )
        return _orthogonalize_tree(ahead, epsilon), state._replace(count=count, mu=momentum)

    return optax.GradientTransformation(optax.contrib.scale_by_muon().init, update)


def _orthogonalize_tree(tree, epsilon: float):
    """Orthogonalizes matrices of equal shape as one stack, or one by one on a single CPU.

    Accelerators compute in bfloat16.
    """
    dtype = jnp.dtype("float32" if target_platform() == "cpu" else "bfloat16")
    paths_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    matrices = [_transpose_by_rule(path, leaf) for path, leaf in paths_leaves]

    # XLA's batched matmuls on a CPU are slower than single ones.
    one_by_one = is_for_one_cpu()
    groups = defaultdict(list)
    for index, matrix in enumerate(matrices):
        groups[index if one_by_one else matrix.shape].append(index)

    for indices in groups.values():
        stack = jnp.stack([matrices[index].astype(dtype) for index in indices])
        for index, matrix in zip(indices, _orthogonalize(stack, epsilon), strict=True):
            scale = UPDATE_RMS * math.sqrt(max(matrix.shape))
            matrices[index] = matrix.astype(jnp.float32) * scale

    leaves = [
        _transpose_by_rule(path, matrix)
        for (path, _), matrix in zip(paths_leaves, matrices, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def _orthogonalize(stack: Float[Array, "N K M"], epsilon: float) -> Float[Array, "N K M"]:
    """Applies Optax's Newton-Schulz iterations to each matrix of the stack.

    Each device takes some of the matrices. All-to-alls exchange sharded matrices for whole ones, so
    that no device gathers a matrix in every iteration.
    """
    newton_schulz = optax.contrib.scale_by_muon(
        beta=0.0, nesterov=False, eps=epsilon, weight_dimension_numbers=lambda _: STACKED
    )
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return newton_schulz.update(stack, newton_schulz.init(stack))[0]

    count = len(stack)
    stack = jnp.pad(stack, [(0, -count % mesh.size), (0, 0), (0, 0)])
    for spec in TO_WHOLE_MATRICES:
        stack = jax.lax.with_sharding_constraint(stack, spec)
    stack = newton_schulz.update(stack, newton_schulz.init(stack))[0]
    for spec in reversed(TO_WHOLE_MATRICES):
        stack = jax.lax.with_sharding_constraint(stack, spec)
    return stack[:count]


def _transpose_by_rule(path: tuple, matrix: jax.Array) -> jax.Array:
    """Transposes a matrix if "fsdp" shards its columns, so that all of a stack are sharded alike.

    A second call undoes the first.
    """
    return matrix.T if sharding_rule(path) == P("tensor", "fsdp") else matrix
