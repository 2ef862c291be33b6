"""Muon (Jordan et al. 2024): Nesterov's momentum, orthogonalized for stacks of matrices that the devices share."""

import math
from collections import defaultdict

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer.distributed.mesh import RULES
from transformer.model.partitioning import is_for_one_cpu, target_platform

BETA = 0.95  # decay of the momentum
RMS = 0.2  # of an update at a rate of 1: the usual size of Adam's, so that learning rates are comparable
STACKED = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)


def scale_by_muon(epsilon: float) -> optax.GradientTransformation:
    """Returns Optax's transformation of the same name for trees of matrices; `epsilon` is added to a matrix's norm.

    Its state is Optax's. Updates have the root mean square RMS.
    """

    def update(updates, state: optax.contrib.MuonState, params=None):
        count = optax.safe_increment(state.count)
        momentum = optax.tree.update_moment(updates, state.mu, BETA, 1)
        ahead = jax.tree.map(
            lambda momentum, gradient: BETA * momentum + (1 - BETA) * gradient,
            optax.tree.bias_correction(momentum, BETA, optax.safe_increment(count)),
            optax.tree.bias_correction(updates, BETA, count),
        )
        return _orthogonalize_tree(ahead, epsilon), state._replace(count=count, mu=momentum)

    return optax.GradientTransformation(optax.contrib.scale_by_muon().init, update)


def _orthogonalize_tree(tree, epsilon: float):
    """Orthogonalizes matrices of equal shape as one stack, in bfloat16 on accelerators; on a CPU, each by itself."""
    dtype = jnp.dtype("float32" if target_platform() == "cpu" else "bfloat16")
    paths_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [_transpose_by_rule(path, leaf) for path, leaf in paths_leaves]
    one_by_one = is_for_one_cpu()  # XLA's batched products on a CPU are slower than single ones
    numbers = defaultdict(list)
    for number, leaf in enumerate(leaves):
        numbers[leaf.shape, number if one_by_one else None].append(number)
    for (shape, _), equal in numbers.items():
        stack = jnp.stack([leaves[number].astype(dtype) for number in equal])
        for number, matrix in zip(equal, _orthogonalize(stack, epsilon), strict=True):
            leaves[number] = matrix.astype(jnp.float32) * (RMS * math.sqrt(max(shape)))
    results = [_transpose_by_rule(path, leaf) for (path, _), leaf in zip(paths_leaves, leaves, strict=True)]
    return structure.unflatten(results)


def _orthogonalize(stack: Float[Array, "N K M"], epsilon: float) -> Float[Array, "N K M"]:
    """Applies Optax's Newton-Schulz iterations to each matrix of the stack, of which each device takes some.

    One all-to-all exchanges sharded matrices for whole ones, so that no device gathers a matrix in every iteration.
    """
    newton_schulz = optax.contrib.scale_by_muon(
        beta=0.0, nesterov=False, eps=epsilon, weight_dimension_numbers=lambda _: STACKED
    )
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return newton_schulz.update(stack, newton_schulz.init(stack))[0]
    count = len(stack)
    by_matrix, within_matrix = P(mesh.axis_names), P(None, "fsdp", "tensor")
    stack = jnp.pad(stack, [(0, -count % mesh.size), (0, 0), (0, 0)])
    stack = jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(stack, within_matrix), by_matrix)
    stack = newton_schulz.update(stack, newton_schulz.init(stack))[0]
    # With the second constraint only, the partitioner would move each matrix separately.
    stack = jax.lax.with_sharding_constraint(stack, by_matrix)
    return jax.lax.with_sharding_constraint(stack, within_matrix)[:count]


def _transpose_by_rule(path: tuple, matrix: jax.Array) -> jax.Array:
    """Transposes a matrix whose columns "fsdp" shards, so that all matrices of a stack are sharded alike.

    A second call undoes the first.
    """
    rule = next((RULES[key.key] for key in reversed(path) if getattr(key, "key", None) in RULES), ("fsdp",))
    return matrix if rule[0] == "fsdp" else matrix.T
