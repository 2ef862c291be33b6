"""Optimizers and learning-rate schedules by name (section 5.3)."""

import functools
import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from transformer.config.types import Config, names_in
from transformer.data.sources.lines import parse_number
from transformer.support.errors import UserError
from transformer.training.muon import muon
from transformer.training.schedule_free import adam_without_momentum, average_iterates


def make_schedule(optimizer_config: Config, d_model: int, steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the number of earlier updates."""
    return SCHEDULES[optimizer_config.schedule](optimizer_config, d_model, steps)


def make_optimizer(
    optimizer_config: Config,
    schedule: optax.Schedule,
    frozen: str = "",
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer with gradient clipping before it and weight decay after it, if any.

    An optimizer that averages parameters (`AVERAGES`) averages the results of all these.

    `frozen` lists names of parameters that no update changes. The function `update` of the result
    takes an optional `learning_rate`, which replaces the schedule's, and an optional
    `weight_decay`, which replaces one above 0. A program that has them as arguments does not depend
    on their values. Raises UserError unless `rate_factors` is NAME:FACTOR,...
    """
    factors = read_factors(optimizer_config.rate_factors)
    factors += [(name, 0.0) for name in names_in(frozen)]

    def with_rates(schedule, weight_decay):
        optimizer = OPTIMIZERS[optimizer_config.name](optimizer_config, schedule)
        if optimizer_config.weight_decay > 0:
            # The decay of matrices, the same for all optimizers: Optax's adafactor would ignore the
            # learning rate.
            decay = optax.add_decayed_weights(
                lambda count: -weight_decay * schedule(count),
                mask=functools.partial(jax.tree.map, lambda x: x.ndim > 1),
            )
            optimizer = optax.chain(optimizer, decay)
        if optimizer_config.clip_norm > 0:
            clip = optax.clip_by_global_norm(optimizer_config.clip_norm)
            optimizer = optax.chain(clip, optimizer)
        if factors:
            # Frozen parameters do not count in the norm that is clipped.
            zero_frozen = _scale_by_name(factors, only_zeros=True)
            optimizer = optax.chain(zero_frozen, optimizer, _scale_by_name(factors))
        if optimizer_config.name in AVERAGES:
            # Decay and factors are part of the steps that are averaged.
            make_average = AVERAGES[optimizer_config.name]
            optimizer = make_average(
                optimizer_config, optimizer, lambda state: schedule(count_updates(state))
            )
        return optimizer

    default_decay = optimizer_config.weight_decay

    def update(updates, state, params=None, *, learning_rate=None, weight_decay=default_decay):
        rate = schedule if learning_rate is None else lambda _: learning_rate
        return with_rates(rate, weight_decay).update(updates, state, params)

    init = with_rates(schedule, default_decay).init
    return optax.GradientTransformationExtraArgs(init, update)


def begins_with(name: str, prefixes: Iterable[str]) -> bool:
    """True if a parameter's name is one of the prefixes, or begins with one and a dot."""
    return f"{name}.".startswith(tuple(f"{prefix}." for prefix in prefixes))


def read_factors(text: str) -> list[tuple[str, float]]:
    """Returns the names and factors of `optimizer.rate_factors`.

    Raises UserError if it has another form.
    """
    factors = []
    for item in names_in(text):
        name, _, number = item.rpartition(":")
        factor = parse_number(number)
        if not name or not 0 <= factor < math.inf:
            raise UserError(
                f"config.optimizer.rate_factors: {item:.60} must be NAME:FACTOR, with a factor of "
                "at least 0"
            )
        factors.append((name, factor))
    return factors


def _scale_by_name(
    factors: list[tuple[str, float]],
    only_zeros: bool = False,
) -> optax.GradientTransformation:
    """Multiplies each update by the last factor whose name fits.

    With `only_zeros`, factors other than 0 have no effect.
    """

    def scale(path, update):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        factor = 1.0
        for prefix, prefix_factor in factors:
            if begins_with(name, [prefix]):
                factor = prefix_factor
        if factor == 0.0:
            return jnp.zeros_like(update)
        return update if only_zeros else update * factor

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates))


