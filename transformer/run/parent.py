"""The parent of a run: a checkpoint of another run, and the initial values that it gives
(`training.init_from`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax
import numpy as np
import optax
from absl import logging
from jaxtyping import Float

from transformer.checkpoints import restore
from transformer.checkpoints.checksums import OPTIMIZER
from transformer.checkpoints.restore import named_leaves
from transformer.config.loading import difference
from transformer.config.types import Config, names_in, with_changes
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.support.special_tokens import SPECIAL, UNK
from transformer.training.optimizer import begins_with, restart_schedule
from transformer.training.state import abstract_init
from transformer.workdir import Workdir

INDEPENDENT_KEYS = (  # keys of `config.model` that do not change what its parameters mean
    # Only in training.
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "layer_drop",
    # How it is computed.
    "dtype",
    "attention_implementation",
    "remat",
    # Initial values.
    "source_vectors",
    "target_vectors",
)
# of `config.tokenizer`
VOCABULARY_KEYS = ("vocab_size", "normalization", "character_coverage", "byte_fallback")
# The embedding tables, with the side of their tokens: 0 is the source, 1 the target.
EMBEDDINGS = {"decoder.embedding.table": 1, "encoder.embedding.table": 0}
WORD_START = "\u2581"


@dataclass(frozen=True)
class Parent:
    """The checkpoint from which a run takes its initial parameters, with its workdir, configuration
    and tokenizer.
    """

    workdir: Workdir
    config: Config
    tokenizer: Tokenizer
    step: int
    checksum: str
    # of the checkpoint: its moving average if it has one, unless the optimizer's state is taken too
    item: str
    run_config: Config  # of the run that starts from it

    @property
    def folder(self) -> Path:
        return self.workdir.checkpoints / str(self.step)

    @property
    def skipped(self) -> list[str]:
        """The parameters that are not taken, each a name or its beginning up to a dot."""
        return names_in(self.run_config.training.init_skip)

    def takes(self, name: str) -> bool:
        return not begins_with(name, self.skipped)

    @cached_property
    def origins(self) -> dict[str, str]:
        """The names of the run's parameters that are taken, with their names in the parent.

        A parent of another objective gives what models of both objectives have. The only embedding
        of a model belongs to the decoder if there is one, else to the encoder.
        """
        own = _parameter_names(self.run_config, self.run_config.training.objective)
        parents = _parameter_names(self.run_config, self.config.training.objective)
        origins = {name: name for name in own if name in parents and self.takes(name)}
        own_tables, parent_tables = (
            [name for name in EMBEDDINGS if name in names] for names in (own, parents)
        )
        if len(own_tables) == len(parent_tables) == 1 and self.takes(own_tables[0]):
            origins[own_tables[0]] = parent_tables[0]
        return origins

    @property
    def token_sides(self) -> dict[str, int]:
        """The taken parameters with a vector for each token, each with the side of the tokens; 0
        for shared ones.
        """
        sides = EMBEDDINGS | {"projection.kernel": 1, "output_bias": 1}
        is_shared = self.run_config.tokenizer.shared
        return {
            name: 0 if is_shared else side for name, side in sides.items() if name in self.origins
        }

    @property
    def has_own_vocabulary(self) -> bool:
        return self.run_config.training.init_vocabulary == "own"

    def initial_parameters(self, parameters: dict, own: Tokenizer) -> dict:
        """Returns the random parameters of the run with those that are taken in their places,
        sharded alike.

        `own` is the tokenizer of the run.
        """
        expected = abstract_init(self.config, *self.tokenizer.vocab_sizes)[1]
        loaded = named_leaves(
            restore.load_parameters(
                self.workdir.path, [self.step], expected, self.config, self.item
            )
        )
        leaves = named_leaves(parameters)
        logging.info("Initial parameters %s.", self.describe(parameters))
        taken = {name: loaded[origin] for name, origin in self.origins.items()}
        if self.has_own_vocabulary:
            labels = ("both sides",) if own.is_shared else ("source", "target")
            origins = {
                side: find_origins(own.sides[side], self.tokenizer.sides[side], labels[side])
                for side in sorted(set(self.token_sides.values()))
            }
            taken |= {
                name: mean_vectors(name, taken[name], origins[side])
                for name, side in self.token_sides.items()
            }
        for name, array in taken.items():
            leaves[name] = jax.make_array_from_callback(
                leaves[name].shape, leaves[name].sharding, array.__getitem__
            )
        return jax.tree.unflatten(jax.tree.structure(parameters), leaves.values())

    def initial_optimizer_state(self, fresh: optax.OptState) -> optax.OptState:
        """Returns the parent's optimizer state with its schedule at the beginning, sharded as the
        `fresh` state.
        """
        loaded = named_leaves(restore.read_arrays(self.folder, OPTIMIZER))
        state = jax.tree.unflatten(
            jax.tree.structure(fresh), [loaded[name] for name in named_leaves(fresh)]
        )
        return jax.device_put(
            restart_schedule(state), jax.tree.map(lambda leaf: leaf.sharding, fresh)
        )

    def describe(self, parameters: dict) -> str:
        """Describes which of the run's parameters are taken; `parameters` may be abstract."""
        sizes = {name: leaf.size for name, leaf in named_leaves(parameters).items()}
        taken = sum(sizes[name] for name in self.origins)
        total = sum(sizes.values())
        note = " (moving average)" if self.item == "ema_parameters" else ""
        if self.run_config.training.init_optimizer:
            note = " (raw parameters, with the optimizer's state)"
        skipped = self.skipped
        objective = self.config.training.objective
        if objective != self.run_config.training.objective:
            skipped = [f"what training.objective={objective} does not have", *skipped]
        return (
            f"from {self.workdir.path}, step {self.step}{note}: {taken:,} of {total:,}; not taken: "
            f"{', '.join(skipped) or 'none'}"
        )

    def model_difference(self) -> str:
        """Returns the keys whose difference may change what the parameters mean, each with
        "PARENT'S -> RUN'S".
        """
        return self._difference(
            f"model.{key}" for key in self.config.model if key not in INDEPENDENT_KEYS
        )

    def ignored_settings(self) -> str:
        """Returns the same for keys with which the vocabulary would have been trained, were it not
        the parent's.
        """
        if self.has_own_vocabulary or self.run_config.tokenizer.model_file or not self.token_sides:
            return ""
        return self._difference(f"tokenizer.{key}" for key in VOCABULARY_KEYS)

    def _difference(self, keys: Iterable[str]) -> str:
        differing = difference(self.config, self.run_config)
        return "; ".join(f"{key}: {differing[key]}" for key in keys if key in differing)


