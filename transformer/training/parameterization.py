"""Parameterizations: how initial values and learning rates depend on the width of the model.

With the standard one, the best learning rate falls as the model becomes wider. With maximal update
parameterization (muP), all activations and their changes keep their sizes, and the best learning
rate of a narrow model is that of a wide one (Yang et al. 2022, "Tensor Programs V").

The forward pass does not depend on the parameterization. Where muP multiplies a parameter, the
product is stored as the parameter: its initial value and its updates are multiplied instead (Lemma
J.1 of that paper). Decoding and exports therefore need no change.
"""

from typing import NamedTuple

import jax
import optax

from transformer.config.types import Config, head_widths, with_changes
from transformer.training.optimizer import make_optimizer


class Scales(NamedTuple):
    """Exponents of the width for one kind of parameters."""

    variance: float  # of initial values
    multiplier: float  # of the parameters in the forward pass
    rate: float  # learning rate of Adam
    muon_rate: float  # learning rate of Muon


class Parameterization(NamedTuple):
    """The scales of all kinds of parameters, as in Table 8 of Yang et al.

    Weight decay has the exponent of the rate with the opposite sign, so that the decay of an update
    does not depend on the width.
    """

    embedding: Scales
    vector: Scales  # biases, norms, learned positions and relative positions
    hidden: Scales  # matrices between activations, those of cross-attention included
    output: Scales  # the projection to logits, or the embedding if it is shared
    score: float  # exponent of d_k in attention scores: q . k d_k^score
    epsilon: float  # of Adam, like the gradients


PARAMETERIZATIONS = {
    # The columns are variance, multiplier, rate and rate of Muon.
    "standard": Parameterization(
        embedding=Scales(-1, 0.5, 0, 0),
        vector=Scales(0, 0, 0, 0),
        hidden=Scales(-1, 0, 0, 0),
        # Xavier's variance 2 / (d_model + V) falls little while d_model is below V.
        output=Scales(0, 0, 0, 0),
        score=-0.5,
        epsilon=0,
    ),
    "mup": Parameterization(
        embedding=Scales(0, 0, 0, 0),
        vector=Scales(0, 0, 0, 0),
        # The spectral norm of an update should be constant. Muon's grows with the square root of
        # the width (`UPDATE_RMS`).
        hidden=Scales(-1, 0, -1, -0.5),
        output=Scales(0, -1, 0, 0),
        score=-1,
        epsilon=-1,
    ),
}


class Factors(NamedTuple):
    """Numbers by which a parameter differs from the standard parameterization."""

    initial: float  # factor on the initial value
    multiplier: float  # part of the parameter
    rate: float  # factor on the learning rate


def initial_values(config: Config, parameters: dict) -> dict:
    """Returns the initial parameters, given those of the standard parameterization."""
    factors = parameter_factors(config, parameters)
    return jax.tree.map(lambda x, f: _multiply(x, f.initial), parameters, factors)


def make_run_optimizer(
    config: Config,
    schedule: optax.Schedule,
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer of a run, in the parameterization of its model.

    The function `update` of the result takes the options of `make_optimizer`. Raises UserError like
    `make_optimizer`.
    """
    standard, chosen, width = _scales(config.model)
    epsilon = config.optimizer.epsilon * width ** (chosen.epsilon - standard.epsilon)
    optimizer_config = with_changes(config.optimizer, epsilon=epsilon)
    optimizer = make_optimizer(optimizer_config, schedule, config.training.freeze)

    def update(gradients, state, parameters, **options):
        factors = parameter_factors(config, parameters)

        # The optimizer takes the gradients of the parameters without their multipliers. It reads
        # the parameters only for weight decay, which the last line must not change.
        gradients = jax.tree.map(lambda x, f: _multiply(x, f.multiplier), gradients, factors)
        parameters = jax.tree.map(
            lambda x, f: _multiply(x, 1 / (f.multiplier * f.rate)), parameters, factors
        )
        updates, state = optimizer.update(gradients, state, parameters, **options)
        updates = jax.tree.map(lambda x, f: _multiply(x, f.multiplier * f.rate), updates, factors)
        return updates, state

    return optax.GradientTransformationExtraArgs(optimizer.init, update)


def parameter_factors(config: Config, parameters: dict) -> dict:
    """Returns a tree with the `Factors` of each parameter."""
    standard, chosen, width = _scales(config.model)
    if chosen is standard:
        return jax.tree.map(lambda _: Factors(1.0, 1.0, 1.0), parameters)
    head_width = head_widths(config.model)[0] / config.model.base_d_k
    scaled_norm = None if "projection" in parameters else _last_norm(parameters)

    def difference(kind):
        pairs = zip(getattr(chosen, kind), getattr(standard, kind), strict=True)
        return Scales(*[after - before for after, before in pairs])

    def factors(path, _):
        names = tuple(key.key for key in path)
        variance, multiplier, rate, muon_rate = difference(_kind(names))
        if config.optimizer.name == "muon":
            rate = muon_rate
        if names[:-1] == scaled_norm:
            # Logits are products of this norm and the table, which has a multiplier already.
            multiplier += difference("output").multiplier - difference("embedding").multiplier

        # The multiplier of attention scores is part of the queries.
        score = head_width ** (chosen.score - standard.score) if "query" in names else 1.0
        return Factors(
            initial=width ** (multiplier + variance / 2) * score,
            multiplier=width**multiplier * score,
            rate=width**rate,
        )

    return jax.tree_util.tree_map_with_path(factors, parameters)


def _scales(model_config: Config) -> tuple[Parameterization, Parameterization, float]:
    """Returns the standard and the configured parameterization, and m = d_model / base_d_model."""
    chosen = PARAMETERIZATIONS[model_config.parameterization]
    d_model = model_config.d_model
    return PARAMETERIZATIONS["standard"], chosen, d_model / (model_config.base_d_model or d_model)


def _kind(names: tuple) -> str:
    """Returns the field of `Parameterization` for the parameter with this path."""
    if names[-2:] == ("embedding", "table"):
        return "embedding"
    if names[0] == "projection":
        return "output"
    return "hidden" if names[-1] == "kernel" else "vector"


def _last_norm(parameters: dict) -> tuple:
    """Returns the path of the norm whose result the logits are computed from."""
    name = "decoder" if "decoder" in parameters else "encoder"
    stack = parameters[name]
    if "final_norm" in stack:
        return name, "final_norm"
    # Only post-norm stacks have no final norm.
    return name, "layers", max(stack["layers"]), "feed_forward_connection", "norm"


def _multiply(x: jax.Array, factor: float) -> jax.Array:
    # A factor of 1 does not change the program.
    return x if factor == 1.0 else x * factor
