"""Validation: loss and BLEU of held-out data, which select checkpoints."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config.loading import with_values
from transformer.config_types import Config
from transformer.data.batches import loader
from transformer.data.batches.collation import Batch, abstract_batch, place
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.corpus import corpus
from transformer.data.corpus.corpus import Corpus
from transformer.data.sources import source
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.bleu import metrics_in
from transformer.decoding.evaluation import translate_and_score
from transformer.decoding.forced_decoding import Attention, attention_compilation, is_scorable, longest_text, read_pair
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.text_decoder import TextDecoder
from transformer.distributed.mesh import BATCH, make_mesh
from transformer.errors import UserError, memory_advice
from transformer.programs import Programs
from transformer.training.loss import LossSums
from transformer.training.memory import by_memory
from transformer.training.objectives import OBJECTIVES
from transformer.training.progress import Record, means

MAX_TOKENS = 40  # of a sample; the attention maps of longer ones cannot be read
MEMORY_ADVICE = "for the loss of a held-out split, lower config.batch.tokens or config.data.max_length"


def check_lengths(config: Config, corpus: Corpus, split: str) -> None:
    """Warns of pairs of a held-out split that the loss leaves out. Raises UserError if it leaves out all."""
    longest, name = config.data.max_length, f"data.{split}_split={config.data[f'{split}_split']}"
    count = np.count_nonzero(corpus.lengths.max(axis=1) > longest)
    if count == len(corpus):
        raise UserError(f"config.data.max_length={longest}: all sentences of {name} are longer; raise it")
    if count:
        message = "%s: the loss leaves out %d of %d sentences, longer than config.data.max_length=%d tokens."
        logging.warning(message, name, count, len(corpus), longest)


class EvalStep:
    """Maps (parameters, batch) to the sums over the batch, without dropout. masked_lm always masks the same tokens."""

    def __init__(self, config: Config, graph: nnx.GraphDef, mesh: Mesh, pieces: Sequence[str]):
        """`pieces`: the strings of the source's tokens."""
        objective = OBJECTIVES[config.training.objective]
        self.config, self.graph, self.mesh = config, graph, mesh
        self.inputs = objective.make_inputs(config.training, pieces)
        self.loss = objective.make_loss(config.training, mesh)
        self.sums = jax.jit(self._sums)
        self.programs = Programs()

    def __call__(self, parameters: dict, batch: Batch) -> LossSums:
        return self.programs.run(self.sums, parameters, batch)

    def over_corpus(self, parameters: dict, corpus: Corpus, between_batches: Callable[[], None]) -> Record:
        """Returns the means over all tokens of a held-out corpus. `between_batches` is called before each batch."""
        sums = None
        with memory_advice(MEMORY_ADVICE):
            for batch in loader.plan_in_order(corpus, self.config):
                between_batches()
                part = self(parameters, place(corpus, batch, self.mesh))
                sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
            return means(dataclasses.asdict(jax.device_get(sums)))

    def _sums(self, parameters: dict, batch: Batch) -> LossSums:
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            batch = self.inputs(batch, jax.random.key(0))
            return self.loss(nnx.merge(self.graph, nnx.State(parameters)), batch, None)[1]


def held_out_means(config: Config, tokenizer: Tokenizer, graph: nnx.GraphDef, parameters: dict, split: str) -> Record:
    """Returns a split's means over tokens, as in validation, on one device. Raises UserError without usable data."""
    config = with_values(config, {"mesh.data": 1, "mesh.fsdp": 1, "mesh.tensor": 1})
    held_out = corpus.prepare(config, tokenizer, split)
    check_lengths(config, held_out, split)
    mesh = make_mesh(config, jax.local_devices()[:1])
    step = EvalStep(config, graph, mesh, tokenizer.source.pieces)
    parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
    return step.over_corpus(parameters, held_out, lambda: None)


def validation_strategy(strategy: str) -> str:
    """Returns the strategy of validation, given that of decoding: samples are no measure of a model."""
    return "beam" if STRATEGIES[strategy].samples else strategy


class Sample(NamedTuple):
    """A sentence with its translation, and the attention of the model that reads the reference."""

    source: str
    reference: str
    translation: str
    attention: Attention | None  # None for objectives whose models have none


