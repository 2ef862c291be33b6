"""The evaluation step: the sums of the loss over a batch, without dropout."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from transformer.config_types import Config
from transformer.data.batches import loader
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.corpus.corpus import Corpus
from transformer.distributed.sharding import BATCH
from transformer.errors import UserError
from transformer.training.loss import LossSums
from transformer.training.memory import by_memory
from transformer.training.metrics import Record, means
from transformer.training.objectives import OBJECTIVES, Inputs
from transformer.training.programs import Batch, Programs, abstract_batch


def check_positions(config: Config, corpus: Corpus, split: str) -> None:
    """Raises UserError if the model has too few learned positions for a held-out split, which keeps long sentences."""
    stack_lengths = OBJECTIVES[config.training.objective].stack_lengths
    longest = max(stack_lengths(config.model, *corpus.lengths.max(axis=0).tolist()))
    if config.model.positions == "learned" and longest > config.model.max_positions:
        raise UserError(
            f"model.max_positions={config.model.max_positions}: data.{split}_split={config.data[f'{split}_split']} has "
            f"a sentence that needs {longest}; shorten it, or train with at least so many or with "
            "model.positions=sinusoidal"
        )


class EvalStep:
    """Maps (parameters, batch) to the sums over the batch. Each batch shape is compiled once.

    With masked_lm, every evaluation masks the same tokens.
    """

    def __init__(self, config: Config, graph: nnx.GraphDef, mesh: Mesh, inputs: Inputs):
        """`inputs` is from `inputs_of`."""
        self.config, self.graph, self.mesh, self.inputs = config, graph, mesh, inputs
        self.loss = OBJECTIVES[config.training.objective].make_loss(config.training, mesh).without_r_drop()
        self.sums = jax.jit(self._sums)
        self.programs = Programs()

    def __call__(self, parameters: dict, batch: Batch) -> LossSums:
        return self.programs.run(self.sums, parameters, batch)

    def over_corpus(self, parameters: dict, corpus: Corpus, between_batches: Callable[[], None]) -> Record:
        """Returns the means over all tokens of a held-out corpus. `between_batches` is called before each batch."""
        sums = None
        for batch in loader.in_order(corpus, self.config, self.mesh):
            between_batches()
            part = self(parameters, batch)
            sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
        return means(dataclasses.asdict(jax.device_get(sums)))

    def compilations(self, parameters: dict, buckets: Sequence[Bucket]) -> list[Callable[[], jax.stages.Compiled]]:
        """Returns functions that each compile the program for a bucket, the one that needs most memory first."""
        sharding = NamedSharding(self.mesh, BATCH)
        largest_first = by_memory(self.config, buckets, self.mesh.abstract_mesh)
        batches = [abstract_batch(each, False, sharding) for each in largest_first]
        return [functools.partial(self.programs.compile, self.sums, parameters, batch) for batch in batches]

    def _sums(self, parameters: dict, batch: Batch) -> LossSums:
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            batch = self.inputs(batch, jax.random.key(0))
            return self.loss.of_batch(nnx.merge(self.graph, nnx.State(parameters)), batch, None)[1]
