"""A portable model as a workdir that all commands take, and the model of any workdir as a portable one."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from configs import base
from scripts.interop.portable import PortableModel
from transformer import files
from transformer.checkpoints import trained
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.restore import named_leaves
from transformer.checkpoints.trained import Trained
from transformer.config.keys import coerce_types, flatten
from transformer.config.loading import with_values
from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.shortlist import Shortlist
from transformer.environment import VOCABULARY
from transformer.errors import UNREADABLE, UserError, first_of
from transformer.training.progress import Progress
from transformer.training.state import TrainState, abstract_init
from transformer.workdir import Workdir, create_workdir

STEP = 0  # no update was done here
# An imported model has no training data: what needs it asks for data.path.
NO_DATA = {"data.source": "text", "data.name": "imported", "data.valid_split": "valid"}


def write(model: PortableModel, folder: Path) -> None:
    """Writes a model as a workdir: one checkpoint, without an optimizer, complete.

    `folder` is empty. Raises UserError if the model has other parameters than its configuration says, or one that is
    not finite.
    """
    tokenizer = model.tokenizer
    vocabulary = {"tokenizer.vocab_size": max(tokenizer.vocab_sizes), "tokenizer.shared": tokenizer.is_shared}
    config = with_values(base.get_config(), NO_DATA | vocabulary | model.config)
    parameters = _parameters(model, config)
    workdir = create_workdir(folder, config)
    tokenizer.save(folder)
    files.write_json(workdir.contents, {VOCABULARY: tokenizer.fingerprint})
    if model.origin is not None:
        files.write_json(workdir.parent, dataclasses.asdict(model.origin))
    if model.shortlist is not None:
        model.shortlist.save(workdir.shortlist, tokenizer)
    with Checkpoints(workdir, config) as checkpoints:
        checkpoints.save(TrainState(jnp.int32(STEP), jnp.int32(0), parameters, None, None), Progress(step=STEP))
    workdir.mark_complete(STEP)


def _parameters(model: PortableModel, config: Config) -> dict:
    """Returns the parameters as a tree. Raises UserError if they do not fit the configuration."""
    expected = abstract_init(config, *model.tokenizer.vocab_sizes)[1]
    shapes = {name: leaf.shape for name, leaf in named_leaves(expected).items()}
    differing = [
        f"{name}: has {_shape(model.parameters.get(name))}, must have {shapes.get(name, 'none')}"
        for name in sorted(shapes.keys() | model.parameters.keys())
        if _shape(model.parameters.get(name)) != shapes.get(name)
    ]
    if differing:
        raise UserError(f"the arrays do not fit the configuration of the model ({first_of(differing, 3)})")
    for name, array in model.parameters.items():
        if not np.isfinite(array).all():
            raise UserError(f"{name} has values that are NaN or infinite")
    leaves = [jnp.asarray(model.parameters[name], jnp.float32) for name in shapes]
    return jax.tree.unflatten(jax.tree.structure(expected), leaves)


def _shape(array: np.ndarray | None) -> tuple[int, ...] | None:
    return None if array is None else array.shape


def from_workdir(path: Path, checkpoint: str, average: int) -> PortableModel:
    """Returns the model of a workdir, with its shortlist if there is one.

    `checkpoint` and `average` choose its checkpoints, as `choose_steps` does. Raises UserError if it cannot be loaded.
    """
    return of_trained(trained.load([str(path)], checkpoint, average, []))


def of_trained(models: Trained) -> PortableModel:
    """Returns the first of the loaded models."""
    defaults, values = coerce_types({}), flatten(models.config)
    config = {key: value for key, value in values.items() if value != defaults[key]}
    parameters = {name: np.asarray(leaf, np.float32) for name, leaf in named_leaves(models.parameters[0]).items()}
    return PortableModel(config, parameters, models.tokenizer, read_shortlist(models.workdir, models.tokenizer))


def read_shortlist(workdir: Workdir, tokenizer: Tokenizer) -> Shortlist | None:
    """Returns all translations of a workdir's shortlist; None if it has none. Raises UserError if it is damaged."""
    if not workdir.shortlist.exists():
        return None
    try:
        with np.load(workdir.shortlist, allow_pickle=False) as arrays:
            size = arrays["translations"].shape[1]
    except UNREADABLE:
        size = 1  # `load` raises the error
    return Shortlist.load(workdir.shortlist, tokenizer, size)
