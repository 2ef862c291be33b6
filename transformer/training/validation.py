"""Validation: loss and BLEU of held-out data, which select checkpoints."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from transformer.config.types import Config, with_changes
from transformer.data.batches.collation import abstract_batch
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.corpus.corpus import Corpus
from transformer.data.sources.mixture import held_out_sets
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.bleu import metrics_in
from transformer.decoding.decoders import make_decoder
from transformer.decoding.evaluation import translate_and_score
from transformer.decoding.forced_decoding import (
    Attention,
    attention_compilation,
    is_scorable,
    read_pair,
)
from transformer.decoding.strategies import STRATEGIES
from transformer.distributed.mesh import BATCH
from transformer.support.errors import memory_advice
from transformer.training.held_out import (
    EvalStep,
    check_lengths,
    make_batches,
    name_scores,
    read_texts,
)
from transformer.training.memory import by_memory
from transformer.training.objectives import OBJECTIVES
from transformer.training.progress import Record

MAX_TOKENS = 40  # of a sample; the attention maps of longer ones cannot be read


def validation_strategy(strategy: str) -> str:
    """Returns the strategy of validation, given that of decoding: samples are no measure of a
    model.
    """
    return "beam" if STRATEGIES[strategy].samples else strategy


class Sample(NamedTuple):
    """A sentence with its translation, and the attention of the model that reads the reference."""

    source: str
    reference: str
    translation: str
    attention: Attention | None  # None for objectives whose models have none


class Validation:
    """Teacher-forced loss of the sets, and BLEU of their translations by the functions that
    `evaluate` calls.

    The loss leaves out pairs that are longer than `data.max_length`, with a warning; BLEU is of
    all. The samples are the first short sentences, the same at each validation. Scores of the set
    NAME end with /NAME, and their means over all sets with /mean. `train_loss/NAME` is the loss of
    a sample of a corpus of the mixture, without dropout.
    """

    def __init__(
        self,
        config: Config,
        graph: nnx.GraphDef,
        mesh: Mesh,
        tokenizer: Tokenizer,
        corpora: Sequence[Corpus],
        train: Corpus,
    ):
        """`corpora`: those of `held_out_sets`, in their order. `train`: the training corpus."""
        self.config, self.graph, self.mesh = config, graph, mesh
        self.eval_step = EvalStep(config, graph, mesh, tokenizer.source.pieces)
        sets, self.decoder, self.texts = held_out_sets(config), None, {}
        for set_config, corpus in zip(sets.values(), corpora, strict=True):
            check_lengths(set_config, corpus, "valid")
        self.batches = make_batches(config, corpora, train)
        if config.training.eval_bleu:
            strategy, beam_size = (
                validation_strategy(config.decoding.strategy),
                config.training.eval_beam_size,
            )
            decoding = with_changes(config.decoding, strategy=strategy, beam_size=beam_size)
            self.decoder = make_decoder(config, [graph], tokenizer, decoding, jax.local_devices())
            self.texts = {
                name: read_texts(set_config, self.decoder) for name, set_config in sets.items()
            }
            short = (
                (number, *pair)
                for number, pair in enumerate(
                    zip(self.texts[""].texts, self.texts[""].references, strict=True)
                )
                if pair[0].strip() and is_scorable(self.decoder, pair, MAX_TOKENS)
            )
            self.samples = list(itertools.islice(short, config.training.samples))
            self.has_attention = "attention" in OBJECTIVES[config.training.objective].methods

    def compilations(self, parameters: dict) -> list[Callable[[], object]]:
        """Returns functions that each compile a program of the validation; arrays may be abstract."""
        sharding, eval_step = NamedSharding(self.mesh, BATCH), self.eval_step
        batches = [abstract_batch(bucket, sharding) for bucket in self.buckets]
        jobs = [
            functools.partial(eval_step.programs.compile, eval_step.sums, parameters, batch)
            for batch in batches
        ]
        if self.decoder is not None:
            abstract = self.decoder.abstract([parameters])
            sources = (
                held_out.decoder.source_tokens(held_out.texts, 1)
                for held_out in self.texts.values()
            )
            lengths = [len(source) for source in itertools.chain.from_iterable(sources) if source]
            jobs += self.decoder.compilations(abstract, lengths)
            # Only process 0 takes samples, but the processes agree on interruptions after each
            # program they compile.
            if self.has_attention:
                jobs += [
                    attention_compilation(self.decoder, abstract, *texts)
                    for _, *texts in self.samples
                ]
        return jobs

    @property
    def buckets(self) -> list[Bucket]:
        """The shapes of the batches, the one that needs most memory first."""
        used = (
            shape.bucket
            for batches in self.batches.values()
            for shape in batches.plan.stats
            if shape.batches
        )
        return by_memory(self.config, list(dict.fromkeys(used)))

    def warm_up(self, parameters: dict) -> None:
        """Runs the largest batch and the longest text, so that what does not fit in memory fails
        early.

        On CPUs, runs only the batch: an untrained model ends no sentence, so its search takes as
        long as many steps.
        """
        largest = self.buckets[0]
        every = (
            (batches.corpus, batch) for batches in self.batches.values() for batch in batches.plan
        )
        corpus, batch = next((corpus, batch) for corpus, batch in every if batch.bucket == largest)
        self.eval_step(parameters, self.eval_step.place(corpus, batch))
        if self.decoder is not None and self.mesh.devices.flat[0].platform != "cpu":
            texts = self.texts[""].texts
            index = max(range(len(texts)), key=lambda i: len(texts[i]))
            # Each process by itself, since each may have too little memory.
            replicas = self.decoder.place([parameters], self.mesh)
            self.decoder.translate(replicas, [texts[index]], first_line=index + 1)

    def __call__(
        self, parameters: dict, between_batches: Callable[[], None]
    ) -> tuple[Record, list[Sample]]:
        """Returns the scores of the sets, and samples.

        An exception of `between_batches` ends the validation.
        """
        scores = {
            name: self.eval_step.over_batches(parameters, batches, between_batches)
            for name, batches in self.batches.items()
        }
        losses = {
            name: scores.pop(name)["loss"] for name in [*scores] if name.startswith("train_loss/")
        }
        samples: list[Sample] = []
        if self.decoder is not None:
            metrics, replicas = (
                metrics_in("validation"),
                self.decoder.place([parameters], self.mesh),
            )
            for name, held_out in self.texts.items():
                with memory_advice(
                    "for the translations of validation, lower config.decoding.batch_tokens"
                ):
                    translated = translate_and_score(
                        *(
                            held_out.decoder,
                            replicas,
                            held_out.texts,
                            [held_out.references],
                            held_out.data,
                            metrics,
                        ),
                        lambda _: between_batches(),
                    )
                scores[name] |= {metric: translated.scores[metric] for metric in metrics}
                if not name and jax.process_index() == 0:
                    for number, *texts in self.samples:
                        attention = (
                            read_pair(self.decoder, replicas, *texts)
                            if self.has_attention
                            else None
                        )
                        samples.append(
                            Sample(*texts, translated.translations[number].text, attention)
                        )
        return name_scores(scores) | losses, samples
