"""Fine-tuning: a run that starts from the parameters of another run, its parent (`training.init_from`)."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import optax
from absl import logging

from transformer import files
from transformer.checkpoints import checksums, restore
from transformer.config.keys import show
from transformer.config.loading import difference
from transformer.config_types import Config, names_in, with_changes
from transformer.data.tokenizers import tokenizer
from transformer.environment import read_environment
from transformer.errors import UserError, first_of
from transformer.run.checks import check_prefixes
from transformer.run.new_vocabulary import Origins, find_origins
from transformer.special_tokens import SPECIAL
from transformer.training.objectives import OBJECTIVES
from transformer.training.optimizer import begins_with, make_optimizer, restart_schedule
from transformer.training.state import abstract_init
from transformer.workdir import Workdir, open_existing

# Keys of `config.model` that do not change what its parameters mean.
INDEPENDENT_KEYS = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "layer_drop",
    "dtype",
    "attention_implementation",
    "remat",
    "source_vectors",
    "target_vectors",
)
# The embedding tables, with the side of their tokens: 0 is the source, 1 the target.
EMBEDDINGS = {"decoder.embedding.table": 1, "encoder.embedding.table": 0}


@dataclass(frozen=True)
class Parent:
    """The checkpoint from which a run takes its initial parameters, with its workdir, configuration and tokenizer."""

    workdir: Workdir
    config: Config
    tokenizer: tokenizer.Tokenizer
    step: int
    checksum: str
    item: str  # of the checkpoint: its moving average if it has one, unless the optimizer's state is taken too
    run_config: Config  # of the run that starts from it

    @property
    def skipped(self) -> list[str]:
        """The parameters that are not taken, each a name or its beginning up to a dot."""
        return names_in(self.run_config.training.init_skip)

    def takes(self, name: str) -> bool:
        return not begins_with(name, self.skipped)

    @cached_property
    def origins(self) -> dict[str, str]:
        """The names of the run's parameters that are taken, with their names in the parent.

        A parent of another objective gives what models of both objectives have. The only embedding of a model belongs
        to the decoder if there is one, else to the encoder.
        """
        own = parameter_names(self.run_config, self.run_config.training.objective)
        parents = parameter_names(self.run_config, self.config.training.objective)
        origins = {name: name for name in own if name in parents and self.takes(name)}
        own_tables, parent_tables = ([name for name in EMBEDDINGS if name in names] for names in (own, parents))
        if len(own_tables) == len(parent_tables) == 1 and self.takes(own_tables[0]):
            origins[own_tables[0]] = parent_tables[0]
        return origins

    @property
    def token_sides(self) -> dict[str, int]:
        """The taken parameters with a vector for each token, each with the side of the tokens; 0 for shared ones."""
        sides, is_shared = EMBEDDINGS | {"projection.kernel": 1, "output_bias": 1}, self.run_config.tokenizer.shared
        return {name: 0 if is_shared else side for name, side in sides.items() if name in self.origins}

    @property
    def has_own_vocabulary(self) -> bool:
        return self.run_config.training.init_vocabulary == "own"

    def initial_parameters(self, parameters: dict, own: tokenizer.Tokenizer) -> dict:
        """Returns the random parameters of the run with those that are taken in their places, sharded alike.

        `own` is the tokenizer of the run.
        """
        expected = abstract_init(self.config, *self.tokenizer.vocab_sizes)[1]
        taken = restore.load_parameters(self.workdir.path, [self.step], expected, self.config, self.item)
        loaded = restore.named_leaves(taken)
        logging.info("Initial parameters %s.", self.describe(parameters))
        leaves, tokens = restore.named_leaves(parameters), self._token_origins(own) if self.has_own_vocabulary else {}
        for name, origin in self.origins.items():
            random, taken = leaves[name], loaded[origin]
            taken = tokens[name].vectors(name, taken) if name in tokens else taken
            leaves[name] = jax.make_array_from_callback(random.shape, random.sharding, taken.__getitem__)
        return jax.tree.unflatten(jax.tree.structure(parameters), leaves.values())

    def initial_optimizer_state(self, fresh: optax.OptState) -> optax.OptState:
        """Returns the parent's optimizer state with its schedule at the beginning, sharded as the `fresh` state."""
        folder = self.workdir.checkpoints / str(self.step)
        loaded = restore.named_leaves(restore.read_arrays(folder, checksums.OPTIMIZER))
        state = jax.tree.unflatten(jax.tree.structure(fresh), [loaded[name] for name in restore.named_leaves(fresh)])
        return jax.device_put(restart_schedule(state), jax.tree.map(lambda leaf: leaf.sharding, fresh))

    def _token_origins(self, own: tokenizer.Tokenizer) -> dict[str, Origins]:
        """Returns the origins of the own vocabulary's tokens for each taken parameter with a vector for each token."""
        sides = sorted(set(self.token_sides.values()))
        origins = {side: find_origins(own.sides[side], self.tokenizer.sides[side]) for side in sides}
        for side, found in origins.items():
            found.log("both sides" if own.is_shared else ("source", "target")[side])
        return {name: origins[side] for name, side in self.token_sides.items()}

    def describe(self, parameters: dict) -> str:
        """Describes which of the run's parameters are taken; `parameters` may be abstract."""
        sizes = {name: leaf.size for name, leaf in restore.named_leaves(parameters).items()}
        taken, total = sum(sizes[name] for name in self.origins), sum(sizes.values())
        note = " (moving average)" if self.item == "ema_parameters" else ""
        if self.run_config.training.init_optimizer:
            note = " (raw parameters, with the optimizer's state)"
        skipped, objective = self.skipped, self.config.training.objective
        if objective != self.run_config.training.objective:
            skipped = [f"what training.objective={objective} does not have", *skipped]
        source = f"from {self.workdir.path}, step {self.step}{note}"
        return f"{source}: {taken:,} of {total:,}; not taken: {', '.join(skipped) or 'none'}"

    def model_difference(self) -> str:
        """Returns the keys whose difference may change what the parameters mean, each with "PARENT'S -> RUN'S"."""
        keys = [f"model.{key}" for key in self.config.model if key not in INDEPENDENT_KEYS]
        differing = difference(self.config, self.run_config)
        return "; ".join(f"{key}: {differing[key]}" for key in keys if key in differing)


