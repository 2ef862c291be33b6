"""Optimizers and learning-rate schedules by name (section 5.3)."""

import jax
import optax
import optax.contrib

from transformer.config_types import Config


def inverse_sqrt_schedule(factor: float, d_model: int, warmup_steps: int) -> optax.Schedule:
    """factor * d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5) (equation 3), t from 1 at the first update.

    Optax counts updates from 0, hence t = count + 1. Without warm-up it is factor * (d_model t)^-0.5.
    """
    peak = factor * (d_model * max(warmup_steps, 1)) ** -0.5

    def schedule(count):
        t = jax.numpy.asarray(count + 1, jax.numpy.float32)
        w = float(max(warmup_steps, 1))
        return peak * jax.numpy.minimum(t / w, jax.numpy.sqrt(w / t))

    return schedule


def make_schedule(config: Config, d_model: int, steps: int) -> optax.Schedule:
    """The learning rate at each update, counted from 0. `config` is the group `config.optimizer`."""
    if config.schedule == "inverse_sqrt":
        return inverse_sqrt_schedule(config.learning_rate, d_model, config.warmup_steps)
    peak, warmup = config.learning_rate, config.warmup_steps
    after = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, 0.0, max(steps - warmup, 1)),
        "cosine": optax.cosine_decay_schedule(peak, max(steps - warmup, 1)),
    }[config.schedule]
    # t / warmup at the t-th update, like the paper's schedule: the first update is not thrown away.
    return optax.join_schedules([lambda count: peak * (count + 1) / max(warmup, 1), after], [warmup])


def make_optimizer(config: Config, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Clipping, if any, then the optimizer that the group `config.optimizer` names, and its weight decay."""
    adam = {"b1": config.beta1, "b2": config.beta2, "eps": config.epsilon}
    if config.name in ("adam", "adamw"):
        optimizer = optax.adam(schedule, **adam)
    elif config.name == "muon":
        optimizer = optax.contrib.muon(
            schedule,
            eps=config.epsilon,
            adam_b1=config.beta1,
            adam_b2=config.beta2,
            muon_weight_dimension_numbers=_between_layers,
            consistent_rms=0.2,  # updates as large as Adam's usually are, so that learning rates mean the same
        )
    else:
        # Adafactor (Shazeer and Stern 2018) with the schedule's rate times each parameter's scale.
        optimizer = optax.adafactor(schedule)
    if config.weight_decay > 0:
        # As Optax's adamw has it, for all: its muon would leave embeddings out, its adafactor the learning rate.
        decay = optax.add_decayed_weights(lambda count: -config.weight_decay * schedule(count), _matrices)
        optimizer = optax.chain(optimizer, decay)
    if config.clip_norm > 0:
        return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
    return optimizer


def _between_layers(parameters):
    """Where Muon applies: matrices from activations to activations (Jordan et al. 2024). The others are Adam's.

    Those are the kernels, but for the one that gives the logits. Tables of vectors and additive attention's v are none.
    """

    def dimensions(path, leaf):
        names = [key.key for key in path]
        is_inner = names[-1] == "kernel" and leaf.ndim == 2 and "projection" not in names
        return optax.contrib.MuonDimensionNumbers() if is_inner else None

    return jax.tree_util.tree_map_with_path(dimensions, parameters)


def _matrices(parameters):
    """Where weight decay applies: not on biases, nor on LayerNorm's scales."""
    return jax.tree.map(lambda x: x.ndim > 1, parameters)
