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
from transformer.config.keys import checked
from transformer.config.loading import difference
from transformer.config.types import Config
from transformer.support.errors import UNREADABLE, UserError, first_of
from transformer.training.progress import Progress
from transformer.workdir import Workdir

SCHEMA_VERSION = 3


def load_parameters(
    workdir: Path, steps: Sequence[int], expected: Any, config: Config, item: str = ""
) -> dict:
    """Returns the mean of the checkpoints' parameters, or of their averaged parameters with
    `training.ema_decay`.

    `item` names another item of the checkpoints to read. Raises UserError if a checkpoint cannot be
    read, or before reading an array if the shapes differ from `expected`, the abstract parameters
    of the model.
    """
    folders = [Workdir(workdir).checkpoints / str(step) for step in steps]
    for folder in folders:
        with readable(folder, "try another"):
            check_same_arrays(folder, {item or eval_item(folder): expected}, config)
    trees = (read_parameters(folder, item) for folder in folders)
    total = functools.reduce(functools.partial(jax.tree.map, np.add), trees)
    return jax.tree.map(lambda x: x / np.float32(len(folders)), total)


def steps_in(folder: Path) -> list[int]:
    """Returns the steps of the checkpoints in a folder, in ascending order."""
    names = [path.name for path in folder.glob("*") if path.is_dir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def choose_steps(workdir: Path, which: str, average: int, every: int) -> list[int]:
    """Returns the steps of `average` consecutive checkpoints up to `which`, in ascending order.

    Before it, only multiples of `every` (`checkpoint.every`) count: the best checkpoint and those
    of interruptions may lie between them. Raises UserError if one is missing.
    """
    if average < 1:
        raise UserError(f"--average={average}: must be at least 1")
    last = choose_step(workdir, which)
    saved = steps_in(Workdir(workdir).checkpoints)
    steps = [last, *range((last - 1) // every * every, 0, -every)]
    consecutive = list(itertools.takewhile(saved.__contains__, steps))
    if len(consecutive) < average:
        raise UserError(
            f"--average={average}: takes consecutive checkpoints, every {every} steps up to {last}; {workdir} has "
            f"{', '.join(map(str, saved))}: average at most {len(consecutive)}, or train with a higher "
            "config.checkpoint.keep"
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
    listed = ", ".join(map(str, steps))
    if which not in ("best", "last"):
        if which not in map(str, steps):
            raise UserError(
                f"--checkpoint={which}: must be best, last or one of the steps {listed}"
            )
        return int(which)
    for last in reversed(steps):
        if (damage := checksums.damage(folder / str(last))) is None:
            break
        logging.warning("%s: %s; using the previous checkpoint.", folder / str(last), damage)
    else:
        raise UserError(f"{folder}: all checkpoints are damaged")
    best = read_progress(folder / str(last)).best_step
    if which == "last" or best is None:
        return last
    if best not in steps:
        raise UserError(
            f"--checkpoint=best: {folder / str(best)} is missing; name last or one of the steps {listed}"
        )
    return best


def read_parameters(folder: Path, item: str = "") -> dict:
    """Returns `item`, by default the parameters to decode with, as NumPy arrays.

    Raises UserError if damaged.
    """
    with readable(folder, "try another"):
        if damage := checksums.damage(folder):
            raise ValueError(damage)
        read_progress(folder)  # checks the schema version
        return statelib.restore_int_paths(read_arrays(folder, item or eval_item(folder)))


def eval_item(folder: Path) -> str:
    """Returns the item of a checkpoint to decode with: the averaged parameters if there are any."""
    return "ema_parameters" if (folder / "ema_parameters").exists() else "parameters"


def read_arrays(folder: Path, item: str) -> Any:
    """Returns an item of a checkpoint, "parameters", "optimizer" or "ema_parameters", as a tree of
    NumPy arrays.
    """
    handler = ocp.PyTreeCheckpointHandler()
    as_numpy = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), handler.metadata(folder / item).tree
    )
    return handler.restore(folder / item, args=ocp.args.PyTreeRestore(restore_args=as_numpy))


def read_progress(folder: Path) -> Progress:
    """Returns the recorded progress.

    Raises UserError if it cannot be read or has another schema version.
    """
    with readable(folder, "try another"):
        record = checksums.read(folder)
        if (version := record["schema_version"]) != SCHEMA_VERSION:
            raise UserError(
                f"{folder}: schema_version={version}, must be {SCHEMA_VERSION}; use the commit that made the run"
            )
        return Progress(**record["progress"])


def check_same_arrays(folder: Path, expected: Mapping[str, Any], config: Config) -> None:
    """Raises UserError, naming keys that differ, if a checkpoint has other shapes than the trees in
    `expected`.
    """
    differing = []
    for item, tree in expected.items():
        differing += [
            f"{item}.{name}: {shapes}"
            for name, shapes in differing_shapes(folder, item, tree).items()
        ]
    if differing:
        saved_config = checked(checksums.read(folder)["config"])
        causes = [f"{key}: {values}" for key, values in difference(saved_config, config).items()]
        raise UserError(
            f"{folder}: holds other arrays than this model ({first_of(differing, 3)}); the configuration "
            f"differs in {'; '.join(causes) or 'nothing, so the code or the vocabulary has changed'}"
        )


def differing_shapes(folder: Path, item: str, expected: Any) -> dict[str, str]:
    """Returns the names of an item's arrays whose shapes differ from the tree `expected`, with both
    shapes as text.
    """
    trees = ocp.PyTreeCheckpointHandler().metadata(folder / item).tree, expected
    saved, wanted = (
        {name: tuple(leaf.shape) for name, leaf in named_leaves(tree).items()} for tree in trees
    )
    return {
        name: f"found {saved.get(name, 'none')}, expected {wanted.get(name, 'none')}"
        for name in sorted(saved | wanted)
        if saved.get(name) != wanted.get(name)
    }


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
        raise UserError(
            f"{folder}: this checkpoint cannot be read ({message.splitlines()[0]}); {advice}"
        ) from error
