"""Fine-tuning: opens and records the parent of a run, and checks that it fits.

`training.init_from` names the parent.
"""

import re

import jax
import optax
from absl import logging

from transformer.checkpoints import checksums, restore
from transformer.config.keys import format_value
from transformer.config.loading import difference
from transformer.config.types import Config
from transformer.data.tokenizers import tokenizer
from transformer.run.checks import check_prefixes
from transformer.run.parent import Parent
from transformer.support import files
from transformer.support.environment import read_environment
from transformer.support.errors import UserError, first_of
from transformer.training.objectives import OBJECTIVES
from transformer.training.optimizer import AVERAGES
from transformer.training.parameterization import make_run_optimizer
from transformer.training.state import abstract_init
from transformer.workdir import Workdir, open_existing


def prepare(config: Config, workdir: Workdir) -> Parent | None:
    """Returns the parent of a run that has no checkpoint yet.

    Copies the vocabularies of the parameters that the run takes to the workdir, unless it has them.
    Raises UserError if the parent does not fit the run.
    """
    # A run that resumes needs its parent only for vocabularies that have been deleted.
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
    # The vocabulary must have the tokens of the embeddings that are taken.
    if not (config.tokenizer.model_file or parent.has_own_vocabulary):
        for side in missing.intersection(parent.token_sides.values()):
            files.write_bytes(workdir.path / names[side], parent.tokenizer.sides[side].serialized)
    return None if has_checkpoint else parent


def open_parent(config: Config, workdir: Workdir) -> Parent:
    """Opens a run's parent.

    Raises UserError if it is missing, damaged, or has changed since the run began.
    """
    # The name of a folder may itself end with a colon and a number.
    init_from = config.training.init_from
    name = init_from
    which = "best"
    suffix = re.fullmatch(r"(.*):(best|last|\d+)", name)
    if suffix and not files.expand_user(name).is_dir():
        name, which = suffix.groups()
    path = files.expand_user(name)

    # A restart takes the recorded step, although another one may be the best by now.
    recorded = _read_record(workdir)
    if recorded:
        which = str(recorded[0])
    for_training = config.training.init_optimizer
    try:
        parent_workdir, parent_config = open_existing(path)
        vocabularies = tokenizer.Tokenizer.load(path, parent_config)
        step = restore.choose_step(path, which)
        checkpoint = parent_workdir.checkpoints / str(step)
        with restore.readable(checkpoint, "name another step"):
            damage = checksums.damage(checkpoint, for_training)
            if damage:
                raise ValueError(damage)
            checksum = checksums.digest(checkpoint)
        if recorded and recorded[1] != checksum:
            raise UserError(
                f"{checkpoint} has changed since this run began; start again in another --workdir"
            )
    except UserError as error:
        # Names the key instead of the flag of another command.
        message = re.sub(r"^--(workdir|checkpoint)=.*?: ", "", str(error))
        raise UserError(f"config.training.init_from={init_from}: {message}") from error
    # The optimizer's state belongs to the raw parameters, not to their moving average.
    item = "parameters" if for_training else restore.eval_item(checkpoint)
    return Parent(parent_workdir, parent_config, vocabularies, step, checksum, item, config)


def _check_vocabularies(parent: Parent) -> None:
    """Raises UserError if the run takes parameters that belong to another vocabulary."""
    tokenizer_config = parent.run_config.tokenizer
    parent_tokenizer_config = parent.config.tokenizer
    token_sides = parent.token_sides

    # The vocabulary of a monolingual parent may become either side's, or both sides'.
    keys = ["kind"]
    if OBJECTIVES[parent.config.training.objective].has_both_sides:
        keys.append("shared")
    differing = [key for key in keys if tokenizer_config[key] != parent_tokenizer_config[key]]
    if parent.has_own_vocabulary:
        # Tokens are matched by their text, so the kind of tokenizer matters only for integers.
        if "ids" not in (tokenizer_config.kind, parent_tokenizer_config.kind):
            differing = [key for key in differing if key == "shared"]
    elif tokenizer_config.model_file:
        run_sides = tokenizer.read_model_files(parent.run_config).sides
        parent_sides = parent.tokenizer.sides
        if any(
            run_sides[side].serialized != parent_sides[side].serialized
            for side in token_sides.values()
        ):
            differing.append("model_file")

    if token_sides and differing:
        key = differing[0]
        raise UserError(
            f"config.tokenizer.{key}={format_value(tokenizer_config[key])}: "
            f"{parent.workdir.path} has another tokenizer, so its embeddings would get other "
            "tokens; take that run's tokenizer, or set config.training.init_skip="
            f"{','.join([*parent.skipped, *token_sides])}"
        )


