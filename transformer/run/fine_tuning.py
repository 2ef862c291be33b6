"""Fine-tuning: opening the parent of a run (`training.init_from`), the checks that it fits, and its
record.
"""

import re

import jax
import optax
from absl import logging

from transformer.checkpoints import checksums, restore
from transformer.config.keys import show
from transformer.config.loading import difference
from transformer.config.types import Config
from transformer.data.tokenizers import tokenizer
from transformer.run.checks import check_prefixes
from transformer.run.parent import Parent
from transformer.support import files
from transformer.support.environment import read_environment
from transformer.support.errors import UserError, first_of
from transformer.training.objectives import OBJECTIVES
from transformer.training.optimizer import make_optimizer
from transformer.training.state import abstract_init
from transformer.workdir import Workdir, open_existing


def prepare(config: Config, workdir: Workdir) -> Parent | None:
    """Returns the parent of a run that has no checkpoint yet. Raises UserError if it does not fit
    the run.

    Gives the workdir a copy of the vocabularies that belong to the taken parameters, unless it has
    one.
    """
    names = tokenizer.model_names(config.tokenizer.shared)
    missing = {side for side, name in enumerate(names) if not (workdir.path / name).exists()}
    has_checkpoint = bool(restore.steps_in(workdir.checkpoints))
    if not config.training.init_from or (has_checkpoint and not missing):
        return None
    parent = open_parent(config, workdir)
    _check_vocabularies(parent)
    _check_parameters(parent)
    if config.training.init_optimizer and not has_checkpoint:
        _check_optimizer(parent)
    if not (config.tokenizer.model_file or parent.has_own_vocabulary):
        for side in missing.intersection(parent.token_sides.values()):
            files.write_bytes(workdir.path / names[side], parent.tokenizer.sides[side].serialized)
    return None if has_checkpoint else parent


def open_parent(config: Config, workdir: Workdir) -> Parent:
    """Opens a run's parent.

    Raises UserError if it is missing, damaged, or has changed since the run began.
    """
    name = config.training.init_from
    which = "best"
    if not files.expanded(name).is_dir() and (
        suffix := re.fullmatch(r"(.*):(best|last|\d+)", name)
    ):
        name, which = suffix.groups()
    path = files.expanded(name)
    recorded = _read_record(workdir)
    try:
        opened, parent_config = open_existing(path)
        vocabularies = tokenizer.Tokenizer.load(path, parent_config)
        # A restart takes the same step, although another one may be the best by then.
        step = restore.choose_step(path, str(recorded[0]) if recorded else which)
        checkpoint = opened.checkpoints / str(step)
        with restore.readable(checkpoint, "name another step"):
            if damage := checksums.damage(checkpoint, for_training=config.training.init_optimizer):
                raise ValueError(damage)
            checksum = checksums.digest(checkpoint)
        if recorded and recorded[1] != checksum:
            raise UserError(
                f"{checkpoint} has changed since this run began; start again in another --workdir"
            )
    except UserError as error:
        # Names the key instead of the flag of another command.
        message = re.sub(r"^--(workdir|checkpoint)=.*?: ", "", str(error))
        raise UserError(
            f"config.training.init_from={config.training.init_from}: {message}"
        ) from error
    item = "parameters" if config.training.init_optimizer else restore.eval_item(checkpoint)
    return Parent(opened, parent_config, vocabularies, step, checksum, item, config)


def _check_vocabularies(parent: Parent) -> None:
    """Raises UserError if parameters are taken that belong to another vocabulary."""
    settings = parent.run_config.tokenizer
    theirs = parent.config.tokenizer
    taken = parent.token_sides
    # The vocabulary of a monolingual parent is that of either side.
    keys = (
        ("kind", "shared") if OBJECTIVES[parent.config.training.objective].translates else ("kind",)
    )
    differing = [key for key in keys if settings[key] != theirs[key]]
    if parent.has_own_vocabulary:
        differing = [
            key for key in differing if key == "shared" or "ids" in (settings.kind, theirs.kind)
        ]
    elif settings.model_file:
        own = tokenizer.read_model_files(parent.run_config).sides
        if any(
            own[side].serialized != parent.tokenizer.sides[side].serialized
            for side in taken.values()
        ):
            differing.append("model_file")
    if taken and differing:
        raise UserError(
            f"config.tokenizer.{differing[0]}={show(settings[differing[0]])}: {parent.workdir.path} has another "
            "tokenizer, so its embeddings would get other tokens; take that run's tokenizer, or set "
            f"config.training.init_skip={','.join([*parent.skipped, *taken])}"
        )