def _parameter_names(config: Config, objective: str) -> tuple[str, ...]:
    """Returns the names of the parameters that the model has if it is trained for `objective`."""
    changed = with_changes(config, training={"objective": objective})
    return tuple(named_leaves(abstract_init(changed, SPECIAL, SPECIAL)[1]))


def find_origins(own: Vocabulary, parent: Vocabulary, side: str) -> list[list[int]]:
    """Returns for each token those of the parent's vocabulary whose mean vector it gets; none: the
    mean of all.

    They are the same piece, or else the parts into which the parent's vocabulary segments it. Logs
    how many tokens of this side have which origin.
    """
    known = {piece: token for token, piece in enumerate(parent.pieces)}
    new = [piece for piece in own.pieces if piece not in known]
    encoded = parent.encode([piece.replace(WORD_START, " ") for piece in new])
    parts = {}  # the tokens that spell a piece, none if one is unknown
    for piece, tokens in zip(new, encoded, strict=True):
        unspelled = None if piece.startswith(WORD_START) else known.get(WORD_START)
        parts[piece] = [] if UNK in tokens else [token for token in tokens if token != unspelled]
    total = len(own.pieces)
    kept = len(own.pieces) - len(new)
    made = sum(len(parts[piece]) > 0 for piece in new)
    logging.info(
        "Vocabulary, %s: %s of %s tokens keep their vectors, %s start from those of their parts, %s from the mean of "
        "all; %s of the parent's are dropped.",
        side,
        f"{kept:,}",
        f"{total:,}",
        f"{made:,}",
        f"{total - kept - made:,}",
        f"{len(known) - kept:,}",
    )
    return [[known[piece]] if piece in known else parts[piece] for piece in own.pieces]


def mean_vectors(
    name: str, taken: Float[np.ndarray, "..."], origins: Sequence[Sequence[int]]
) -> Float[np.ndarray, "..."]:
    """Returns the parameter of this name for the vocabulary with these origins, given the parent's."""
    axis = 1 if name == "projection.kernel" else 0  # of the tokens
    rows = np.moveaxis(taken, axis, 0)
    mean = rows[SPECIAL:].mean(axis=0)
    own = np.stack([rows[tokens].mean(axis=0) if tokens else mean for tokens in origins])
    return np.moveaxis(own.astype(taken.dtype), 0, axis)