class Validation:
    """Teacher-forced loss of the split, and BLEU of its translations by the functions that `evaluate` calls.

    The loss leaves out pairs that are longer than `data.max_length`, with a warning; BLEU is of all. The samples are
    the first short sentences, the same at each validation.
    """

    def __init__(self, config: Config, graph: nnx.GraphDef, mesh: Mesh, tokenizer: Tokenizer, corpus: Corpus):
        check_lengths(config, corpus, "valid")
        self.config, self.graph, self.mesh, self.corpus = config, graph, mesh, corpus
        self.plan = loader.plan_in_order(corpus, config)
        self.eval_step = EvalStep(config, graph, mesh, tokenizer.source.pieces)
        self.decoder = None
        if config.training.eval_bleu:
            decoding = ml_collections.ConfigDict(config.decoding)
            strategy = validation_strategy(config.decoding.strategy)
            decoding.update(strategy=strategy, beam_size=config.training.eval_beam_size)
            self.decoder = TextDecoder([graph], tokenizer, decoding, jax.local_devices())
            texts, references = source.read_pairs(config.data, "valid")
            count = config.training.eval_sentences or len(texts)
            self.texts, self.references = texts[:count], references[:count]
            longest = min(MAX_TOKENS, longest_text(config.decoding))
            pairs = enumerate(zip(self.texts, self.references, strict=True))
            short = ((number, *pair) for number, pair in pairs if is_scorable(tokenizer, pair, longest))
            self.samples = list(itertools.islice(short, config.training.samples))
            self.has_attention = "attention" in OBJECTIVES[config.training.objective].methods

    def compilations(self, parameters: dict) -> list[Callable[[], object]]:
        """Returns functions that each compile a program of the validation; arrays may be abstract."""
        sharding, eval_step = NamedSharding(self.mesh, BATCH), self.eval_step
        batches = [abstract_batch(bucket, sharding) for bucket in self.buckets]
        jobs = [functools.partial(eval_step.programs.compile, eval_step.sums, parameters, batch) for batch in batches]
        if self.decoder is not None:
            abstract, sources = self.decoder.abstract([parameters]), self.decoder.source_tokens(self.texts, 1)
            jobs += self.decoder.compilations(abstract, [len(source) for source in sources if source])
            # Only process 0 takes samples, but the processes agree on interruptions after each program they compile.
            if self.has_attention:
                jobs += [attention_compilation(self.decoder, abstract, *texts) for _, *texts in self.samples]
        return jobs

    @property
    def buckets(self) -> list[Bucket]:
        """The shapes of the batches, the one that needs most memory first."""
        return by_memory(self.config, [shape.bucket for shape in self.plan.stats if shape.batches])

    def warm_up(self, parameters: dict) -> None:
        """Runs the largest batch and the longest text, so that what does not fit in memory fails early.

        On CPUs, runs only the batch: an untrained model ends no sentence, so its search takes as long as many steps.
        """
        batch = next(batch for batch in self.plan if batch.bucket == self.buckets[0])
        self.eval_step(parameters, place(self.corpus, batch, self.mesh))
        if self.decoder is not None and self.mesh.devices.flat[0].platform != "cpu":
            index = max(range(len(self.texts)), key=lambda i: len(self.texts[i]))
            # Each process by itself, since each may have too little memory.
            replicas = self.decoder.place([parameters], self.mesh)
            self.decoder.translate(replicas, [self.texts[index]], first_line=index + 1)

    def __call__(self, parameters: dict, between_batches: Callable[[], None]) -> tuple[Record, list[Sample]]:
        """Returns the scores of the split, and samples. An exception of `between_batches` ends the validation."""
        samples, values = [], self.eval_step.over_corpus(parameters, self.corpus, between_batches)
        if self.decoder is not None:
            metrics, replicas = metrics_in("validation"), self.decoder.place([parameters], self.mesh)
            with memory_advice("for the translations of validation, lower config.decoding.batch_tokens"):
                translated = translate_and_score(
                    *(self.decoder, replicas, self.texts, [self.references], self.config.data, metrics),
                    lambda _: between_batches(),
                )
            values |= {name: translated.scores[name] for name in metrics}
            if jax.process_index() == 0:
                for number, *texts in self.samples:
                    attention = read_pair(self.decoder, replicas, *texts) if self.has_attention else None
                    samples.append(Sample(*texts, translated.hypotheses[number], attention))
        return values, samples
