"""A gradient and translations on a mesh of given shape: `eight_devices.py` compares them with those
of one device.
"""

import dataclasses
import functools
import math
from unittest import mock

import jax
import ml_collections
import numpy as np
import optax
from jax.sharding import Mesh

from configs import base
from tests.decoding.models import tiny_model
from tests.model.models import flat
from tests.training.tiny import make_batch, setup, tiny_config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding.text_decoder import TextDecoder
from transformer.distributed.mesh import make_mesh, tree_shardings
from transformer.model import matmul
from transformer.training.columns import CHUNK_BYTES
from transformer.training.loss import token_losses
from transformer.training.optimizer import make_optimizer
from transformer.training.projected_loss import Output, projected_loss
from transformer.training.state import TrainState

Shape = tuple[int, int, int]  # of a mesh: data, fsdp, tensor

LENGTHS = [(5, 6), (6, 4), (3, 6), (6, 6), (1, 2), (4, 4)]
VOCABULARY = IdsVocabulary(12)
SENTENCES = ["1 2 3 4", "5", "7 0 7", "3 3 3 3 3", "6 1", "0 2 4 6 1", "2", "4 4 0"]


def mesh_of(shape: Shape, config: ml_collections.ConfigDict) -> Mesh:
    """Returns a mesh of this shape over the first devices, and sets `config.mesh`."""
    config.mesh.update(dict(zip(("data", "fsdp", "tensor"), shape, strict=True)))
    return make_mesh(config, jax.devices()[: math.prod(shape)])


def bfloat16_update(shape: Shape) -> tuple[float, dict[str, np.ndarray]]:
    """Returns the loss per token of a batch, and its gradient by path."""
    config = tiny_config(model__dropout=0.2, model__dtype="bfloat16")
    here = setup(config, mesh=mesh_of(shape, config))
    start = dict(flat(here.initializer.create().parameters))
    # A single CPU has other matmuls of attention, which round in other places.
    with mock.patch.object(matmul, "_has_fast_batches", return_value=False):
        state, metrics = here.after([make_batch(LENGTHS, 8, 8, seed=0)])
    # The update subtracts the gradient.
    gradient = {path: start[path] - array for path, array in flat(state.parameters)}
    return float(metrics["sums"].loss / metrics["sums"].tokens), gradient


def muon_update(shape: Shape) -> TrainState:
    """Returns the state after an update by Muon, whose stacks of matrices the devices share.

    The decoder is recurrent, and the logits have a bias.
    """
    options = {
        "model__decoder_self_attention": "ssru",
        "model__decoder_start": "zero",
        "model__output_bias": True,
    }
    config = tiny_config(model__dropout=0.0, optimizer__name="muon", **options)
    schedule = optax.constant_schedule(0.1)
    here = setup(
        config, make_optimizer(config.optimizer, schedule), mesh_of(shape, config), schedule
    )
    return here.after([make_batch(LENGTHS, 8, 8, seed=0)])[0]


def averaging_update(shape: Shape) -> TrainState:
    """Returns a state whose parameters are the average after two updates by Schedule-Free AdamW.

    The devices share the average as they share the parameters.
    """
    config = tiny_config(model__dropout=0.0, optimizer__name="schedule_free_adamw")
    config.optimizer.weight_decay = 0.1
    schedule = optax.constant_schedule(0.1)
    here = setup(
        config, make_optimizer(config.optimizer, schedule), mesh_of(shape, config), schedule
    )
    state = here.initializer.create()
    for seed in (0, 1):
        state, _ = here.step(state, [make_batch(LENGTHS, 8, 8, seed)])
    average = state.eval_parameters
    shardings = [
        [leaf.sharding for leaf in jax.tree.leaves(t)] for t in (average, state.parameters)
    ]
    assert shardings[0] == shardings[1]
    return jax.device_get(state.replace(parameters=average))


def ctc_update(shape: Shape) -> TrainState:
    """Returns the state after an update by CTC, in chunks of the fewest rows that the devices can
    share.
    """
    config = tiny_config(model__dropout=0.2, training__objective="ctc")
    CHUNK_BYTES["cpu"] = 1
    return setup(config, mesh=mesh_of(shape, config)).after([make_batch(LENGTHS, 8, 8, seed=0)])[0]


def r_drop_loss(shape: Shape) -> tuple[float, list[float]]:
    """Returns the loss of eight sentences with two rows each, and its gradient with respect to the
    bias of the logits.

    Two tables of 9 rows need padding.
    """
    random, training = np.random.default_rng(0), base.get_config().training
    training.r_drop = 5.0
    losses = functools.partial(token_losses, training_config=training, passes=2)
    loss = functools.partial(projected_loss, losses, 2, mesh_of(shape, base.get_config()))
    hidden, table, bias = (
        random.normal(size=size).astype(np.float32) for size in ((16, 3, 8), (17, 8), (17,))
    )
    targets = random.integers(1, 17, (16, 3))
    weights = np.full(targets.shape, 0.5, np.float32)

    def of_bias(bias: jax.Array) -> jax.Array:
        return loss(Output(hidden, table, bias), targets, weights)[0]

    value, d_bias = jax.jit(jax.value_and_grad(of_bias))(bias)
    return float(value), d_bias.tolist()


def largest_error(gradient: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Returns the largest relative error of any parameter's gradient, in Euclidean norms."""
    # Gradients of the keys' biases are zero but for rounding, as softmax cancels them.
    floor = 1e-3 * np.sqrt(sum(np.sum(np.square(array)) for array in expected.values()))
    return max(
        float(np.linalg.norm(gradient[path] - array) / max(np.linalg.norm(array), floor))
        for path, array in expected.items()
    )


def translate(shape: Shape, dtype: str) -> list[tuple]:
    """Returns the best translations by a random model with very unequal probabilities, whose
    parameters are sharded.

    Two devices of the mesh translate; each compiles the search.
    """
    config, model = base.get_config(), tiny_model(VOCABULARY.size, seed=1, dtype=dtype)
    mesh = mesh_of(shape, config)
    config.decoding.update(
        {"beam_size": 2, "max_extra_length": 4, "max_source_length": 20, "batch_tokens": 256}
    )
    tokenizer = Tokenizer(VOCABULARY, VOCABULARY)
    decoder = TextDecoder([model.graph], tokenizer, config.decoding, list(mesh.devices.flat)[:2])
    parameters = jax.device_put(model.parameters, tree_shardings(mesh, model.parameters))
    replicas = decoder.place([parameters], mesh)
    return [dataclasses.astuple(best) for (best,) in decoder.translate(replicas, SENTENCES)]