def _check_parameters(parent: Parent) -> None:
    """Raises UserError if the parent's parameters do not fit the run, or `init_skip` names none."""
    training_config = parent.run_config.training
    # The sizes of the run's vocabulary, or of the parent's that its own one replaces.
    source_size, target_size = parent.tokenizer.vocab_sizes
    if parent.run_config.tokenizer.shared:
        target_size = source_size
    arrays = restore.named_leaves(abstract_init(parent.run_config, source_size, target_size)[1])
    expected = {origin: arrays[name] for name, origin in parent.origins.items()}
    differing = restore.differing_shapes(parent.folder, parent.item, expected)
    check_prefixes(
        f"config.training.init_skip={training_config.init_skip}",
        parent.skipped,
        arrays | differing,
    )

    # A parent of another objective may have more parameters than the run.
    is_alike = parent.config.training.objective == training_config.objective
    misfits = [
        f"{name}: {shapes}"
        for name, shapes in differing.items()
        if name in expected or (is_alike and parent.takes(name))
    ]
    if misfits:
        raise UserError(
            f"config.training.init_from={training_config.init_from}: its parameters do not fit "
            f"this model ({first_of(misfits, 3)}); make the models equal "
            f"({parent.model_difference()}) or list what is not to be taken in "
            "config.training.init_skip"
        )


def _check_optimizer(parent: Parent) -> None:
    """Raises UserError if the checkpoint lacks the state of the run's optimizer and model."""
    config = parent.run_config
    checkpoint = parent.folder
    reasons = [
        "it has no optimizer's state, which only the best and the newest two checkpoints keep"
    ]
    if checksums.has_optimizer(checkpoint):
        # The values of the schedule do not change the shapes of the state.
        schedule = optax.constant_schedule(0.0)
        optimizer = make_run_optimizer(config, schedule)
        parameters = abstract_init(config, *parent.tokenizer.vocab_sizes)[1]
        state = jax.eval_shape(optimizer.init, parameters)

        # Momentum belongs to the same loss, the same optimizer and the same arrays.
        changes = difference(parent.config, config)
        facts = {
            "model": parent.model_difference(),
            "training.objective": changes.get("training.objective"),
            "optimizer.name": changes.get("optimizer.name"),
            # An average can only be read with the beta1 that made it.
            "optimizer.beta1": config.optimizer.name in AVERAGES and changes.get("optimizer.beta1"),
            **restore.differing_shapes(checkpoint, checksums.OPTIMIZER, state),
        }
        reasons = [f"{name}: {values}" for name, values in facts.items() if values]
    if reasons:
        raise UserError(
            f"config.training.init_optimizer=True: the state of {checkpoint} does not fit this run "
            f"({first_of(reasons, 3)}); set model and optimizer as there, name another step, or "
            "set it to false"
        )


def record(workdir: Workdir, parent: Parent) -> None:
    """Writes `parent.json`, unless the run has begun with it.

    Warns if the models differ, or settings of the vocabulary have no effect.
    """
    path = parent.workdir.path
    # The record is about the initial parameters, so a later start does not replace it.
    if _read_record(workdir) is None:
        environment = read_environment(parent.workdir.environment)
        facts = {
            "workdir": str(path.resolve()),
            "step": parent.step,
            "item": parent.item,
            "checksum": parent.checksum,
            "objective": parent.config.training.objective,
            "commit": environment and [environment, *environment["resumed"]][-1]["commit"],
            "not_taken": parent.skipped,
        }
        files.write_json(workdir.parent, facts)
    differing = parent.model_difference()
    if differing:
        logging.warning("The model differs from that of %s: %s.", path, differing)
    ignored = parent.ignored_settings()
    if ignored:
        logging.warning(
            "The vocabulary is that of %s, so these keys have no effect: %s; "
            "init_vocabulary=own trains another.",
            path,
            ignored,
        )


def _read_record(workdir: Workdir) -> tuple[int, str] | None:
    """Returns step and checksum in `parent.json`, or None if the run has not begun."""
    if not (workdir.has_begun() and workdir.parent.exists()):
        return None
    return files.read_json(
        workdir.parent,
        lambda facts: (facts["step"], facts["checksum"]),
        "start again in another --workdir",
    )
