"""The coordinate check: activations of models of several widths in the first updates of training.

Their sizes grow with the width in the standard parameterization, and stay with mup (Yang et al.
2022, section D.1).
"""

from typing import Any

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from configs import base
from scripts.charts import theme
from transformer.config.types import Config
from transformer.model.attention import dot_product_score
from transformer.training.parameterization import PARAMETERIZATIONS, make_run_optimizer
from transformer.training.state import init_model

WIDTHS = (32, 64, 128, 256)
UPDATES = 4
RATE = 0.02  # large, so that few updates are enough
VOCAB_SIZE = 64
ACTIVATIONS = ("__call__", "scores", "logits")  # captured values
HEIGHT = 150


def draw(columns: int = 2) -> Any:
    """Returns the sizes of activations by width, with a panel for each parameterization.

    A line is an activation before the first update, or after 1 to `UPDATES`. Its sizes are relative
    to the smallest width.
    """
    records = []
    for name in PARAMETERIZATIONS:
        sizes = {width: measure(make_config(name, width)) for width in WIDTHS}
        for width, activations in sizes.items():
            for path, values in activations.items():
                for updates, ratio in enumerate(values / sizes[WIDTHS[0]][path]):
                    record = {"name": name, "width": width, "path": path, "updates": updates}
                    records.append(record | {"ratio": float(ratio)})

    axis = alt.Axis(values=WIDTHS, grid=False)
    chart = theme.chart_of(records, height=HEIGHT).mark_line(opacity=0.5)
    chart = chart.encode(
        x=alt.X("width:Q", title="d_model", axis=axis).scale(type="log", nice=False),
        y=alt.Y("ratio:Q", title="mean |activation| / that of the base").scale(type="log"),
        color=theme.categories(alt.Color, "updates", range(UPDATES + 1), theme.CATEGORICAL),
        detail="path:N",
    )
    return theme.facets(chart, PARAMETERIZATIONS, columns)


def make_config(parameterization: str, width: int) -> Config:
    """Returns the configuration of a small model. The smallest of `WIDTHS` is the base."""
    config = base.get_config()
    changes = {"norm_position": "pre", "positions": "rotary", "num_layers": 1, "num_heads": 4}
    config.model.update(changes, d_model=width, d_ff=2 * width, dtype="float32")
    config.model.update(parameterization=parameterization, base_d_model=WIDTHS[0], base_d_k=8)
    return config


def measure(config: Config) -> dict[str, np.ndarray]:
    """Returns the mean absolute values of activations, before training and after each update.

    The activations are the results of modules, attention scores and logits, by their paths. All
    updates are from one batch of random tokens.
    """
    graph, parameters = jax.jit(lambda: init_model(config, VOCAB_SIZE, VOCAB_SIZE))()
    optimizer = make_run_optimizer(config, optax.constant_schedule(RATE))
    tokens = jax.random.randint(jax.random.key(0), (3, 16, 8), 4, VOCAB_SIZE)

    def loss(parameters):
        model = nnx.merge(graph, nnx.State(parameters))
        for _, module in nnx.iter_modules(model):
            if hasattr(module, "score"):
                module.score = _recorded_score(module)
        capture = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)
        logits, outputs = capture(*tokens[:2])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[2])
        return jnp.mean(losses), outputs

    @jax.jit
    def update(parameters, state):
        gradients, outputs = jax.grad(loss, has_aux=True)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        sizes = {}
        for (*path, method), values in nnx.to_flat_state(outputs):
            # Queries and the last norm contain multipliers, as scores and logits show.
            if method in ACTIVATIONS and path[-1] not in ("query", "final_norm"):
                value = values.get_value()[0]
                sizes[".".join(map(str, [*path, method]))] = jnp.mean(jnp.abs(value))
        return optax.apply_updates(parameters, updates), state, sizes

    state = optimizer.init(parameters)
    sizes = []
    for _ in range(UPDATES + 1):
        parameters, state, latest = update(parameters, state)
        sizes.append(latest)
    return jax.tree.map(lambda *values: np.array(values), *sizes)


def _recorded_score(module: nnx.Module) -> Any:
    def score(queries, keys):
        scores = dot_product_score(queries, keys)
        module.sow(nnx.Intermediate, "scores", scores)
        return scores

    return score
