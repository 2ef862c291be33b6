"""The evaluation step: the sums of the loss over a batch, without dropout."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config.loading import with_values
from transformer.config_types import Config
from transformer.data.batches import loader
from transformer.data.batches.collation import Batch, abstract_batch
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.corpus import corpus
from transformer.data.corpus.corpus import Corpus
from transformer.data.sources import source
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.distributed.mesh import BATCH, make_mesh
from transformer.errors import UserError, memory_advice
from transformer.programs import Programs
from transformer.training.loss import LossSums
from transformer.training.memory import by_memory
from transformer.training.metrics import Record, means
from transformer.training.objectives import OBJECTIVES, Inputs, inputs_of

MAX_LISTED = 5  # lines in a warning
MEMORY_ADVICE = "for the loss of a held-out split, lower config.batch.tokens or config.data.max_length"


def check_lengths(config: Config, tokenizer: Tokenizer, corpus: Corpus, split: str) -> None:
    """Warns of pairs of a held-out split that the loss leaves out. Raises UserError if it leaves out all."""
    longest, name = config.data.max_length, f"data.{split}_split={config.data[f'{split}_split']}"
    count = np.count_nonzero(corpus.lengths.max(axis=1) > longest)
    if not count:
        return
    if count == len(corpus):
        raise UserError(f"config.data.max_length={longest}: all {corpus.unit} of {name} are longer; raise it")
    # The corpus has no pairs with an empty side, so its numbers are not those of lines.
    sides = zip(tokenizer.sides, source.read_pairs(config.data, split), strict=True)
    lengths = np.array([[len(tokens) + 1 for tokens in side.encode(texts)] for side, texts in sides])
    lines = (np.flatnonzero(lengths.max(axis=0) > longest) + 1).tolist()
    more = f" and {count - MAX_LISTED} more" if count > MAX_LISTED else ""
    logging.warning(
        "%s: the loss leaves out %d of %d %s, longer than config.data.max_length=%d tokens: line%s %s%s.",
        *(name, count, len(corpus), corpus.unit, longest),
        *("" if count == 1 else "s", ", ".join(map(str, lines[:MAX_LISTED])), more),
    )


class EvalStep:
    """Maps (parameters, batch) to the sums over the batch. Each batch shape is compiled once.

    With masked_lm, every evaluation masks the same tokens.
    """

    def __init__(self, config: Config, graph: nnx.GraphDef, mesh: Mesh, inputs: Inputs):
        """`inputs` is from `inputs_of`."""
        self.config, self.graph, self.mesh, self.inputs = config, graph, mesh, inputs
        self.loss = OBJECTIVES[config.training.objective].make_loss(config.training, mesh)
        self.sums = jax.jit(self._sums)
        self.programs = Programs()

    def __call__(self, parameters: dict, batch: Batch) -> LossSums:
        return self.programs.run(self.sums, parameters, batch)

    def over_corpus(self, parameters: dict, corpus: Corpus, between_batches: Callable[[], None]) -> Record:
        """Returns the means over all tokens of a held-out corpus. `between_batches` is called before each batch."""
        sums = None
        with memory_advice(MEMORY_ADVICE):
            for batch in loader.in_order(corpus, self.config, self.mesh):
                between_batches()
                part = self(parameters, batch)
                sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
            return means(dataclasses.asdict(jax.device_get(sums)))

    def compilations(self, parameters: dict, buckets: Sequence[Bucket]) -> list[Callable[[], jax.stages.Compiled]]:
        """Returns functions that each compile the program for a bucket, the one that needs most memory first."""
        sharding = NamedSharding(self.mesh, BATCH)
        largest_first = by_memory(self.config, buckets, self.mesh.abstract_mesh)
        batches = [abstract_batch(bucket, False, sharding) for bucket in largest_first]
        return [functools.partial(self.programs.compile, self.sums, parameters, batch) for batch in batches]

    def _sums(self, parameters: dict, batch: Batch) -> LossSums:
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            batch = self.inputs(batch, jax.random.key(0))
            return self.loss(nnx.merge(self.graph, nnx.State(parameters)), batch, None)[1]


def held_out_means(config: Config, tokenizer: Tokenizer, graph: nnx.GraphDef, parameters: dict, split: str) -> Record:
    """Returns the means over the tokens of a split of the run's data, computed as validation does, on one device.

    Raises UserError if the data is missing, or all its sentences are longer than `data.max_length`.
    """
    config = with_values(config, {"mesh.data": 1, "mesh.fsdp": 1, "mesh.tensor": 1})
    held_out = corpus.prepare(config, tokenizer, split)
    check_lengths(config, tokenizer, held_out, split)
    mesh = make_mesh(config, jax.local_devices()[:1])
    step = EvalStep(config, graph, mesh, inputs_of(config, tokenizer.source.pieces))
    parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
    return step.over_corpus(parameters, held_out, lambda: None)
