"""Tiny models for the tests of decoding, and uncached decoding to compare with."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from configs import base
from transformer.config.types import Config
from transformer.decoding import ensemble
from transformer.decoding.batches import pad
from transformer.model.transformer import Transformer
from transformer.support.special_tokens import BOS, EOS, PAD, UNK

FORBIDDEN = (PAD, UNK, BOS)  # never generated, unless decoding.forbid_unk is false
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}  # relative, of a log-probability


class Model(NamedTuple):
    """A model's structure and its parameters."""

    graph: nnx.GraphDef
    parameters: dict


def make_decoding_config(**changes) -> Config:
    """Returns the group `config.decoding` of configs/base.py with other values."""
    decoding_config = base.get_config().decoding
    decoding_config.update(changes)
    return decoding_config


def tiny_model(vocab_size: int, seed: int, **changes) -> Model:
    """Returns a random model with very unequal probabilities.

    It is small enough to search exhaustively.
    """
    config = base.get_config().model
    config.update(
        {"num_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2, "dtype": "float32", **changes}
    )
    shapes = nnx.eval_shape(lambda: Transformer(config, vocab_size, vocab_size, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(shapes, nnx.Param)
    random = np.random.default_rng(seed)

    def draw(path, leaf) -> np.ndarray:
        values = random.normal(size=leaf.shape).astype(np.float32) * 0.6
        return 1.0 + values if path[-1].key == "scale" else values

    parameters = jax.tree_util.tree_map_with_path(draw, nnx.to_pure_dict(state))
    # A longer vector makes EOS likelier in some states and unlikelier in others, so outputs have
    # many lengths.
    parameters["decoder"]["embedding"]["table"][EOS] *= 2.0
    return Model(graph, parameters)


def random_sources(rows: int, length: int, vocab_size: int, seed: int) -> np.ndarray:
    """Returns rows of 1 to length - 1 random tokens and EOS, padded with PAD."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, length, rows)
    return pad(
        [[*random.integers(EOS + 1, vocab_size, count).tolist(), EOS] for count in counts],
        rows,
        length,
    )


def teacher_forced(
    models: Sequence[Model], source: np.ndarray, outputs: list[list[int]]
) -> np.ndarray:
    """Returns the uncached models' log-probabilities at every position of each output, EOS
    included: (N, T, V).

    source: (S,) for all outputs, or (N, S).
    """
    outputs = pad(outputs, len(outputs), max(map(len, outputs)))
    target_input = np.concatenate(
        [np.full((len(outputs), 1), BOS, np.int32), outputs[:, :-1]], axis=1
    )
    source = np.broadcast_to(source, (len(outputs), source.shape[-1]))
    graphs, parameters = zip(*models, strict=True)
    return np.array(_log_p(graphs, parameters, source, target_input))


@functools.partial(jax.jit, static_argnums=0)
def _log_p(graphs, parameters, source, target_input):
    models = ensemble.build_models(graphs, parameters)
    return ensemble.log_probabilities([model(source, target_input) for model in models])


def log_probabilities(
    models: Sequence[Model], source: np.ndarray, outputs: list[list[int]]
) -> np.ndarray:
    """Returns the log-probability of each output, summed in float64."""
    log_p = teacher_forced(models, source, outputs).astype(np.float64)
    return np.array(
        [
            sum(log_p[i, t, token] for t, token in enumerate(tokens))
            for i, tokens in enumerate(outputs)
        ]
    )


def greedy(models: Sequence[Model], sources: np.ndarray, limits: np.ndarray) -> list[list[int]]:
    """Returns the outputs of greedy search by the uncached models; EOS is forced at the limits."""
    outputs = [[] for _ in sources]
    for step in range(max(limits) + 1):
        padded = [[*tokens, *[EOS] * (max(limits) + 1 - len(tokens))] for tokens in outputs]
        log_p = teacher_forced(models, sources, padded)[:, step]
        log_p[:, FORBIDDEN] = -np.inf
        for tokens, row, limit in zip(outputs, log_p, limits, strict=True):
            if EOS not in tokens:
                tokens.append(EOS if step == limit else int(np.argmax(row)))
    return outputs
