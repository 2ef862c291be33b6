"""Estimates of searches on absent devices, from the program that is compiled for the devices."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from jax.sharding import NamedSharding, PartitionSpec

from scripts.planning import hlo, roofline
from scripts.planning.accelerator_estimate import (
    MemoryEstimate,
    compile_program,
    measure_memory,
)
from scripts.planning.devices import Target
from scripts.planning.lengths import Data
from transformer.config.loading import with_values
from transformer.config.types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding.batches import DecodingBatch
from transformer.decoding.target_forms import TARGET_FORMS
from transformer.decoding.text_decoder import TextDecoder
from transformer.distributed.mesh import make_mesh
from transformer.support.errors import UserError
from transformer.training.objectives import OBJECTIVES
from transformer.training.state import init_model


class SearchEstimate(NamedTuple):
    """The estimate of a search on one device, for the shape of batches with most sentences.

    Attributes:
      parameters: number of parameters.
      batch: a batch of this shape.
      output_limit: the length of its longest possible outputs.
      hypotheses: their number for each sentence.
      steps: the mean number of steps over all batches of this shape. A batch takes as many steps as
        its longest output, and the outputs are supposed to have the lengths of the targets.
      tokens: the mean number of tokens in the outputs of a batch.
      step: the cost of a step.
      start: the cost of all else, such as the encoder.
      memory: the memory of the program.
    """

    parameters: int
    batch: DecodingBatch
    output_limit: int
    hypotheses: int
    steps: float
    tokens: float
    step: roofline.Cost
    start: roofline.Cost
    memory: MemoryEstimate

    @property
    def seconds(self) -> float:
        """The least time of a batch."""
        return self.start.seconds + self.steps * self.step.seconds


def estimate_search(
    config: Config, target: Target, devices: Sequence[jax.Device], data: Data
) -> SearchEstimate:
    """Compiles the search of `config.decoding` for a device.

    The sentences are those of `data`. The search is without a shortlist and without constraints.
    Raises UserError if the objective of the config has no search that takes steps.
    """
    # Each device translates its own batches, without a mesh.
    config = with_values(config, {"mesh.data": 1, "mesh.fsdp": 1, "mesh.tensor": 1})
    mesh = make_mesh(config, devices[:1])
    source_size, target_size = data.vocab_sizes
    tokenizer = Tokenizer(IdsVocabulary(source_size), IdsVocabulary(target_size))

    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        graph, parameters = jax.eval_shape(lambda: init_model(config, source_size, target_size))
        form = TARGET_FORMS[config.data.target_form]
        decoder = TextDecoder((graph,), tokenizer, config.decoding, devices[:1], form=form)
        if not OBJECTIVES[config.training.objective].has_both_sides:
            raise UserError(
                f"--search: training.objective={config.training.objective} has no translations"
            )
        if not decoder.strategy.takes_steps:
            raise UserError(
                f"--search: decoding.strategy={config.decoding.strategy} does not search by steps"
            )

        # The first pass of the search finds nearly all translations.
        extra_length = decoder.extra_lengths[0]
        sources, targets = data.corpus.all_pairs().lengths.T
        cut = np.minimum(sources, config.decoding.max_source_length).tolist()
        search, batches = decoder.plan_pass(dict(enumerate(cut)), 1, extra_length)
        batches = most_frequent_shape(batches)
        rows, length, _ = batches[0]
        logging.info("Compiling the search for %s: %d sentences x %d.", target.text, rows, length)

        arrays = decoder.arrays_of([], first_line=0)(DecodingBatch(rows, length, []))
        placed = NamedSharding(mesh, PartitionSpec())
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed),
            (decoder.abstract([parameters]), *arrays),
        )
        compiled = compile_program(search.lower(*arguments))

    limit = decoder.max_length(length, extra_length)
    size = decoder.strategy.size
    outputs = [np.minimum(targets[batch.indices], limit) for batch in batches]
    start, step = split_loop(hlo.parse(compiled.as_text()))
    weights = compiled.memory_analysis().argument_size_in_bytes
    return SearchEstimate(
        parameters=sum(leaf.size for leaf in jax.tree.leaves(parameters)),
        batch=batches[0],
        output_limit=limit,
        hypotheses=1 if size is None else config.decoding[size],
        steps=float(np.mean([lengths.max() for lengths in outputs])),
        tokens=float(np.mean([lengths.sum() for lengths in outputs])),
        step=roofline.cost([(step, 1)], target),
        start=roofline.cost([(start, 1)], target),
        memory=measure_memory(compiled, {"weights": weights}, target.kind.usable),
    )


def most_frequent_shape(batches: Sequence[DecodingBatch]) -> list[DecodingBatch]:
    """Returns the batches of the shape that most sentences have."""
    groups = {}
    for batch in batches:
        groups.setdefault((batch.rows, batch.length), []).append(batch)
    return max(groups.values(), key=lambda group: sum(len(batch.indices) for batch in group))


def split_loop(program: hlo.Program) -> tuple[hlo.Program, hlo.Program]:
    """Returns a program without its longest loop, and the body of that loop.

    The number of iterations of a search is not in the program, because it depends on the data.
    """
    loops = [inner for inner in program.entry.instructions if inner.opcode == "while"]
    loop = max(loops, key=lambda inner: len(inner.called[0].instructions))
    others = [inner for inner in program.entry.instructions if inner is not loop]
    rest = hlo.Computation(program.entry.name, others)
    return (
        dataclasses.replace(program, entry=rest),
        dataclasses.replace(program, entry=loop.called[0]),
    )
