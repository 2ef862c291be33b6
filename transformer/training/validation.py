"""Validation: loss and BLEU on the validation split, which select checkpoints."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import ml_collections
from flax import nnx
from jax.sharding import Mesh

from transformer.config_types import Config
from transformer.data.batches import loader
from transformer.data.corpus.corpus import Corpus
from transformer.data.sources import source
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.batches import Replicas
from transformer.decoding.bleu import metrics_in
from transformer.decoding.evaluation import translate_and_score
from transformer.decoding.forced_decoding import Attention, attention_compilation, is_scorable, longest_text
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.text_decoder import TextDecoder
from transformer.errors import memory_advice
from transformer.training.eval_step import EvalStep, check_lengths
from transformer.training.memory import by_memory
from transformer.training.metrics import Record
from transformer.training.objectives import OBJECTIVES, Inputs

MAX_TOKENS = 40  # of a text; the maps of longer ones cannot be read


def validation_strategy(strategy: str) -> str:
    """Returns the strategy of validation, given that of decoding: samples are no measure of a model."""
    return "beam" if STRATEGIES[strategy].samples else strategy


class Sample(NamedTuple):
    """A sentence with its translation, and the attention of the model that reads the reference."""

    source: str
    reference: str
    translation: str
    attention: Attention | None


class Samples:
    """The first short sentences of the validation split, the same at each validation."""

    def __init__(self, config: Config, decoder: TextDecoder, texts: Sequence[str], references: Sequence[str]):
        """`texts` and `references` are those that validation translates. Some objectives' models have no attention."""
        self.decoder, longest = decoder, min(MAX_TOKENS, longest_text(config.decoding))
        pairs = zip(itertools.count(), texts, references)
        short = (pair for pair in pairs if is_scorable(decoder.tokenizer, pair[1:], longest))
        self.pairs = list(itertools.islice(short, config.training.samples))
        self.has_attention = "attention" in OBJECTIVES[config.training.objective].methods

    def compilations(self, parameters: Sequence[dict]) -> list[Callable[[], object]]:
        """Returns functions that each compile a program of `take`; arrays may be abstract."""
        if not self.has_attention:
            return []
        abstract = self.decoder.abstract(parameters)
        return [attention_compilation(self.decoder, abstract, *texts) for _, *texts in self.pairs]

    def take(self, parameters: Replicas, translations: Sequence[str]) -> list[Sample]:
        """Returns the samples, given the translations of all texts."""
        samples = []
        for i, text, reference in self.pairs:
            attention = self.decoder.attention(parameters, text, reference) if self.has_attention else None
            samples.append(Sample(text, reference, translations[i], attention))
        return samples


class Validation:
    """Teacher-forced loss of the split, and BLEU of its translations by the functions that `evaluate` calls.

    The loss leaves out pairs that are longer than `data.max_length`, with a warning; BLEU is of all.
    """

    def __init__(
        self, config: Config, graph: nnx.GraphDef, mesh: Mesh, tokenizer: Tokenizer, corpus: Corpus, inputs: Inputs
    ):
        check_lengths(config, tokenizer, corpus, "valid")
        self.config, self.graph, self.mesh, self.corpus = config, graph, mesh, corpus
        self.eval_step = EvalStep(config, graph, mesh, inputs)
        self.decoder = None
        if config.training.eval_bleu:
            decoding = ml_collections.ConfigDict(config.decoding)
            strategy = validation_strategy(config.decoding.strategy)
            decoding.update(strategy=strategy, beam_size=config.training.eval_beam_size)
            self.decoder = TextDecoder([graph], tokenizer, decoding, jax.local_devices())
            texts, references = source.read_pairs(config.data, "valid")
            count = config.training.eval_sentences or len(texts)
            self.texts, self.references = texts[:count], references[:count]
            self.samples = Samples(config, self.decoder, self.texts, self.references)

    def compilations(self, parameters: dict) -> list[Callable[[], object]]:
        """Returns functions that each compile a program of the validation."""
        plan = loader.plan_in_order(self.corpus, self.config)
        jobs = self.eval_step.compilations(parameters, [stats.bucket for stats in plan.stats if stats.batches])
        if self.decoder is not None:
            jobs += self.decoder.compilations([parameters], self.texts)
            # Only process 0 takes samples, but the processes agree on interruptions after each program they compile.
            jobs += self.samples.compilations([parameters])
        return jobs

    def warm_up(self, parameters: dict) -> None:
        """Runs the largest batch and the longest text, so that what does not fit in memory fails early.

        On CPUs, runs only the batch: an untrained model ends no sentence, so its search takes as long as many steps.
        """
        plan = loader.plan_in_order(self.corpus, self.config)
        buckets = [stats.bucket for stats in plan.stats if stats.batches]
        largest = by_memory(self.config, buckets, self.mesh.abstract_mesh)[0]
        batch = next(plan[number] for number in range(len(plan)) if plan[number].bucket == largest)
        self.eval_step(parameters, loader.place(self.corpus, batch, self.mesh))
        if self.decoder is not None and self.mesh.devices.flat[0].platform != "cpu":
            index = max(range(len(self.texts)), key=lambda i: len(self.texts[i]))
            # Each process by itself, since each may have too little memory.
            self.decoder.translate(self._replicas(parameters), [self.texts[index]], first_line=index + 1)

    def __call__(self, parameters: dict, between_batches: Callable[[], None]) -> tuple[Record, list[Sample]]:
        """Returns the scores of the split, and samples. An exception of `between_batches` ends the validation."""
        samples, values = [], self.eval_step.over_corpus(parameters, self.corpus, between_batches)
        if self.decoder is not None:
            metrics, replicas = metrics_in("validation"), self._replicas(parameters)
            with memory_advice("for the translations of validation, lower config.decoding.batch_tokens"):
                translated = translate_and_score(
                    *(self.decoder, replicas, self.texts, [self.references], self.config.data, metrics),
                    lambda _: between_batches(),
                )
            values |= {name: translated.scores[name] for name in metrics}
            if jax.process_index() == 0:
                samples = self.samples.take(replicas, translated.hypotheses)
        return values, samples

    def _replicas(self, parameters: dict) -> Replicas:
        return self.decoder.place([parameters], self.mesh)
