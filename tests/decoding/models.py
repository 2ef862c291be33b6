"""Tiny models for the tests of decoding."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from flax import nnx

from configs import base
from transformer.data.tokenizer import BOS, EOS, PAD
from transformer.decoding import ensemble
from transformer.model.transformer import Transformer


def model_config(**changes) -> ml_collections.ConfigDict:
    """A model small enough to search exhaustively, in float32."""
    config = base.get_config().model
    config.update(num_layers=2, d_model=16, d_ff=32, num_heads=2, dropout=0.0, dtype="float32", max_positions=64)
    config.update(changes)
    return config


def tiny_model(vocab_size: int, seed: int, **changes) -> Transformer:
    """A random model, its embeddings scaled up so that its choices are not all alike."""
    model = Transformer(model_config(**changes), vocab_size, vocab_size, rngs=nnx.Rngs(seed))
    table = model.decoder.embedding.table
    table[...] = table[...] * 3.0
    return model


def random_sources(rows: int, length: int, vocab_size: int, seed: int) -> np.ndarray:
    """Rows of 1 to length - 1 random pieces and EOS, PAD after."""
    random = np.random.default_rng(seed)
    source = np.full((rows, length), PAD, np.int32)
    for row in source:
        pieces = random.integers(1, length)
        row[:pieces] = random.integers(EOS + 1, vocab_size, pieces)
        row[pieces] = EOS
    return source


def teacher_forced(models: list[Transformer], source: np.ndarray, output: list[int]) -> np.ndarray:
    """log p of every token of `output` (with its EOS), given the one source row: (T, V), by the uncached model."""
    target_input = jnp.array([[BOS, *output[:-1]]])
    return np.asarray(ensemble.log_probabilities([model(jnp.array(source)[None], target_input) for model in models])[0])


def log_probability(models: list[Transformer], source: np.ndarray, output: list[int]) -> float:
    """Of the whole output, summed in float64 from the uncached model."""
    log_p = teacher_forced(models, source, output).astype(np.float64)
    return float(log_p[np.arange(len(output)), output].sum())


def split(model: Transformer) -> tuple[nnx.GraphDef, dict]:
    graph, state = nnx.split(model, nnx.Param)
    return graph, jax.tree.map(lambda x: x, nnx.to_pure_dict(state))
