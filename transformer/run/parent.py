"""The parent of a run: another run whose parameters it starts from (`training.init_from`, `training.init_skip`)."""

import contextlib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import ml_collections
from absl import logging

from transformer.checkpoints import checksums
from transformer.checkpoints.restore import eval_item, load_parameters, named_leaves
from transformer.config.loading import difference
from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.errors import UserError
from transformer.special_tokens import SPECIAL
from transformer.training.objectives import OBJECTIVES
from transformer.training.state import abstract_parameters
from transformer.workdir import Workdir

# The keys of the model that do not change what its parameters mean.
INDEPENDENT_KEYS = (
    *("model.dropout", "model.attention_dropout", "model.activation_dropout"),
    *("model.dtype", "model.source_vectors", "model.target_vectors"),
)
# The tables of token vectors, with the sides that they belong to.
EMBEDDINGS = {"decoder.embedding.table": 1, "encoder.embedding.table": 0}


@dataclass(frozen=True)
class Parent:
    """The checkpoint from which a run takes its initial parameters.

    Attributes:
      workdir, config, tokenizer: those of the parent.
      step: the step of the checkpoint.
      skipped: the parameters that are not taken, each a name or its beginning up to a dot.
    """

    workdir: Workdir
    config: Config
    tokenizer: Tokenizer
    step: int
    skipped: tuple[str, ...]

    @property
    def checkpoint(self) -> Path:
        return self.workdir.checkpoints / str(self.step)

    @property
    def item(self) -> str:
        """The item of the checkpoint that the parent is evaluated with."""
        return eval_item(self.checkpoint)

    @property
    def checksum(self) -> str:
        return checksums.digest(self.checkpoint)

    @property
    def is_bilingual(self) -> bool:
        return OBJECTIVES[self.config.training.objective].translates

    def takes(self, name: str) -> bool:
        return not any(is_part(name, prefix) for prefix in self.skipped)

    def has_objective_of(self, config: Config) -> bool:
        return self.config.training.objective == config.training.objective

    def origins(self, config: Config) -> dict[str, str]:
        """Returns the names of the run's parameters that are taken, with their names in the parent.

        A parent of another objective gives the parameters that a model of both objectives has. The only embedding of
        a model belongs to the decoder if there is one, else to the encoder.
        """
        own, parents = parameter_names(config), parameter_names(config, self.config.training.objective)
        names = [name for name in own if self.takes(name)]
        origins = {name: name for name in names if name in parents}
        tables = [[name for name in EMBEDDINGS if name in each] for each in (own, parents)]
        if len(tables[0]) == len(tables[1]) == 1 and tables[0][0] in names:
            origins[tables[0][0]] = tables[1][0]
        return origins

    def token_parameters(self, config: Config) -> dict[str, int]:
        """Returns the taken parameters that have a vector for each token, with the side that the tokens belong to.

        0 is the source's side, or both with a shared vocabulary, and 1 the target's. `config` is that of the new run.
        """
        sides = EMBEDDINGS | {"projection.kernel": 1}
        taken = self.origins(config)
        return {name: 0 if config.tokenizer.shared else side for name, side in sides.items() if name in taken}

    def initial_parameters(self, config: Config, parameters: dict) -> dict:
        """Returns a run's random parameters with those that are taken in their places, sharded alike."""
        expected = abstract_parameters(self.config, *self.tokenizer.vocab_sizes)
        found = named_leaves(load_parameters(self.workdir.path, [self.step], expected, self.config))
        origins = self.origins(config)

        def choose(name: str, random: jax.Array) -> jax.Array:
            if name not in origins:
                return random
            taken = found[origins[name]]
            return jax.make_array_from_callback(random.shape, random.sharding, lambda index: taken[index])

        logging.info("Initial parameters %s.", self.describe(config, parameters))
        chosen = [choose(name, random) for name, random in named_leaves(parameters).items()]
        return jax.tree.unflatten(jax.tree.structure(parameters), chosen)

    def describe(self, config: Config, parameters: dict) -> str:
        """Describes the parameters that are taken and those that are not; `parameters` may be abstract."""
        sizes = {name: leaf.size for name, leaf in named_leaves(parameters).items()}
        origins = self.origins(config)
        taken = sum(size for name, size in sizes.items() if name in origins)
        average = " (moving average)" if self.item == "ema_parameters" else ""
        left = ", ".join(self.skipped) or "none"
        if not self.has_objective_of(config):
            left = f"what training.objective={self.config.training.objective} does not have" + (
                f", {left}" if self.skipped else ""
            )
        return (
            f"from {self.workdir.path}, step {self.step}{average}: {taken:,} of {sum(sizes.values()):,}; "
            f"not taken: {left}"
        )

    def model_difference(self, config: Config) -> str:
        """Returns the keys whose difference may change what the parameters mean, each with "PARENT'S -> RUN'S"."""
        differing = difference(self.config, config)
        return "; ".join(
            f"{key}: {values}"
            for key, values in differing.items()
            if key.startswith("model.") and key not in INDEPENDENT_KEYS
        )


@functools.lru_cache
def parameter_names(config: Config, objective: str | None = None) -> tuple[str, ...]:
    """Returns the names of a model's parameters, if it were trained for `objective`."""
    changed = ml_collections.ConfigDict(config)
    changed.training.objective = objective or config.training.objective
    return tuple(named_leaves(abstract_parameters(changed, SPECIAL, SPECIAL)))


def is_part(name: str, prefix: str) -> bool:
    """Tells whether a parameter's name is `prefix`, or begins with it up to a dot."""
    return f"{name}.".startswith(f"{prefix}.")


@contextlib.contextmanager
def named(config: Config) -> Iterator[None]:
    """Names the key, instead of the flag of another command, in errors about the parent."""
    try:
        yield
    except UserError as error:
        message = re.sub(r"^--(workdir|checkpoint)=.*?: ", "", str(error))
        raise UserError(f"config.training.init_from={config.training.init_from}: {message}") from error