def _check_parameters(parent: Parent) -> None:
    """Raises UserError if the parent's parameters do not fit the run, or `init_skip` names none."""
    training = parent.run_config.training
    # the run's, or those that its own vocabulary replaces
    source, target = parent.tokenizer.vocab_sizes
    target = source if parent.run_config.tokenizer.shared else target
    own = restore.named_leaves(abstract_init(parent.run_config, source, target)[1])
    wanted = {origin: own[name] for name, origin in parent.origins.items()}
    differing = restore.differing_shapes(parent.folder, parent.item, wanted)
    check_prefixes(
        f"config.training.init_skip={training.init_skip}", parent.skipped, own | differing
    )
    # A parent of another objective may have more parameters than the run.
    is_alike = parent.config.training.objective == training.objective
    required = {name for name in differing if name in wanted or (is_alike and parent.takes(name))}
    if unfit := [f"{name}: {shapes}" for name, shapes in differing.items() if name in required]:
        raise UserError(
            f"config.training.init_from={training.init_from}: its parameters do not fit this model "
            f"({first_of(unfit, 3)}); make the models equal ({parent.model_difference()}) or list what is not to be "
            "taken in config.training.init_skip"
        )


def _check_optimizer(parent: Parent) -> None:
    """Raises UserError unless the checkpoint has the state of the run's optimizer, for the same
    model.
    """
    config = parent.run_config
    checkpoint = parent.folder
    reasons = [
        "it has no optimizer's state, which only the best and the newest two checkpoints keep"
    ]
    if checksums.has_optimizer(checkpoint):
        optimizer = make_optimizer(
            config.optimizer, optax.constant_schedule(0.0), config.training.freeze
        )
        state = jax.eval_shape(
            optimizer.init, abstract_init(config, *parent.tokenizer.vocab_sizes)[1]
        )
        changes = difference(parent.config, config) | {"model": parent.model_difference()}
        facts = {key: changes.get(key) for key in ("model", "training.objective", "optimizer.name")}
        facts |= restore.differing_shapes(checkpoint, checksums.OPTIMIZER, state)
        reasons = [f"{name}: {values}" for name, values in facts.items() if values]
    if reasons:
        raise UserError(
            f"config.training.init_optimizer=True: the state of {checkpoint} does not fit this run "
            f"({first_of(reasons, 3)}); set model and optimizer as there, name another step, or set it to false"
        )


def record(workdir: Workdir, parent: Parent) -> None:
    """Writes `parent.json`, unless the run has begun with it.

    Warns if the model computes something else.
    """
    if _read_record(workdir) is None:
        environment = read_environment(parent.workdir.environment)
        facts = {
            "workdir": str(parent.workdir.path.resolve()),
            "step": parent.step,
            "item": parent.item,
            "checksum": parent.checksum,
            "objective": parent.config.training.objective,
            "commit": environment and [environment, *environment["resumed"]][-1]["commit"],
            "not_taken": parent.skipped,
        }
        files.write_json(workdir.parent, facts)
    if differing := parent.model_difference():
        logging.warning("The model differs from that of %s: %s.", parent.workdir.path, differing)
    if differing := parent.ignored_settings():
        logging.warning(
            "The vocabulary is that of %s, so these keys have no effect: %s; init_vocabulary=own trains another.",
            parent.workdir.path,
            differing,
        )


def _read_record(workdir: Workdir) -> tuple[int, str] | None:
    """Returns step and checksum in the `parent.json` of a run that has begun; None if it has not."""
    if not (workdir.has_begun() and workdir.parent.exists()):
        return None
    return files.read_json(
        workdir.parent,
        lambda facts: (facts["step"], facts["checksum"]),
        "start again in another --workdir",
    )