def count_updates(optimizer_state: optax.OptState) -> jax.Array | jax.ShapeDtypeStruct:
    """Returns the number of updates that the optimizer has made, the argument of its schedule.

    Skipped updates do not count. Raises ValueError if the optimizer does not count updates.
    """
    counts = optax.tree.get_all_with_path(
        optimizer_state,
        "count",
        filtering=lambda path, _: path[-1].tuple_name == "ScaleByScheduleState",
    )
    if not counts:
        raise ValueError(
            "the optimizer counts no updates; multiply by its rate with "
            "optax.scale_by_learning_rate(schedule)"
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


def _inverse_sqrt(optimizer_config: Config, d_model: int, steps: int) -> optax.Schedule:
    """Returns learning_rate * d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5) (equation 3).

    The update t is the one after t - 1 earlier updates.
    """
    warmup_steps = max(optimizer_config.warmup_steps, 1)
    peak = optimizer_config.learning_rate * (d_model * warmup_steps) ** -0.5

    def schedule(count):
        # Equation 3 as a fraction of the peak, which is its value at t = warmup_steps.
        t = jnp.asarray(count + 1, jnp.float32)
        w = float(warmup_steps)
        return peak * jnp.minimum(t / w, jnp.sqrt(w / t))

    return schedule


def _after_warm_up(
    decay: Callable[[float, int], optax.Schedule],
) -> Callable[[Config, int, int], optax.Schedule]:
    """Returns the constructor of a schedule with a linear warm-up to the peak rate.

    After the warm-up the schedule is `decay(peak, number of other steps)`.
    """

    def make(optimizer_config, d_model, steps):
        peak = optimizer_config.learning_rate
        warmup_steps = optimizer_config.warmup_steps

        def warm_up(count):
            # t / warmup_steps at the t-th update, as in the paper's schedule: the first update has
            # a rate above 0.
            return peak * (count + 1) / max(warmup_steps, 1)

        schedule = decay(peak, max(steps - warmup_steps, 1))
        return optax.join_schedules([warm_up, schedule], [warmup_steps])

    return make


def _adam(
    optimizer_config: Config,
    schedule: optax.Schedule,
    nesterov: bool = False,
) -> optax.GradientTransformation:
    return optax.adam(
        schedule,
        b1=optimizer_config.beta1,
        b2=optimizer_config.beta2,
        eps=optimizer_config.epsilon,
        nesterov=nesterov,
    )


def _ademamix(optimizer_config: Config, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Returns AdEMAMix (Pagliardini et al. 2024): Adam with a second, slow average of gradients.

    During its warm-up the weight of the slow average grows linearly, and so does its half-life.
    """
    beta1 = optimizer_config.beta1
    beta3 = optimizer_config.beta3
    alpha = optimizer_config.alpha

    def fraction(count):
        return jnp.minimum((count + 1) / max(optimizer_config.alpha_warmup_steps, 1), 1.0)

    def slow_decay(count):
        # The half-life of an average with the decay b is proportional to 1 / log(b).
        start = 1 / jnp.log(beta1)
        return jnp.exp(1 / (start + fraction(count) * (1 / jnp.log(beta3) - start)))

    scale = optax.contrib.scale_by_ademamix(
        b1=beta1,
        b2=optimizer_config.beta2,
        b3=slow_decay,
        alpha=lambda count: fraction(count) * alpha,
        eps=optimizer_config.epsilon,
    )
    return optax.chain(scale, optax.scale_by_learning_rate(schedule))


# The constructors take (config.optimizer, schedule) and leave weight decay to `make_optimizer`.
OPTIMIZERS: dict[str, Callable[[Config, optax.Schedule], optax.GradientTransformation]] = {
    "adam": _adam,
    "adamw": _adam,
    # Shazeer and Stern 2018; the schedule's rate times each parameter's scale.
    "adafactor": lambda optimizer_config, schedule: optax.adafactor(schedule),
    "nadamw": functools.partial(_adam, nesterov=True),  # Dozat 2016
    "ademamix": _ademamix,
    "schedule_free_adamw": adam_without_momentum,
    "muon": muon,
}

# Optimizers that average parameters. An entry wraps all that `make_optimizer` has put together, and
# takes (config.optimizer, that transformation, the learning rate as a function of its state). Its
# state has a method `averaged_parameters`, whose result is for validation and decoding.
AVERAGES: dict[str, Callable[..., optax.GradientTransformation]] = {
    "schedule_free_adamw": average_iterates,
}

# The constructors take (config.optimizer, d_model, steps).
SCHEDULES: dict[str, Callable[[Config, int, int], optax.Schedule]] = {
    "inverse_sqrt": _inverse_sqrt,
    "constant": _after_warm_up(lambda peak, steps: optax.constant_schedule(peak)),
    "linear": _after_warm_up(lambda peak, steps: optax.linear_schedule(peak, 0.0, steps)),
    "cosine": _after_warm_up(optax.cosine_decay_schedule),
}
