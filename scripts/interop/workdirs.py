"""Conversion between portable models and workdirs, which all commands take."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scripts.interop.portable import PortableModel
from transformer.checkpoints import loaded_models
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.restore import named_leaves
from transformer.config.keys import flatten, validated_config
from transformer.config.loading import Overrides
from transformer.config.types import Config
from transformer.decoding.shortlist import Shortlist
from transformer.support import files
from transformer.support.environment import VOCABULARY
from transformer.support.errors import UserError, first_of
from transformer.training.progress import Progress
from transformer.training.state import TrainState, abstract_init
from transformer.workdir import create_workdir

STEP = 0  # an imported model has had no update here
FACTORS = "activation_factors.json"  # beside the parameters of a model from Firefox
# An imported model has no training data. Commands that need data ask for data.path.
NO_DATA = {"data.source": "text", "data.name": "imported"}


def write(model: PortableModel, folder: Path, origin: Mapping[str, Any] | None = None) -> None:
    """Writes a model as a complete workdir with one checkpoint, without an optimizer.

    `folder` is empty. `origin` is the content of parent.json. Raises UserError if the parameters do
    not fit the configuration.
    """
    tokenizer = model.tokenizer
    vocabulary = {
        "tokenizer.vocab_size": max(tokenizer.vocab_sizes),
        "tokenizer.shared": tokenizer.is_shared,
    }
    config = validated_config(NO_DATA | vocabulary | model.config)
    parameters = _parameter_tree(model, config)

    workdir = create_workdir(folder, config)
    tokenizer.save(folder)
    files.write_json(workdir.contents, {VOCABULARY: tokenizer.fingerprint})
    if origin is not None:
        files.write_json(workdir.parent, origin)
    if model.shortlist is not None:
        model.shortlist.save(workdir.shortlist, tokenizer)
    if model.factors is not None:
        files.write_json(folder / FACTORS, dict(model.factors))

    # Neither an optimizer state nor a moving average of the parameters.
    state = TrainState(jnp.int32(STEP), jnp.int32(0), parameters, None, None)
    with Checkpoints(workdir, config) as checkpoints:
        checkpoints.save(state, Progress(step=STEP))
    workdir.mark_complete(STEP)


def _parameter_tree(model: PortableModel, config: Config) -> dict:
    _, tree = abstract_init(config, *model.tokenizer.vocab_sizes)
    required = {name: leaf.shape for name, leaf in named_leaves(tree).items()}
    shapes = {name: array.shape for name, array in model.parameters.items()}
    if shapes != required:
        differences = [
            f"{name}: has {shapes.get(name, 'none')}, must have {required.get(name, 'none')}"
            for name in sorted(required.keys() | shapes.keys())
            if shapes.get(name) != required.get(name)
        ]
        raise UserError(
            f"the arrays do not fit the configuration of the model ({first_of(differences, 3)})"
        )

    # The tree has JAX's order of the parameters, `model.parameters` may have any order.
    leaves = [jnp.asarray(model.parameters[name], jnp.float32) for name in required]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def from_workdir(
    path: Path, checkpoint: str, average: int, overrides: Overrides = ()
) -> PortableModel:
    """Returns the model of a workdir, with its shortlist if there is one.

    Raises UserError if it cannot be loaded.
    """
    models = loaded_models.load([str(path)], checkpoint, average, overrides)
    parameters = {
        name: np.asarray(leaf, np.float32)
        for name, leaf in named_leaves(models.parameters[0]).items()
    }
    file = models.workdir.shortlist
    shortlist = Shortlist.load(file, models.tokenizer, size=None) if file.exists() else None
    # The factors belong to the parameters that were imported.
    factors = None
    if models.checkpoints[0].step == STEP and (models.workdir.path / FACTORS).exists():
        factors = files.read_json(models.workdir.path / FACTORS, dict, "import the model again")
    return PortableModel(flatten(models.config), parameters, models.tokenizer, shortlist, factors)
