"""Held-out sets: their batches and loss, their texts, and the names of their scores."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config.loading import with_values
from transformer.config.types import Config
from transformer.data.batches import loader
from transformer.data.batches.collation import Batch, assemble, place
from transformer.data.batches.epoch_plan import EpochPlan, PlannedBatch
from transformer.data.corpus import corpus
from transformer.data.corpus.corpus import Corpus
from transformer.data.languages import source_tag
from transformer.data.sources import source
from transformer.data.sources.mixture import held_out_sets
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.bleu import metrics_in
from transformer.decoding.text_decoder import TextDecoder
from transformer.distributed.mesh import make_mesh
from transformer.support.errors import UserError, memory_advice
from transformer.support.programs import Programs
from transformer.training.loss import LossSums
from transformer.training.objectives import OBJECTIVES
from transformer.training.progress import Record, means

TRAINING_SAMPLE = 500  # pairs of each corpus of a mixture, whose loss is reported


def check_lengths(config: Config, corpus: Corpus, split: str) -> None:
    """Warns of pairs of a held-out split that the loss leaves out.

    Raises UserError if it leaves out all.
    """
    longest, name = config.data.max_length, f"data.{split}_split={config.data[f'{split}_split']}"
    count = np.count_nonzero(corpus.lengths.max(axis=1) > longest)
    if count == len(corpus):
        raise UserError(
            f"config.data.max_length={longest}: all sentences of {name} are longer; raise it"
        )
    if count:
        message = "%s: the loss leaves out %d of %d sentences, longer than config.data.max_length=%d tokens."
        logging.warning(message, name, count, len(corpus), longest)


class EvalStep:
    """Maps (parameters, batch) to the sums over the batch, without dropout. masked_lm always masks
    the same tokens.
    """

    def __init__(self, config: Config, graph: nnx.GraphDef, mesh: Mesh, pieces: Sequence[str]):
        """`pieces`: the strings of the source's tokens."""
        objective = OBJECTIVES[config.training.objective]
        self.graph, self.mesh = graph, mesh
        self.inputs = objective.make_inputs(config.training, pieces)
        self.loss = objective.make_loss(config.training, mesh)
        self.sums = jax.jit(self._sums)
        self.programs = Programs()

    def __call__(self, parameters: dict, batch: Batch) -> LossSums:
        return self.programs.run(self.sums, parameters, batch)

    def over_batches(
        self, parameters: dict, held_out: "Batches", between_batches: Callable[[], None]
    ) -> Record:
        """Returns the means over all tokens of a held-out set.

        `between_batches` is called before each batch.
        """
        sums = None
        with memory_advice(
            "for the loss of a held-out split, lower config.batch.tokens or config.data.max_length"
        ):
            for batch in held_out.plan:
                between_batches()
                part = self(parameters, self.place(held_out.corpus, batch))
                sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
            return means(dataclasses.asdict(jax.device_get(sums)))

    def place(self, corpus: Corpus, batch: PlannedBatch) -> Batch:
        """Returns the arrays of a batch, without the annotations of training pairs."""
        arrays = assemble(corpus, batch)
        return place(
            {name: x for name, x in arrays.items() if name not in ("target_weights", "links")},
            self.mesh,
        )

    def _sums(self, parameters: dict, batch: Batch) -> LossSums:
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            batch = self.inputs(batch, jax.random.key(0))
            return self.loss(nnx.merge(self.graph, nnx.State(parameters)), batch, None)[1]


class Batches(NamedTuple):
    """The batches of a held-out set, or of a sample of a training corpus."""

    corpus: Corpus
    plan: EpochPlan


def held_out_means(
    config: Config, tokenizer: Tokenizer, graph: nnx.GraphDef, parameters: dict, split: str
) -> Record:
    """Returns a split's means over tokens, as in validation, on one device.

    Raises UserError without usable data.
    """
    config = with_values(config, {"mesh.data": 1, "mesh.fsdp": 1, "mesh.tensor": 1})
    held_out = corpus.prepare(config, tokenizer, split)
    check_lengths(config, held_out, split)
    mesh = make_mesh(config, jax.local_devices()[:1])
    step = EvalStep(config, graph, mesh, tokenizer.source.pieces)
    parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
    (plan,) = loader.plan_in_order([(held_out, np.arange(len(held_out)))], config)
    return step.over_batches(parameters, Batches(held_out, plan), lambda: None)


class Texts(NamedTuple):
    """The texts of a validation set with their references, and the decoder and the group `data`
    that they need.
    """

    texts: list[str]
    references: list[str]
    decoder: TextDecoder
    data: Config


def metric_names(config: Config) -> list[str]:
    """Returns the names of the scores of a validation, each of which may choose the best
    checkpoint.
    """
    metrics = [*means(Counter()), *(metrics_in("validation") if config.training.eval_bleu else [])]
    return list(
        name_scores({label: dict.fromkeys(metrics, 0.0) for label in held_out_sets(config)})
    )


def name_scores(scores: dict[str, Record]) -> Record:
    """Returns the scores of all sets by METRIC, those of a set NAME by METRIC/NAME, and their means
    by METRIC/mean.
    """
    main = scores[""]
    values = dict(main)
    if len(scores) > 1:
        values |= {
            f"{metric}/{name}": value
            for name in scores
            if name
            for metric, value in scores[name].items()
        }
        values |= {
            f"{metric}/mean": float(np.mean([record[metric] for record in scores.values()]))
            for metric in main
        }
    return values


def read_texts(config: Config, decoder: TextDecoder) -> Texts:
    """Reads the first `training.eval_sentences` of a validation set, given its configuration and
    any set's decoder.
    """
    texts, references = source.read_pairs(config.data, "valid")
    count = config.training.eval_sentences or len(texts)
    return Texts(
        texts[:count], references[:count], decoder.with_tag(source_tag(config.data)), config.data
    )


def make_batches(config: Config, corpora: Sequence[Corpus], train: Corpus) -> dict[str, Batches]:
    """Returns the batches of each validation set by name, and by "train_loss/NAME" those of each
    part of a mixture.
    """
    chosen = {
        name: (x, np.arange(len(x))) for name, x in zip(held_out_sets(config), corpora, strict=True)
    }
    first = 0
    # only the parts of a mixture have names
    for name, count in zip(train.names, train.report["parts"], strict=False):
        taken = min(count, TRAINING_SAMPLE)
        chosen[f"train_loss/{name}"] = train, first + np.arange(taken) * count // taken
        first += count
    plans = loader.plan_in_order(list(chosen.values()), config)
    return {name: Batches(chosen[name][0], plan) for name, plan in zip(chosen, plans, strict=True)}
