"""Validation: loss and BLEU of held-out data, which select checkpoints."""

import functools
import itertools
from collections.abc import Callable, Sequence

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from transformer.config.types import Config, with_changes
from transformer.data.batches.collation import abstract_batch
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.corpus.corpus import Corpus
from transformer.data.sources.mixture import held_out_sets
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.decoders import make_decoder
from transformer.decoding.evaluation import translate_and_score
from transformer.decoding.metrics import applicable, metrics_in
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
from transformer.training.memory import sort_by_memory
from transformer.training.progress import Record
from transformer.training.samples import SampledPairs, ValidationSample


def validation_strategy(strategy: str) -> str:
    """Returns the strategy of validation for a strategy of decoding.

    Beam search replaces sampling, because samples are no measure of a model.
    """
    return "beam" if STRATEGIES[strategy].samples else strategy


class Validation:
    """Teacher-forced loss of the sets, and BLEU of their translations.

    `evaluate` calls the same functions. The loss leaves out pairs that are longer than
    `data.max_length`, with a warning; BLEU includes them. `name_scores` names the scores.
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
        """`corpora` are in the order of `held_out_sets`. `train` is the training corpus."""
        self.config = config
        self.mesh = mesh
        self.eval_step = EvalStep(config, graph, mesh, tokenizer.source.pieces)
        sets = held_out_sets(config)
        for set_config, corpus in zip(sets.values(), corpora, strict=True):
            check_lengths(set_config, corpus, "valid")
        self.batches = make_batches(config, corpora, train)

        self.decoder = None
        self.texts = {}
        if config.training.eval_bleu:
            decoding_config = with_changes(
                config.decoding,
                strategy=validation_strategy(config.decoding.strategy),
                beam_size=config.training.eval_beam_size,
            )
            self.decoder = make_decoder(
                config,
                decoding_config,
                graphs=[graph],
                tokenizer=tokenizer,
                devices=jax.local_devices(),
            )
            for name, set_config in sets.items():
                self.texts[name] = read_texts(set_config, self.decoder)
            self.samples = SampledPairs(config.training, self.texts[""])

    def compilations(self, parameters: dict) -> list[Callable[[], object]]:
        """Returns functions that each compile a program. The parameters may be abstract."""
        # The loss of each shape of a batch.
        sharding = NamedSharding(self.mesh, BATCH)
        compile_loss = functools.partial(
            self.eval_step.programs.compile, self.eval_step.sums, parameters
        )
        jobs: list[Callable[[], object]] = [
            functools.partial(compile_loss, abstract_batch(bucket, sharding))
            for bucket in self.buckets
        ]
        if self.decoder is None:
            return jobs

        # The searches of all texts, and the attention of the samples.
        abstract = self.decoder.abstract([parameters])
        lengths = []
        for held_out in self.texts.values():
            sources = held_out.decoder.source_tokens(held_out.texts)
            lengths += [len(source) for source in sources if source]
        jobs += self.decoder.compilations(abstract, lengths)
        # Only process 0 takes samples, but the processes agree on interruptions after each program
        # that they compile.
        return jobs + self.samples.compilations(abstract)

    @property
    def buckets(self) -> list[Bucket]:
        """The shapes of the batches, the one that needs most memory first."""
        shapes = itertools.chain.from_iterable(
            batches.epoch_plan.stats for batches in self.batches.values()
        )
        buckets = dict.fromkeys(shape.bucket for shape in shapes if shape.batches)
        return sort_by_memory(self.config, list(buckets))

    def warm_up(self, parameters: dict) -> None:
        """Runs the largest batch and the longest text, to fail early if memory is too small.

        On CPUs, runs only the batch: an untrained model ends no sentence, so its search takes the
        largest number of steps.
        """
        largest = self.buckets[0]
        corpus, batch = next(
            (corpus, batch)
            for corpus, epoch_plan in self.batches.values()
            for batch in epoch_plan
            if batch.bucket == largest
        )
        self.eval_step(parameters, self.eval_step.place(corpus, batch))
        if self.decoder is not None and self.mesh.devices.flat[0].platform != "cpu":
            texts = self.texts[""].texts
            index = max(range(len(texts)), key=lambda i: len(texts[i]))
            # Each process by itself, since each may have too little memory.
            replicas = self.decoder.place([parameters], self.mesh)
            self.decoder.translate(replicas, [texts[index]], first_line=index + 1)

    def __call__(
        self,
        parameters: dict,
        between_batches: Callable[[], None],
    ) -> tuple[Record, list[ValidationSample]]:
        """Returns the scores of the sets, and samples.

        An exception of `between_batches` ends the validation.
        """
        scores = {
            name: self.eval_step.over_batches(parameters, batches, between_batches)
            for name, batches in self.batches.items()
        }
        if self.decoder is None:
            return name_scores(scores), []

        # Translations of the sets, by the parameters in the form of decoding.
        samples: list[ValidationSample] = []
        replicas = self.decoder.place([parameters], self.mesh)
        metrics = applicable(metrics_in("validation"), self.config.data.target_form)
        for name, held_out in self.texts.items():
            with memory_advice(
                "for the translations of validation, lower config.decoding.batch_tokens"
            ):
                translated = translate_and_score(
                    held_out.decoder,
                    replicas,
                    held_out.texts,
                    [held_out.references],
                    held_out.data_config,
                    metrics,
                    lambda _: between_batches(),
                )
            scores[name] |= {metric: translated.scores[metric] for metric in metrics}
            if not name and jax.process_index() == 0:
                samples = self.samples.read(replicas, translated.translations)
        return name_scores(scores), samples
