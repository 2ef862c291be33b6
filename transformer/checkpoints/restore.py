"""Reading checkpoints: which exist, what they record, and their parameters for decoding."""

import contextlib
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from flax.nnx import statelib

from transformer.checkpoints import checksums
from transformer.config.keys import recorded_config
from transformer.config.loading import difference
from transformer.config.types import Config
from transformer.support.errors import UNREADABLE, UserError, first_of
from transformer.training.progress import Progress
from transformer.workdir import Workdir

SCHEMA_VERSION = 3


def load_parameters(
    workdir: Path, steps: Sequence[int], expected: Any, config: Config, item: str = ""
) -> dict:
    """Returns the mean of the checkpoints' parameters to decode with, or of another `item`.

    Raises UserError if a checkpoint cannot be read, or before reading an array if the shapes differ
    from `expected`, the abstract parameters of the model.
    """
    folders = [Workdir(workdir).checkpoints / str(step) for step in steps]
    for folder in folders:
        with readable(folder, "try another"):
            check_same_arrays(folder, {item or eval_item(folder): expected}, config)
    # A generator, so that not all checkpoints are in memory at once.
    trees = (read_parameters(folder, item) for folder in folders)
    total = functools.reduce(functools.partial(jax.tree.map, np.add), trees)
    return jax.tree.map(lambda x: x / np.float32(len(folders)), total)


def steps_in(folder: Path) -> list[int]:
    """Returns the steps of the checkpoints in a folder, in ascending order."""
    # Folders of unfinished saves and damaged checkpoints have other names.
    names = [path.name for path in folder.glob("*") if path.is_dir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def choose_steps(workdir: Path, which: str, average: int, every: int) -> list[int]:
    """Returns the steps of `average` consecutive checkpoints up to `which`, in ascending order.

    All but the last are multiples of `every` (`checkpoint.every`). The best checkpoint, and those
    of interruptions, may lie between them. Raises UserError if one is missing.
    """
    last = choose_step(workdir, which)
    existing = steps_in(Workdir(workdir).checkpoints)
    # For example, best step 4500 and every=1000: 4500, 4000, 3000, ...
    steps = [last, *range((last - 1) // every * every, 0, -every)]
    consecutive = list(itertools.takewhile(existing.__contains__, steps))
    if len(consecutive) < average:
        raise UserError(
            f"--average={average}: takes consecutive checkpoints, every {every} steps up to "
            f"{last}; {workdir} has {', '.join(map(str, existing))}: average at most "
            f"{len(consecutive)}, or train with a higher config.checkpoint.keep"
        )
    return consecutive[:average][::-1]


def choose_step(workdir: Path, which: str) -> int:
    """Returns the step that "best", "last" (undamaged) or a number names.

    Raises UserError if it does not exist.
    """
    folder = Workdir(workdir).checkpoints
    steps = steps_in(folder)
    if not steps:
        raise UserError(f"--workdir={workdir}: has no checkpoint yet; train it first")
    step_list = ", ".join(map(str, steps))
    if which not in ("best", "last"):
        # A step that the user names must exist, but its damage is reported when it is read.
        if which not in map(str, steps):
            raise UserError(
                f"--checkpoint={which}: must be best, last or one of the steps {step_list}"
            )
        return int(which)

    # The last undamaged checkpoint also records which one is the best.
    for last in reversed(steps):
        damage = checksums.damage(folder / str(last))
        if damage is None:
            break
        logging.warning("%s: %s; using the previous checkpoint.", folder / str(last), damage)
    else:
        raise UserError(f"{folder}: all checkpoints are damaged")
    best = read_progress(folder / str(last)).best_step
    if which == "last" or best is None:
        return last
    if best not in steps:
        raise UserError(
            f"--checkpoint=best: {folder / str(best)} is missing; "
            f"name last or one of the steps {step_list}"
        )
    return best


def read_parameters(folder: Path, item: str = "") -> dict:
    """Returns the parameters to decode with, or another `item`, as NumPy arrays.

    Raises UserError if they are damaged.
    """
    with readable(folder, "try another"):
        damage = checksums.damage(folder)
        if damage:
            raise ValueError(damage)
        read_progress(folder)  # checks the schema version
        # Orbax saves the indices of layers as text.
        return statelib.restore_int_paths(read_arrays(folder, item or eval_item(folder)))


def eval_item(folder: Path) -> str:
    """Returns the item of a checkpoint to decode with: the averaged parameters if there are any."""
    return "ema_parameters" if (folder / "ema_parameters").exists() else "parameters"


def read_arrays(folder: Path, item: str) -> Any:
    """Returns an item of a checkpoint as a tree of NumPy arrays.

    Items are "parameters", "optimizer" and "ema_parameters".
    """
    # Without these arguments Orbax would restore the sharding of training, and need its devices.
    handler = ocp.PyTreeCheckpointHandler()
    tree = handler.metadata(folder / item).tree
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return handler.restore(folder / item, args=ocp.args.PyTreeRestore(restore_args=as_numpy))


def read_progress(folder: Path) -> Progress:
    """Returns the recorded progress.

    Raises UserError if it cannot be read or has another schema version.
    """
    with readable(folder, "try another"):
        record = checksums.read(folder)
        version = record["schema_version"]
        if version != SCHEMA_VERSION:
            raise UserError(
                f"{folder}: schema_version={version}, must be {SCHEMA_VERSION}; "
                "use the commit that made the run"
            )
        return Progress(**record["progress"])


def check_same_arrays(folder: Path, expected: Mapping[str, Any], config: Config) -> None:
    """Raises UserError if a checkpoint has other shapes than the trees in `expected`.

    The message names the keys of the configuration that differ.
    """
    # Compares the shapes in Orbax's metadata, without reading arrays.
    differing = []
    for item, tree in expected.items():
        shapes_by_name = differing_shapes(folder, item, tree)
        differing += [f"{item}.{name}: {shapes}" for name, shapes in shapes_by_name.items()]
    if differing:
        checkpoint_config = recorded_config(checksums.read(folder)["config"])
        changes = difference(checkpoint_config, config)
        causes = "; ".join(f"{key}: {values}" for key, values in changes.items())
        raise UserError(
            f"{folder}: holds other arrays than this model ({first_of(differing, 3)}); the "
            "configuration differs in "
            f"{causes or 'nothing, so the code or the vocabulary has changed'}"
        )


def differing_shapes(folder: Path, item: str, expected: Any) -> dict[str, str]:
    """Compares the shapes of an item's arrays with the tree `expected`.

    Returns both shapes, as text, for each name with a difference.
    """
    shapes = _shapes(ocp.PyTreeCheckpointHandler().metadata(folder / item).tree)
    expected_shapes = _shapes(expected)
    return {
        name: f"found {shapes.get(name, 'none')}, expected {expected_shapes.get(name, 'none')}"
        for name in sorted(shapes | expected_shapes)
        if shapes.get(name) != expected_shapes.get(name)
    }


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in named_leaves(tree).items()}


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by their dotted names, in JAX's order."""
    return ocp.tree.to_flat_dict(tree, sep=".")


@contextlib.contextmanager
def readable(folder: Path, advice: str) -> Iterator[None]:
    """Turns the errors that missing or damaged files cause in Orbax into a UserError."""
    try:
        yield
    except UserError:
        raise
    except UNREADABLE as error:
        message = str(error) or type(error).__name__
        reason = message.splitlines()[0]
        raise UserError(f"{folder}: this checkpoint cannot be read ({reason}); {advice}") from error