def prepare(config: Config, workdir: Workdir) -> Parent | None:
    """Returns the parent of a run that has no checkpoint yet. Raises UserError if it does not fit the run.

    Gives the workdir a copy of the vocabularies that belong to the taken parameters, unless it has one.
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
    """Opens a run's parent. Raises UserError if it is missing, damaged, or has changed since the run began."""
    name, which = config.training.init_from, "best"
    if not files.expanded(name).is_dir() and (suffix := re.fullmatch(r"(.*):(best|last|\d+)", name)):
        name, which = suffix.groups()
    path, recorded = files.expanded(name), _read_record(workdir)
    try:
        opened, parent_config = open_existing(path)
        vocabularies = tokenizer.Tokenizer.load(path, parent_config)
        # A restart takes the same step, although another one may be the best by then.
        step = restore.choose_step(path, str(recorded["step"]) if recorded else which)
        checkpoint = opened.checkpoints / str(step)
        with restore.readable(checkpoint, "name another step"):
            if damage := checksums.damage(checkpoint, for_training=config.training.init_optimizer):
                raise ValueError(damage)
            checksum = checksums.digest(checkpoint)
        if recorded and recorded["checksum"] != checksum:
            raise UserError(f"{checkpoint} has changed since this run began; start again in another --workdir")
    except UserError as error:
        # Names the key instead of the flag of another command.
        message = re.sub(r"^--(workdir|checkpoint)=.*?: ", "", str(error))
        raise UserError(f"config.training.init_from={config.training.init_from}: {message}") from error
    item = "parameters" if config.training.init_optimizer else restore.eval_item(checkpoint)
    return Parent(opened, parent_config, vocabularies, step, checksum, item, config)


