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
from transformer.data.batches.collation import Batch, assemble_batch, place_batch
from transformer.data.batches.epoch_plan import EpochPlan, PlannedBatch
from transformer.data.corpus import corpus
from transformer.data.corpus.corpus import Corpus
from transformer.data.languages import source_tag
from transformer.data.sources import source
from transformer.data.sources.mixture import held_out_sets
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.metrics import applicable, metrics_in
from transformer.decoding.text_decoder import TextDecoder
from transformer.distributed.mesh import make_mesh
from transformer.support.errors import UserError, memory_advice
from transformer.support.programs import Programs
from transformer.training.loss import LossSums
from transformer.training.objectives import OBJECTIVES
from transformer.training.progress import Record, per_token_means

# The beginning of the names of losses of training corpora. The loss of each corpus of a mixture is
# reported for a sample of TRAINING_SAMPLE pairs, without dropout.
TRAIN_LOSS = "train_loss/"
TRAINING_SAMPLE = 500


def check_lengths(config: Config, corpus: Corpus, split: str) -> None:
    """Logs a warning if the loss of a held-out split leaves out long pairs.

    Raises UserError if it leaves out all.
    """
    max_length = config.data.max_length
    name = f"data.{split}_split={config.data[f'{split}_split']}"
    count = np.count_nonzero(corpus.lengths.max(axis=1) > max_length)
    if count == len(corpus):
        raise UserError(
            f"config.data.max_length={max_length}: all sentences of {name} are longer; raise it"
        )
    if count:
        logging.warning(
            "%s: the loss leaves out %d of %d sentences, longer than config.data.max_length=%d "
            "tokens.",
            name,
            count,
            len(corpus),
            max_length,
        )


class EvalStep:
    """Maps (parameters, batch) to the sums over the batch, without dropout.

    masked_lm masks the same tokens at each evaluation.
    """

    def __init__(self, config: Config, graph: nnx.GraphDef, mesh: Mesh, pieces: Sequence[str]):
        """`pieces` are the strings of the source's tokens."""
        objective = OBJECTIVES[config.training.objective]
        self.graph = graph
        self.mesh = mesh
        self.inputs = objective.make_inputs(config.training, pieces)
        self.loss = objective.make_loss(config.training, mesh)
        self.sums = jax.jit(self._sums)
        self.programs = Programs()

    def __call__(self, parameters: dict, batch: Batch) -> LossSums:
        return self.programs.run(self.sums, parameters, batch)

    def over_batches(
        self,
        parameters: dict,
        held_out: "ValidationBatches",
        between_batches: Callable[[], None],
    ) -> Record:
        """Returns the means over all tokens of a held-out set.

        `between_batches` is called before each batch.
        """
        # The sums stay on the device until the end, so that no batch waits for the one before.
        sums = None
        with memory_advice(
            "for the loss of a held-out split, lower config.batch.tokens or config.data.max_length"
        ):
            for batch in held_out.epoch_plan:
                between_batches()
                part = self(parameters, self.place(held_out.corpus, batch))
                sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
            return per_token_means(dataclasses.asdict(jax.device_get(sums)))

    def place(self, corpus: Corpus, batch: PlannedBatch) -> Batch:
        """Returns the arrays of a batch, without the annotations of training pairs."""
        arrays = assemble_batch(corpus, batch)
        for annotation in ("target_weights", "links", "rewards"):
            arrays.pop(annotation, None)
        return place_batch(arrays, self.mesh)

    def _sums(self, parameters: dict, batch: Batch) -> LossSums:
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            # A constant key, so that masks are the same at each evaluation.
            batch = self.inputs(batch, jax.random.key(0))
            model = nnx.merge(self.graph, nnx.State(parameters))
            _, sums = self.loss(model, batch, None)
            return sums


class ValidationBatches(NamedTuple):
    """The batches of a held-out set, or of a sample of a training corpus."""

    corpus: Corpus
    epoch_plan: EpochPlan


