"""Optimizers and learning-rate schedules by name (section 5.3)."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer.config.types import Config, names_in
from transformer.data.sources.lines import parse_number
from transformer.distributed.mesh import sharding_rule
from transformer.model.partitioning import is_for_one_cpu, target_platform
from transformer.support.errors import UserError

MUON_BETA = 0.95  # decay of the momentum
# of an update at a rate of 1: the usual size of Adam's, so that learning rates are comparable
MUON_RMS = 0.2
STACKED = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)


def make_schedule(config: Config, d_model: int, steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the number of earlier updates.

    `config` is `config.optimizer`.
    """
    return SCHEDULES[config.schedule](config, d_model, steps)


def make_optimizer(
    config: Config, schedule: optax.Schedule, frozen: str = ""
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer with its weight decay, after gradient clipping if any. `config` is
    `config.optimizer`.

    `frozen` are the names of parameters that stay as they are. `update` takes an optional
    `learning_rate`, which replaces the schedule's, and an optional `weight_decay`, which replaces
    one above 0: a program that has them as arguments does not depend on their values. Raises
    UserError unless `rate_factors` is NAME:FACTOR,...
    """
    factors = read_factors(config.rate_factors) + [(name, 0.0) for name in names_in(frozen)]

    def with_rates(
        schedule: optax.Schedule, weight_decay: float | jax.Array
    ) -> optax.GradientTransformation:
        optimizer = OPTIMIZERS[config.name](config, schedule)
        if config.weight_decay > 0:
            # Of matrices, and the same for all optimizers: Optax's adafactor would ignore the
            # learning rate.
            matrices = functools.partial(jax.tree.map, lambda x: x.ndim > 1)
            decay = optax.add_decayed_weights(
                lambda count: -weight_decay * schedule(count), matrices
            )
            optimizer = optax.chain(optimizer, decay)
        if config.clip_norm > 0:
            optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
        if not factors:
            return optimizer
        # Frozen parameters do not count in the norm that is clipped.
        return optax.chain(
            _scale_by_name(factors, only_zeros=True), optimizer, _scale_by_name(factors)
        )

    def update(
        updates,
        state,
        params=None,
        *,
        learning_rate: jax.Array | None = None,
        weight_decay=config.weight_decay,
    ):
        used = schedule if learning_rate is None else lambda _: learning_rate
        return with_rates(used, weight_decay).update(updates, state, params)

    return optax.GradientTransformationExtraArgs(
        with_rates(schedule, config.weight_decay).init, update
    )


def begins_with(name: str, prefixes: Iterable[str]) -> bool:
    """Tells whether a parameter's name is one of the prefixes, or begins with one and a dot."""
    return f"{name}.".startswith(tuple(f"{prefix}." for prefix in prefixes))


def read_factors(text: str) -> list[tuple[str, float]]:
    """Returns the names and factors of `optimizer.rate_factors`.

    Raises UserError if it has another form.
    """
    factors = []
    for item in names_in(text):
        name, _, text = item.rpartition(":")
        factor = parse_number(text)
        if not name or not 0 <= factor < math.inf:
            raise UserError(
                f"config.optimizer.rate_factors: {item:.60} must be NAME:FACTOR, with a factor of at least 0"
            )
        factors.append((name, factor))
    return factors


def _scale_by_name(
    factors: list[tuple[str, float]], only_zeros: bool = False
) -> optax.GradientTransformation:
    """Multiplies each update by the last factor whose name fits; with `only_zeros`, only by factors
    of 0.
    """

    def scale(path, update):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        factor = next(
            (factor for prefix, factor in reversed(factors) if begins_with(name, [prefix])), 1.0
        )
        if factor == 0.0:
            return jnp.zeros_like(update)
        return update if only_zeros else update * factor

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates))


def count_updates(optimizer_state: optax.OptState) -> jax.Array | jax.ShapeDtypeStruct:
    """Returns how many updates the optimizer has made, the argument of its schedule.

    Skipped updates do not count.
    """
    counts = optax.tree.get_all_with_path(
        optimizer_state,
        "count",
        filtering=lambda path, _: path[-1].tuple_name == "ScaleByScheduleState",
    )
    return counts[0][1]


def restart_schedule(optimizer_state: optax.OptState) -> optax.OptState:
    """Returns the state with the counts of schedules at 0.

    Moments, and the counts of their updates, stay.
    """
    schedules = ("ScaleByScheduleState", "WeightDecaySchedule")
    zero = np.zeros((), np.int32)
    return optax.tree.set(
        optimizer_state, lambda path, _: path[-1].tuple_name in schedules, count=zero
    )


def _inverse_sqrt(config: Config, d_model: int, steps: int) -> optax.Schedule:
    """Returns learning_rate * d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5) (equation 3), where
    t = count + 1.
    """
    warmup_steps = max(config.warmup_steps, 1)
    peak = config.learning_rate * (d_model * warmup_steps) ** -0.5

    def schedule(count):
        t, w = jnp.asarray(count + 1, jnp.float32), float(warmup_steps)
        return peak * jnp.minimum(t / w, jnp.sqrt(w / t))

    return schedule