def _check_vocabularies(parent: Parent) -> None:
    """Raises UserError if parameters are taken that belong to another vocabulary."""
    settings, taken = parent.run_config.tokenizer, parent.token_sides
    # The vocabulary of a monolingual parent is that of either side.
    keys = ("kind", "shared") if OBJECTIVES[parent.config.training.objective].translates else ("kind",)
    differing = [key for key in keys if settings[key] != parent.config.tokenizer[key]]
    own = tokenizer.read_model_files(parent.run_config) if settings.model_file else parent.tokenizer
    if parent.has_own_vocabulary:
        kinds = {settings.kind, parent.config.tokenizer.kind}
        differing = [key for key in differing if key == "shared" or "ids" in kinds]
    elif any(own.sides[side].serialized != parent.tokenizer.sides[side].serialized for side in taken.values()):
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
    source, target = parent.tokenizer.vocab_sizes  # the run's, or those that its own vocabulary replaces
    target = source if parent.run_config.tokenizer.shared else target
    own = restore.named_leaves(abstract_init(parent.run_config, source, target)[1])
    wanted = {origin: own[name] for name, origin in parent.origins.items()}
    differing = restore.differing_shapes(parent.workdir.checkpoints / str(parent.step), parent.item, wanted)
    names = own | differing
    check_prefixes(f"config.training.init_skip={training.init_skip}", parent.skipped, names)
    # A parent of another objective may have more parameters than the run.
    is_alike = parent.config.training.objective == training.objective
    required = wanted.keys() | {name for name in differing if is_alike and parent.takes(name)}
    if unfit := [f"{name}: {shapes}" for name, shapes in differing.items() if name in required]:
        raise UserError(
            f"config.training.init_from={training.init_from}: its parameters do not fit this model "
            f"({first_of(unfit, 3)}); make the models equal ({parent.model_difference()}) or list what is not to be "
            "taken in config.training.init_skip"
        )


def _check_optimizer(parent: Parent) -> None:
    """Raises UserError unless the checkpoint has the state of the run's optimizer, for the same model."""
    config, checkpoint = parent.run_config, parent.workdir.checkpoints / str(parent.step)
    reasons = ["it has no optimizer's state, which only the best and the newest two checkpoints keep"]
    if checksums.has_optimizer(checkpoint):
        optimizer = make_optimizer(config.optimizer, optax.constant_schedule(0.0), config.training.freeze)
        state = jax.eval_shape(optimizer.init, abstract_init(config, *parent.tokenizer.vocab_sizes)[1])
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
    """Writes `parent.json`, unless the run has begun with it. Warns if the model computes something else."""
    if _read_record(workdir) is None:
        environment = read_environment(parent.workdir.environment)
        facts = {"workdir": str(parent.workdir.path.resolve()), "step": parent.step, "item": parent.item}
        facts |= {"checksum": parent.checksum, "objective": parent.config.training.objective}
        facts["commit"] = environment and [environment, *environment["resumed"]][-1]["commit"]
        files.write_json(workdir.parent, facts | {"not_taken": parent.skipped})
    if differing := parent.model_difference():
        logging.warning("The model differs from that of %s: %s.", parent.workdir.path, differing)


def _read_record(workdir: Workdir) -> dict[str, Any] | None:
    """Returns step and checksum in the `parent.json` of a run that has begun; None if it has not."""
    if not (workdir.has_begun() and workdir.parent.exists()):
        return None
    keys, advice = ("step", "checksum"), "start again in another --workdir"
    return files.read_json(workdir.parent, lambda facts: {key: facts[key] for key in keys}, advice)


def parameter_names(config: Config, objective: str) -> tuple[str, ...]:
    """Returns the names of the parameters that the model has if it is trained for `objective`."""
    changed = with_changes(config, training={"objective": objective})
    return tuple(restore.named_leaves(abstract_init(changed, SPECIAL, SPECIAL)[1]))
