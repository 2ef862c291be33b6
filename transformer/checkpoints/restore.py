"""Reading checkpoints: what a run goes on from, and what decoding takes from it."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from flax.nnx import statelib

from transformer.checkpoints import checksums as seal
from transformer.config import loading as configuration
from transformer.config_types import Config
from transformer.errors import UserError
from transformer.training.progress import Progress
from transformer.workdir import Workdir

SCHEMA_VERSION = 2


def load_parameters(workdir: Path, which: str, average: int) -> tuple[dict, int, list[int]]:
    """Parameters to decode with, as NumPy arrays, from a run's workdir.

    Args:
      workdir: the run's folder.
      which: "best", "last" or a step.
      average: how many checkpoints to take the mean of: the newest at or before the chosen one.

    Returns:
      (parameters, the chosen step, the steps averaged, oldest first). With training.ema_decay, the averages.

    Raises:
      UserError: there is no such checkpoint, or it cannot be read.
    """
    folder = Workdir(workdir).checkpoints.resolve()  # Orbax takes no relative path
    steps, step = steps_in(folder), choose(workdir, which)
    chosen = [other for other in steps if other <= step][-average:]
    if len(chosen) < average:
        logging.warning("Averaging %d checkpoints, not %d: no more are kept up to step %d.", len(chosen), average, step)
    total = None
    for each in chosen:
        with readable(folder / str(each), "try another"):
            parameters = _load(folder / str(each))
            total = parameters if total is None else jax.tree.map(np.add, total, parameters)
    return jax.tree.map(lambda x: x / np.float32(len(chosen)), total), step, chosen


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a run's folder of them, oldest first."""
    names = [path.name for path in folder.glob("*") if path.is_dir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def choose(workdir: Path, which: str) -> int:
    """The step of the checkpoint that "best", "last" or a step's number names. Raises UserError if there is none.

    A damaged one is not the last.
    """
    folder = Workdir(workdir).checkpoints.resolve()
    steps = steps_in(folder)
    if not steps:
        raise UserError(f"--workdir={workdir}: has no checkpoint yet; train it first")
    if which not in ("best", "last"):
        if which not in map(str, steps):
            raise UserError(f"--checkpoint={which}: must be best, last or a step there is: {_listed(steps)}")
        return int(which)
    last = _last_whole(folder, steps)
    best = read_progress(folder / str(last)).best_step
    if which == "last" or best is None:
        return last
    if best not in steps:
        raise UserError(f"--checkpoint=best: {folder / str(best)} is gone; name last or one of {_listed(steps)}")
    return best


def _last_whole(folder: Path, steps: list[int]) -> int:
    for step in reversed(steps):
        damage = seal.damage(folder / str(step))
        if damage is None:
            return step
        logging.warning("%s: %s; the one before is used.", folder / str(step), damage)
    raise UserError(f"{folder}: no checkpoint is whole")


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps))


def _load(folder: Path) -> dict:
    if damage := seal.damage(folder):
        raise ValueError(damage)
    read_progress(folder)  # of a version that this code reads
    return statelib.restore_int_paths(read_arrays(folder, evaluated_item(folder)))


def evaluated_item(folder: Path) -> str:
    """The item of a checkpoint that decoding takes: the averaged parameters if it has them, else the parameters."""
    return "average" if (folder / "average").exists() else "parameters"


def read_arrays(folder: Path, item: str) -> Any:
    """The tree of an item of a checkpoint, "parameters", "optimizer" or "average", as NumPy arrays."""
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(**{item: ocp.PyTreeCheckpointHandler()})) as checkpointer:
        tree = checkpointer.metadata(folder).item_metadata[item].tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        arguments = ocp.args.PyTreeRestore(restore_args=as_numpy)
        return checkpointer.restore(folder, args=ocp.args.Composite(**{item: arguments}))[item]


def read_progress(folder: Path) -> Progress:
    """How far the run had got. Raises UserError if it cannot be read or a newer version of this code has written it."""
    with readable(folder, "try another"):
        values = json.loads((folder / "progress" / "metadata").read_bytes())
        version = values.pop("schema_version")
        if version != SCHEMA_VERSION:
            advice = "update this code" if version > SCHEMA_VERSION else "use the commit that made the run"
            raise UserError(
                f"{folder}: this checkpoint has schema version {version}, this code reads {SCHEMA_VERSION}; {advice}"
            )
        return Progress(**values)


def check_same_arrays(folder: Path, wanted: Mapping[str, Any], config: Config) -> None:
    """Raises UserError, naming the first arrays that differ and why, unless the checkpoint has just those wanted.

    Args:
      folder: the checkpoint.
      wanted: abstract trees by item.
      config: the configuration that makes them.
    """
    handlers = {item: ocp.PyTreeCheckpointHandler() for item in wanted}
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(**handlers)) as checkpointer:
        found = checkpointer.metadata(folder).item_metadata
    differing = []
    for item, tree in wanted.items():
        stored = {} if found[item] is None else _shapes(found[item].tree)
        expected = _shapes(tree)
        for name in sorted(stored | expected):
            one, other = (_show_shape(shapes, name) for shapes in (stored, expected))
            if one != other:
                differing.append(f"{item}.{name}: {one} there, {other} wanted")
    if differing:
        saved = configuration.checked(json.loads((folder / "config" / "metadata").read_bytes()))
        causes = [f"{key}: {values}" for key, values in configuration.difference(saved, config).items()]
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise UserError(
            f"{folder}: holds other arrays than this run ({'; '.join(differing[:3])}{more}); "
            f"the configuration differs by {'; '.join(causes) or 'nothing: the code or the vocabulary has changed'}"
        )


def _shapes(tree) -> dict[str, tuple[int, ...]]:
    """Of every array, by its name in dots."""
    return {name: tuple(leaf.shape) for name, leaf in ocp.tree.to_flat_dict(tree, sep=".").items()}


def _show_shape(shapes: dict[str, tuple[int, ...]], name: str) -> str:
    return str(shapes[name]) if name in shapes else "none"


@contextlib.contextmanager
def readable(folder: Path, advice: str) -> Iterator[None]:
    """Turns what Orbax raises for files that are missing or damaged into a UserError."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # The message of a KeyError is quoted by str().
        message = str(error.args[0] if isinstance(error, KeyError) else error) or type(error).__name__
        raise UserError(f"{folder}: this checkpoint cannot be read ({message.splitlines()[0]}); {advice}") from error