def held_out_means(
    config: Config,
    tokenizer: Tokenizer,
    graph: nnx.GraphDef,
    parameters: dict,
    split: str,
) -> Record:
    """Returns a split's means over tokens, as in validation, on one device.

    Raises UserError without usable data.
    """
    # The mesh of the run may not fit the devices that are present.
    config = with_values(config, {"mesh.data": 1, "mesh.fsdp": 1, "mesh.tensor": 1})
    make_corpus = OBJECTIVES[config.training.objective].make_corpus
    held_out = make_corpus(corpus.prepare(config, tokenizer, split), config, tokenizer)
    check_lengths(config, held_out, split)
    mesh = make_mesh(config, jax.local_devices()[:1])
    step = EvalStep(config, graph, mesh, tokenizer.source.pieces)
    parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
    (epoch_plan,) = loader.plan_in_order([(held_out, np.arange(len(held_out)))], config)
    return step.over_batches(parameters, ValidationBatches(held_out, epoch_plan), lambda: None)


class ValidationTexts(NamedTuple):
    """The texts of a validation set with their references, and the decoder for them."""

    texts: list[str]
    references: list[str]
    decoder: TextDecoder
    data_config: Config  # of the set


def metric_names(config: Config) -> list[str]:
    """Returns the names of the scores of a validation.

    Each of them may be `checkpoint.best_metric`.
    """
    metrics = list(per_token_means(Counter()))
    if config.training.eval_bleu:
        metrics += applicable(metrics_in("validation"), config.data.target_form)
    return list(name_scores({name: dict.fromkeys(metrics, 0.0) for name in held_out_sets(config)}))


def name_scores(scores: dict[str, Record]) -> Record:
    """Returns the scores of all sets by name.

    The names are METRIC for the main set, whose key is "", METRIC/NAME for the set NAME, and
    METRIC/mean for the means over all sets. Training corpora only have their `TRAIN_LOSS`.
    """
    sets = {name: scores[name] for name in scores if not name.startswith(TRAIN_LOSS)}
    values = {}
    for name, record in sets.items():
        for metric, value in record.items():
            values[f"{metric}/{name}" if name else metric] = value
    if len(sets) > 1:
        for metric in sets[""]:
            values[f"{metric}/mean"] = float(np.mean([record[metric] for record in sets.values()]))
    return values | {name: scores[name]["loss"] for name in scores if name not in sets}


def read_texts(config: Config, decoder: TextDecoder) -> ValidationTexts:
    """Reads the first `training.eval_sentences` of a validation set.

    `config` is the configuration of the set, and `decoder` the decoder of any set.
    """
    texts, references = source.read_pairs(config.data, "valid")
    count = config.training.eval_sentences or len(texts)
    tagging_decoder = decoder.with_tag(source_tag(config.data))
    return ValidationTexts(texts[:count], references[:count], tagging_decoder, config.data)


def make_batches(
    config: Config, corpora: Sequence[Corpus], train: Corpus
) -> dict[str, ValidationBatches]:
    """Returns the batches of each validation set by name.

    The batches of a sample of the part NAME of a mixture have the name `TRAIN_LOSS` + NAME.
    """
    pairs = {}
    for name, valid in zip(held_out_sets(config), corpora, strict=True):
        pairs[name] = valid, np.arange(len(valid))

    # The sample of a part takes pairs at equal distances.
    first = 0
    # Only the parts of a mixture have names.
    for name, count in zip(train.names, train.report["parts"], strict=False):
        size = min(count, TRAINING_SAMPLE)
        pairs[TRAIN_LOSS + name] = train, first + np.arange(size) * count // size
        first += count

    epoch_plans = loader.plan_in_order(list(pairs.values()), config)
    return {
        name: ValidationBatches(pairs[name][0], epoch_plan)
        for name, epoch_plan in zip(pairs, epoch_plans, strict=True)
    }
