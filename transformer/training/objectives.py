"""The objectives of `training.objective`: a model, its loss, and what other parts need to know."""

import functools
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.data.corpus.corpus import Corpus
from transformer.data.corpus.spans import mask_spans
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.model.embedding import TokenModel
from transformer.model.single_stack import CtcTransformer, LanguageModel, MaskedLanguageModel
from transformer.model.transformer import Transformer
from transformer.training.candidate_loss import CANDIDATE_LOSSES, CandidateLoss
from transformer.training.encoders import ctc_loss, make_masking
from transformer.training.guided_alignment import GuidedLoss
from transformer.training.loss import CriterionAndSums
from transformer.training.projected_loss import ProjectedLoss

# A function of (batch of the loader, key). It returns the model's inputs and `target_output`.
Inputs = Callable[[Batch, jax.Array], Batch]
# A function of (model, inputs and targets, rngs of dropout, or None in evaluation).
Loss = Callable[[Any, Batch, nnx.Rngs | None], CriterionAndSums]


def unchanged_corpus(corpus: Corpus, config: Config, tokenizer: Tokenizer) -> Corpus:
    return corpus


class TrainingObjective(NamedTuple):
    """One way to train.

    Samples and reports show translations and attention if `methods` has `translate` and
    `attention`. The `options` are the optional parts of the configuration that it supports:
    - packed (batch.plan), loss, label_smoothing, r_drop, candidate_loss
    - pair_weights and alignments (of data.mixture)
    - shortlist
    - decoder (model.decoder_start and decoder_self_attention)
    """

    # True if pairs have a source, and a target. An absent side has an empty language.
    sides: tuple[bool, bool]
    # A function of (config.model, source_vocab_size, target_vocab_size, rngs=rngs). It returns a
    # `TokenModel`.
    make_model: Callable[..., TokenModel]
    methods: AbstractSet[str] = frozenset()  # of `transformer.Model` that the model has
    options: AbstractSet[str] = frozenset()
    # The only decoding strategy of its models. None: every strategy that no objective requires.
    strategy: str | None = None
    make_loss: Callable[[Config, Mesh], Loss] = ProjectedLoss  # of (config.training, mesh)
    # The pairs of a corpus that the model reads: a function of (corpus, config, tokenizer).
    make_corpus: Callable[[Corpus, Config, Tokenizer], Corpus] = unchanged_corpus
    # of (config.training, the strings of the source's tokens)
    make_inputs: Callable[[Config, Sequence[str]], Inputs] = lambda training_config, pieces: (
        lambda batch, key: batch
    )
    # A function of (config.model, source_length, target_length). It returns the positions of a row
    # in the encoder and in the decoder.
    stack_lengths: Callable[[Config, int, int], tuple[int, int]] = (
        lambda model_config, source, target: (source, target)
    )

    @property
    def has_both_sides(self) -> bool:
        return all(self.sides)


def _make_translation_loss(training_config: Config, mesh: Mesh) -> Loss:
    if CANDIDATE_LOSSES[training_config.candidate_loss]:
        return CandidateLoss(training_config, mesh)
    make_loss = GuidedLoss if training_config.guided_heads else ProjectedLoss
    return make_loss(training_config, mesh)


# The names that `training.objective` can have.
OBJECTIVES = {
    # Predicts each target token from the source and the target tokens before it.
    "translation": TrainingObjective(
        sides=(True, True),
        make_model=Transformer,
        methods={
            "translate",
            "confidence",
            "alternatives",
            "score",
            "attention",
            "beam_tree",
            "encode",
        },
        options={
            "packed",
            "loss",
            "label_smoothing",
            "r_drop",
            "candidate_loss",
            "pair_weights",
            "alignments",
            "shortlist",
            "decoder",
        },
        make_loss=_make_translation_loss,
    ),
    # Predicts masked tokens of the source, by an encoder. R-Drop is not supported, because the
    # masks of its two passes would differ.
    "masked_lm": TrainingObjective(
        sides=(True, False),
        make_model=lambda model_config, source, target, rngs: MaskedLanguageModel(
            model_config, source, rngs=rngs
        ),
        methods={"encode"},
        options={"packed", "loss", "label_smoothing"},
        make_inputs=make_masking,
    ),
    # Predicts masked spans of the source, by an encoder and a decoder.
    "span_corruption": TrainingObjective(
        sides=(True, False),
        make_model=Transformer,
        methods={"encode"},
        options={"packed", "loss", "label_smoothing", "r_drop", "decoder"},
        make_corpus=mask_spans,
    ),
    # Predicts each target token from the tokens before it, by a decoder.
    "causal_lm": TrainingObjective(
        sides=(False, True),
        make_model=lambda model_config, source, target, rngs: LanguageModel(
            model_config, target, rngs=rngs
        ),
        methods={"translate", "beam_tree"},
        options={"packed", "loss", "label_smoothing", "r_drop", "pair_weights", "decoder"},
    ),
    # Predicts all target tokens at once, by an encoder that reads each source token several times.
    "ctc": TrainingObjective(
        sides=(True, True),
        make_model=CtcTransformer,
        methods={"translate"},
        strategy="ctc",
        make_loss=lambda training_config, mesh: functools.partial(ctc_loss, mesh),
        stack_lengths=lambda model_config, source, target: (model_config.ctc_frames * source, 0),
    ),
}
