"""The parent of a run: the checkpoint with its initial values (`training.init_from`)."""

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
from transformer.support.special_tokens import SPECIAL, UNK, WORD_START
from transformer.training.objectives import OBJECTIVES
from transformer.training.optimizer import begins_with, restart_schedule
from transformer.training.state import abstract_init
from transformer.workdir import Workdir

# Keys of `config.model` that do not change what its parameters mean.
INDEPENDENT_KEYS = (
    # Only in training.
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "final_dropout",
    "layer_drop",
    # How it is computed.
    "dtype",
    "attention_implementation",
    "remat",
)
# Keys of `config.tokenizer`.
VOCABULARY_KEYS = ("vocab_size", "normalization", "character_coverage", "byte_fallback")
# The embedding tables, with the side of their tokens: 0 is the source, 1 the target.
EMBEDDINGS = {"decoder.embedding.table": 1, "encoder.embedding.table": 0}
OUTPUTS = ("projection.kernel", "output_bias")  # of target tokens, or of an encoder's source tokens


@dataclass(frozen=True)
class Parent:
    """A checkpoint that gives a run its initial parameters, with the run that wrote it."""

    workdir: Workdir
    config: Config
    tokenizer: Tokenizer
    step: int
    checksum: str
    # The moving average if the checkpoint has one and the optimizer's state is not taken.
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

        A parent of another objective gives the parameters that both models have. The only
        embedding of a model belongs to the decoder if there is one, else to the encoder.
        """
        # Both with the run's sizes: only the names matter.
        run_names = _parameter_names(self.run_config, self.run_config.training.objective)
        parent_names = _parameter_names(self.run_config, self.config.training.objective)
        origins = {name: name for name in run_names if name in parent_names and self.takes(name)}
        objectives = (self.config.training.objective, self.run_config.training.objective)
        if len({OBJECTIVES[objective].sides[1] for objective in objectives}) == 2:
            origins = {name: origins[name] for name in origins if name not in OUTPUTS}
        run_tables = [name for name in EMBEDDINGS if name in run_names]
        parent_tables = [name for name in EMBEDDINGS if name in parent_names]
        if len(run_tables) == len(parent_tables) == 1 and self.takes(run_tables[0]):
            origins[run_tables[0]] = parent_tables[0]
        return origins

    @property
    def token_sides(self) -> dict[str, int]:
        """The taken parameters with a vector for each token, and the side of their tokens.

        The side of a shared vocabulary is 0.
        """
        sides = EMBEDDINGS | dict.fromkeys(OUTPUTS, 1)
        is_shared = self.run_config.tokenizer.shared
        return {
            name: 0 if is_shared else side for name, side in sides.items() if name in self.origins
        }

    @property
    def has_own_vocabulary(self) -> bool:
        return self.run_config.training.init_vocabulary == "own"

    def initial_parameters(self, parameters: dict, tokenizer: Tokenizer) -> dict:
        """Returns the run's random parameters, with the parent's in their places, sharded alike.

        `tokenizer` is the run's.
        """
        # All parameters of the parent, with its own vocabulary.
        expected = abstract_init(self.config, *self.tokenizer.vocab_sizes)[1]
        loaded = restore.load_parameters(
            self.workdir.path, [self.step], expected, self.config, self.item
        )
        loaded = named_leaves(loaded)
        logging.info("Initial parameters %s.", self.describe(parameters))
        taken_arrays = {name: loaded[origin] for name, origin in self.origins.items()}

        # Another vocabulary: each token gets the mean vector of some of the parent's tokens.
        if self.has_own_vocabulary:
            labels = ("both sides",) if tokenizer.is_shared else ("source", "target")
            token_origins = {
                side: find_origins(tokenizer.sides[side], self.tokenizer.sides[side], labels[side])
                for side in sorted(set(self.token_sides.values()))
            }
            for name, side in self.token_sides.items():
                taken_arrays[name] = mean_vectors(name, taken_arrays[name], token_origins[side])

        # Each device gets its part of the array, as in the random parameters.
        leaves = named_leaves(parameters)
        for name, array in taken_arrays.items():
            leaf = leaves[name]
            leaves[name] = jax.make_array_from_callback(
                leaf.shape, leaf.sharding, array.__getitem__
            )
        return jax.tree.unflatten(jax.tree.structure(parameters), leaves.values())

    def initial_optimizer_state(self, fresh: optax.OptState) -> optax.OptState:
        """Returns the parent's optimizer state with its schedule at the beginning.

        It is sharded as the `fresh` state.
        """
        loaded = named_leaves(restore.read_arrays(self.folder, OPTIMIZER))
        leaves = [loaded[name] for name in named_leaves(fresh)]
        state = jax.tree.unflatten(jax.tree.structure(fresh), leaves)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, fresh)
        return jax.device_put(restart_schedule(state), shardings)

    def describe(self, parameters: dict) -> str:
        """Describes which of the run's parameters are taken; `parameters` may be abstract."""
        sizes = {name: leaf.size for name, leaf in named_leaves(parameters).items()}
        taken_size = sum(sizes[name] for name in self.origins)
        note = " (moving average)" if self.item == "ema_parameters" else ""
        if self.run_config.training.init_optimizer:
            note = " (raw parameters, with the optimizer's state)"
        skipped = self.skipped
        objective = self.config.training.objective
        if objective != self.run_config.training.objective:
            skipped = [f"what training.objective={objective} does not have", *skipped]
        return (
            f"from {self.workdir.path}, step {self.step}{note}: "
            f"{taken_size:,} of {sum(sizes.values()):,}; "
            f"not taken: {', '.join(skipped) or 'none'}"
        )

    def model_difference(self) -> str:
        """Returns the keys that differ and may change what the parameters mean.

        Each has the values "PARENT'S -> RUN'S".
        """
        return self._difference(
            f"model.{key}" for key in self.config.model if key not in INDEPENDENT_KEYS
        )

    def ignored_settings(self) -> str:
        """Returns the keys of a vocabulary that differ, if the run takes the parent's vocabulary.

        Each has the values "PARENT'S -> RUN'S".
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


def find_origins(vocabulary: Vocabulary, parent: Vocabulary, side: str) -> list[list[int]]:
    """Returns the parent's tokens that give each token of the vocabulary their mean vector.

    They are the same piece, or else the parts into which the parent's vocabulary segments it. An
    empty list means the mean of all. Logs how many tokens of this side have which origin.
    """
    # Pieces that both vocabularies have, and the other ones in the parent's segmentation.
    parent_tokens = {piece: token for token, piece in enumerate(parent.pieces)}
    new_pieces = [piece for piece in vocabulary.pieces if piece not in parent_tokens]
    encoded = parent.encode([piece.replace(WORD_START, " ") for piece in new_pieces])
    parts = {}
    for piece, tokens in zip(new_pieces, encoded, strict=True):
        if UNK in tokens:
            parts[piece] = []
            continue
        # Within a word, the encoder's mark of a word's start is not part of the piece.
        unspelled = None if piece.startswith(WORD_START) else parent_tokens.get(WORD_START)
        parts[piece] = [token for token in tokens if token != unspelled]

    total = len(vocabulary.pieces)
    num_same = total - len(new_pieces)
    num_from_parts = sum(len(parts[piece]) > 0 for piece in new_pieces)
    logging.info(
        f"Vocabulary, {side}: {num_same:,} of {total:,} tokens keep their vectors, "
        f"{num_from_parts:,} start from those of their parts, "
        f"{total - num_same - num_from_parts:,} from the mean of all; "
        f"{len(parent_tokens) - num_same:,} of the parent's are dropped."
    )
    return [
        [parent_tokens[piece]] if piece in parent_tokens else parts[piece]
        for piece in vocabulary.pieces
    ]


def mean_vectors(
    name: str, array: Float[np.ndarray, "..."], origins: Sequence[Sequence[int]]
) -> Float[np.ndarray, "..."]:
    """Returns the parent's parameter of this name for a vocabulary with these origins."""
    axis = 1 if name == "projection.kernel" else 0  # of the tokens
    rows = np.moveaxis(array, axis, 0)
    # Tokens without an origin start from the mean of all ordinary tokens.
    mean = rows[SPECIAL:].mean(axis=0)
    vectors = np.stack([rows[tokens].mean(axis=0) if tokens else mean for tokens in origins])
    return np.moveaxis(vectors.astype(array.dtype), 0, axis)
