"""Trained models, ready to decode with: one model, or several as an ensemble."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import ml_collections
from absl import logging
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from transformer import fingerprints
from transformer.checkpoints.restore import choose_steps, load_parameters
from transformer.compilation_cache import enable_compilation_cache
from transformer.config.loading import override
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.distributed.mesh import one_device
from transformer.errors import UserError
from transformer.training.state import abstract_model, init_parameters
from transformer.workdir import Workdir, open_existing


@dataclass(frozen=True)
class Checkpoint:
    """The source of a model's parameters: the mean over the steps `averaged`, of which `step` is the last."""

    workdir: str
    step: int
    averaged: tuple[int, ...]


@dataclass(frozen=True)
class Trained:
    """Models with the workdir, configuration and tokenizer of the first one.

    The parameters are on the first local device.
    """

    workdir: Workdir
    config: ml_collections.FrozenConfigDict
    tokenizer: Tokenizer
    graphs: tuple[nnx.GraphDef, ...]
    parameters: tuple[dict, ...]
    checkpoints: tuple[Checkpoint, ...]


def load(names: str, which: str, average: int, overrides: Sequence[tuple[str, str]]) -> Trained:
    """Loads the model of one workdir, or those of several workdirs as an ensemble. Raises UserError if that fails.

    Args:
      names: DIR or DIR,DIR,...
      which: "best", "last" or a step, in each workdir.
      average: the number of checkpoints to average in each workdir: the newest at or before `which`.
      overrides: decoding keys and their values, as typed, applied to the first workdir's configuration.
    """
    if average < 1:
        raise UserError(f"--average={average}: must be at least 1")
    enable_compilation_cache()
    opened = [open_existing(Path(name)) for name in names.split(",")]
    first, first_config = opened[0]
    config = override(first_config, overrides, flag="--")
    tokenizers = [Tokenizer.load(each.path, settings) for each, settings in opened]
    for (other, _), tokenizer in zip(opened, tokenizers, strict=True):
        fingerprints.check(other.path, {fingerprints.VOCABULARY: tokenizer.fingerprint})
        if tokenizer.fingerprint != tokenizers[0].fingerprint:
            raise UserError(
                f"--workdir={names}: {first.path} and {other.path} have different tokenizers; models that translate "
                "together need the same (give the second run the first one's by --config.tokenizer.model_file)"
            )
    sizes = tokenizers[0].vocab_sizes
    parameters, checkpoints = [], []
    on_device = NamedSharding(one_device(), PartitionSpec())
    for each, settings in opened:
        steps = choose_steps(each.path, which, average)
        expected = jax.eval_shape(functools.partial(init_parameters, settings, *sizes))
        # As NumPy arrays they would be copied to the device for every batch.
        parameters.append(jax.device_put(load_parameters(each.path, steps, expected, settings), on_device))
        checkpoints.append(Checkpoint(str(each.path), steps[-1], tuple(steps)))
        logging.info("%s: %s", each.path, describe(checkpoints[-1]))
    graphs = tuple(abstract_model(settings, *sizes) for _, settings in opened)
    return Trained(first, config, tokenizers[0], graphs, tuple(parameters), tuple(checkpoints))


def describe(checkpoint: Checkpoint) -> str:
    if len(checkpoint.averaged) == 1:
        return f"the checkpoint of step {checkpoint.step}"
    return f"the average of steps {', '.join(map(str, checkpoint.averaged))}"
