"""What training left in workdirs, ready to decode with: one model, or several that translate together."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_collections
from absl import logging
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from transformer import fingerprints as contents
from transformer import workdir as workdirs
from transformer.checkpoints.restore import check_same_arrays, evaluated_item, load_parameters, readable
from transformer.compilation_cache import enable_compilation_cache
from transformer.config import loading as configuration
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.distributed.sharding import one_device
from transformer.errors import UserError
from transformer.training.state import abstract_model, init_parameters
from transformer.workdir import Workdir


@dataclass(frozen=True)
class Checkpoint:
    """Where one model's parameters come from. `averaged`: the steps whose mean they are; `step` is the last of them."""

    workdir: str
    step: int
    averaged: tuple[int, ...]


@dataclass(frozen=True)
class Trained:
    """Models with what decoding needs besides: workdir, configuration and tokenizer of the first of them.

    The parameters are on the first of this process's devices.
    """

    workdir: Workdir
    config: ml_collections.FrozenConfigDict
    tokenizer: Tokenizer
    graphs: tuple[nnx.GraphDef, ...]
    parameters: tuple[dict, ...]
    checkpoints: tuple[Checkpoint, ...]


def load(names: str, which: str, average: int, overrides: Sequence[tuple[str, str]]) -> Trained:
    """The models of one workdir, or of several with commas between them, as an ensemble.

    Args:
      names: DIR or DIR,DIR,...
      which: "best", "last" or a step, of each workdir.
      average: how many checkpoints of each, up to that one, to take the mean of.
      overrides: of the first workdir's decoding keys, as typed.

    Raises:
      UserError: a workdir, checkpoint, key or value cannot be used, a tokenizer is not the one that its run was trained
        with, a checkpoint has other arrays than its model, or the workdirs' tokenizers differ.
    """
    if average < 1:
        raise UserError(f"--average={average}: must be at least 1")
    opened = [workdirs.open_existing(Path(name)) for name in names.split(",")]
    first, first_config = opened[0]
    enable_compilation_cache(first_config.data)
    config = configuration.override(first_config, overrides, flag="--")
    tokenizers = [Tokenizer.load(each.path, settings) for each, settings in opened]
    for (other, _), tokenizer in zip(opened, tokenizers, strict=True):
        contents.check(other.path, {contents.VOCABULARY: tokenizer.fingerprint})
        if tokenizer.fingerprint != tokenizers[0].fingerprint:
            raise UserError(
                f"--workdir={names}: {first.path} and {other.path} have different tokenizers; models that translate "
                "together need the same (give the second run the first one's by --config.tokenizer.model_file)"
            )
    sizes = tokenizers[0].vocab_sizes
    parameters, checkpoints = [], []
    on_device = NamedSharding(one_device(), PartitionSpec())
    for each, settings in opened:
        tree, step, averaged = load_parameters(each.path, which, average)
        _check_arrays(each, averaged, settings, sizes)
        # As NumPy arrays they would be copied to the device for every batch.
        parameters.append(jax.device_put(tree, on_device))
        checkpoints.append(Checkpoint(str(each.path), step, tuple(averaged)))
        logging.info("%s: %s", each.path, describe(checkpoints[-1]))
    graphs = tuple(abstract_model(settings, *sizes) for _, settings in opened)
    return Trained(first, config, tokenizers[0], graphs, tuple(parameters), tuple(checkpoints))


def _check_arrays(workdir: Workdir, steps: Sequence[int], config: Any, vocab_sizes: tuple[int, int]) -> None:
    """Raises UserError unless these checkpoints have the arrays of the model that this configuration describes."""
    wanted = jax.eval_shape(functools.partial(init_parameters, config, *vocab_sizes))
    for step in steps:
        folder = workdir.checkpoints.resolve() / str(step)  # Orbax takes no relative path
        with readable(folder, "try another"):
            check_same_arrays(folder, {evaluated_item(folder): wanted}, config)


def describe(checkpoint: Checkpoint) -> str:
    if len(checkpoint.averaged) == 1:
        return f"the checkpoint of step {checkpoint.step}"
    return f"the average of steps {', '.join(map(str, checkpoint.averaged))}"
