"""The start of a run from its parent: opening it, copying its vocabularies, and `parent.json`, which identifies it."""

import json
import re
from typing import Any

from absl import logging

from transformer import files, fingerprints
from transformer.checkpoints import checksums
from transformer.checkpoints.restore import choose_step, readable, steps_in
from transformer.config_types import Config
from transformer.data.tokenizers import tokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.errors import MALFORMED, UserError
from transformer.run.parent import Parent, named
from transformer.run.parent_fit import check_parent
from transformer.workdir import Workdir, open_existing, read_environment


def open_parent(config: Config, workdir: Workdir) -> Parent:
    """Opens the parent of the run in `workdir`.

    Raises UserError if there is none, or its checkpoint is damaged or has changed since the run began.
    """
    found = re.fullmatch(r"(.*?)(?::(best|last|\d+))?", config.training.init_from)
    name, which = (found[0], None) if files.expanded(found[0]).is_dir() else found.groups()
    path, recorded = files.expanded(name), _read_record(workdir)
    with named(config):
        if path.resolve() == workdir.path.resolve():
            raise UserError("is the --workdir itself; name another run, or another --workdir")
        source, source_config = open_existing(path)
        vocabularies = Tokenizer.load(path, source_config)
        fingerprints.check(path, {fingerprints.VOCABULARY: vocabularies.fingerprint})
        # A restart takes the same step, although another one may be the best by then.
        step = choose_step(path, str(recorded["step"]) if recorded else which or "best")
        skipped = tuple(filter(None, map(str.strip, config.training.init_skip.split(","))))
        parent = Parent(source, source_config, vocabularies, step, skipped)
        with readable(parent.checkpoint, "name another step"):
            if damage := checksums.damage(parent.checkpoint):
                raise ValueError(damage)
        if recorded and recorded["checksum"] != parent.checksum:
            raise UserError(f"{parent.checkpoint} has changed since this run began; start again in another --workdir")
    return parent


def prepare(config: Config, workdir: Workdir) -> Parent | None:
    """Returns the parent of a run that has no checkpoint yet, whose parameters fit the run.

    Gives the workdir a copy of the vocabularies that belong to the taken parameters, unless it has one. Raises
    UserError if the parent cannot be used.
    """
    if not config.training.init_from:
        return None
    names = tokenizer.model_names(config)
    missing = {side for side, name in enumerate(names) if not (workdir.path / name).exists()}
    has_checkpoint = bool(steps_in(workdir.checkpoints))
    if has_checkpoint and not missing:
        return None
    parent = open_parent(config, workdir)
    check_parent(config, parent)
    if not config.tokenizer.model_file:
        for side in missing.intersection(parent.token_parameters(config).values()):
            files.write_bytes(workdir.path / names[side], parent.tokenizer.sides[side].serialized)
    return None if has_checkpoint else parent


def record(config: Config, workdir: Workdir, parent: Parent) -> None:
    """Writes `parent.json`, unless the run has begun with it. Warns if the model computes something else."""
    if _read_record(workdir) is None:
        environment = read_environment(parent.workdir)
        facts = {
            "workdir": str(parent.workdir.path.resolve()),
            "step": parent.step,
            "item": parent.item,
            "checksum": parent.checksum,
            "objective": parent.config.training.objective,
            "commit": environment and [environment, *environment["resumed"]][-1]["commit"],
            "not_taken": list(parent.skipped),
        }
        files.write_json(workdir.parent, facts)
    if differing := parent.model_difference(config):
        logging.warning("The model differs from that of %s: %s.", parent.workdir.path, differing)


def _read_record(workdir: Workdir) -> dict[str, Any] | None:
    """Returns `parent.json` of a run that has begun; None if it has not."""
    if not (workdir.has_begun() and workdir.parent.exists()):
        return None
    try:
        found = json.loads(workdir.parent.read_bytes())
        return {key: found[key] for key in ("step", "checksum")}
    except MALFORMED as error:
        raise UserError(
            f"{workdir.parent}: damaged ({type(error).__name__}); start again in another --workdir"
        ) from error