def _after_warm_up(
    decay: Callable[[float, int], optax.Schedule],
) -> Callable[[Config, int, int], optax.Schedule]:
    """Returns the constructor of a schedule: a linear warm-up to the peak rate, then `decay` of
    (peak, steps left).
    """

    def make(config: Config, d_model: int, steps: int) -> optax.Schedule:
        def warm_up(count):
            # t / warmup_steps at the t-th update, as in the paper's schedule: the first update has
            # a rate above 0.
            return config.learning_rate * (count + 1) / max(config.warmup_steps, 1)

        schedule = decay(config.learning_rate, max(steps - config.warmup_steps, 1))
        return optax.join_schedules([warm_up, schedule], [config.warmup_steps])

    return make


def _adam(config: Config, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adam(schedule, b1=config.beta1, b2=config.beta2, eps=config.epsilon)


def _muon(config: Config, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Returns Muon for the matrices between activations, and Adam with Nesterov's momentum for all
    other parameters.
    """
    # The identities keep the structure of the state of `optax.contrib.muon`, which checkpoints
    # have.
    matrices = optax.chain(
        scale_by_muon(config.epsilon),
        optax.identity(),
        optax.identity(),
        optax.scale_by_learning_rate(schedule),
    )
    adam = optax.adamw(
        schedule,
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=0.0,
        nesterov=True,
    )

    def label(path, leaf) -> str:  # "muon" for kernels, except that of the projection to logits
        names = [key.key for key in path]
        is_inner = names[-1] == "kernel" and leaf.ndim == 2 and "projection" not in names
        return "muon" if is_inner else "adam"

    labels = functools.partial(jax.tree_util.tree_map_with_path, label)
    return optax.partition({"muon": matrices, "adam": adam}, labels)


# The constructors take (config.optimizer, schedule) and leave weight decay to `make_optimizer`.
OPTIMIZERS: dict[str, Callable[[Config, optax.Schedule], optax.GradientTransformation]] = {
    "adam": _adam,
    "adamw": _adam,
    # Shazeer and Stern 2018; the schedule's rate times each parameter's scale.
    "adafactor": lambda config, schedule: optax.adafactor(schedule),
    "muon": _muon,
}

# The constructors take (config.optimizer, d_model, steps).
SCHEDULES: dict[str, Callable[[Config, int, int], optax.Schedule]] = {
    "inverse_sqrt": _inverse_sqrt,
    "constant": _after_warm_up(lambda peak, steps: optax.constant_schedule(peak)),
    "linear": _after_warm_up(lambda peak, steps: optax.linear_schedule(peak, 0.0, steps)),
    "cosine": _after_warm_up(optax.cosine_decay_schedule),
}


# The shardings of a stack of matrices, from that of its matrices to whole matrices on each device.
# The partitioner would replicate the stack to move two axes at once, and without the first
# constraint it would move each matrix separately.
TO_WHOLE_MATRICES = (
    P(None, "fsdp", "tensor"),
    P("data", "fsdp", "tensor"),
    P(("data", "fsdp"), None, "tensor"),
    P(("data", "fsdp", "tensor")),
)


def scale_by_muon(epsilon: float) -> optax.GradientTransformation:
    """Returns Muon (Jordan et al. 2024) for trees of matrices: Nesterov's momentum, orthogonalized.

    `epsilon` is added to a matrix's norm. Updates have the root mean square MUON_RMS. The state is
    that of Optax's transformation of the same name.
    """

    def update(updates, state: optax.contrib.MuonState, params=None):
        count = optax.safe_increment(state.count)
        momentum = optax.tree.update_moment(updates, state.mu, MUON_BETA, 1)
        ahead = jax.tree.map(
            lambda momentum, gradient: MUON_BETA * momentum + (1 - MUON_BETA) * gradient,
            optax.tree.bias_correction(momentum, MUON_BETA, optax.safe_increment(count)),
            optax.tree.bias_correction(updates, MUON_BETA, count),
        )
        return _orthogonalize_tree(ahead, epsilon), state._replace(count=count, mu=momentum)

    return optax.GradientTransformation(optax.contrib.scale_by_muon().init, update)


def _orthogonalize_tree(tree, epsilon: float):
    """Orthogonalizes matrices of equal shape as one stack, in bfloat16 on accelerators; on a CPU,
    each by itself.
    """
    dtype = jnp.dtype("float32" if target_platform() == "cpu" else "bfloat16")
    paths_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [_transpose_by_rule(path, leaf) for path, leaf in paths_leaves]
    one_by_one = is_for_one_cpu()  # XLA's batched products on a CPU are slower than single ones
    groups = defaultdict(list)
    for number, leaf in enumerate(leaves):
        groups[number if one_by_one else leaf.shape].append(number)
    for group in groups.values():
        stack = jnp.stack([leaves[number].astype(dtype) for number in group])
        for number, matrix in zip(group, _orthogonalize(stack, epsilon), strict=True):
            leaves[number] = matrix.astype(jnp.float32) * (MUON_RMS * math.sqrt(max(matrix.shape)))
    results = [
        _transpose_by_rule(path, leaf) for (path, _), leaf in zip(paths_leaves, leaves, strict=True)
    ]
    return structure.unflatten(results)


def _orthogonalize(stack: Float[Array, "N K M"], epsilon: float) -> Float[Array, "N K M"]:
    """Applies Optax's Newton-Schulz iterations to each matrix of the stack, of which each device
    takes some.

    All-to-alls exchange sharded matrices for whole ones, so that no device gathers a matrix in
    every iteration.
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
    """Transposes a matrix whose columns "fsdp" shards, to shard a stack alike.

    A second call undoes the first.
    """
    return matrix.T if sharding_rule(path) == P("tensor", "fsdp") else matrix
