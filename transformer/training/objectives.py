"""The objectives that `training.objective` can name: a model, its loss, and what other parts ask
about it.
"""

import functools
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.model.single_stack import CtcTransformer, LanguageModel, MaskedLanguageModel
from transformer.model.transformer import Transformer
from transformer.training.encoders import ctc_loss, make_masking
from transformer.training.guided_alignment import GuidedLoss
from transformer.training.loss import LossSums
from transformer.training.projected_loss import ProjectedLoss

# (batch of the loader, key) to the model's inputs and `target_output`
Inputs = Callable[[Batch, jax.Array], Batch]
# (model, inputs and targets, rngs of dropout; None: evaluation) to the summed criterion and what a
# step reports
Loss = Callable[[nnx.Module, Batch, nnx.Rngs | None], tuple[jax.Array, LossSums]]


class TrainingObjective(NamedTuple):
    """One way to train.

    Samples and reports show translations and attention if `methods` has `translate` and
    `attention`. The `options` are the optional parts of the configuration that it supports, among
    packed (batch.plan), label_smoothing, r_drop, pair_weights and alignments (of data.mixture),
    shortlist and decoder (model.decoder_start and decoder_self_attention).
    """

    # whether pairs have a source and a target; an absent side has an empty language
    sides: tuple[bool, bool]
    # (config.model, source_vocab_size, target_vocab_size, rngs=rngs) to a `TokenModel`
    make_model: Callable[..., nnx.Module]
    methods: AbstractSet[str] = frozenset()  # of `transformer.Model` that the model has
    options: AbstractSet[str] = frozenset()
    # the decoding strategy of its models only; None: any that no objective has as its own
    strategy: str | None = None
    make_loss: Callable[[Config, Mesh], Loss] = ProjectedLoss  # of (config.training, mesh)
    # (config.training, the strings of the source's tokens) to `Inputs`
    make_inputs: Callable[[Config, Sequence[str]], Inputs] = lambda training, pieces: (
        lambda batch, key: batch
    )
    # (config.model, source_length, target_length) to the positions of a row in the encoder and the
    # decoder
    stack_lengths: Callable[[Config, int, int], tuple[int, int]] = lambda model, source, target: (
        source,
        target,
    )

    @property
    def translates(self) -> bool:
        return all(self.sides)


# The names that `training.objective` can have.
OBJECTIVES = {
    # Predicts each target token from the source and the target tokens before it.
    "translation": TrainingObjective(
        (True, True),
        Transformer,
        {"translate", "alternatives", "score", "attention", "beam_tree", "encode"},
        {
            "packed",
            "label_smoothing",
            "r_drop",
            "pair_weights",
            "alignments",
            "shortlist",
            "decoder",
        },
        make_loss=lambda training, mesh: (GuidedLoss if training.guided_heads else ProjectedLoss)(
            training, mesh
        ),
    ),
    # Predicts masked tokens of the source, by the encoder only. The masks of R-Drop's two passes
    # would differ.
    "masked_lm": TrainingObjective(
        (True, False),
        lambda model, source, target, rngs: MaskedLanguageModel(model, source, rngs=rngs),
        {"encode"},
        {"packed", "label_smoothing"},
        make_inputs=make_masking,
    ),
    # Predicts each target token from those before it, by the decoder only.
    "causal_lm": TrainingObjective(
        (False, True),
        lambda model, source, target, rngs: LanguageModel(model, target, rngs=rngs),
        {"translate", "beam_tree"},
        {"packed", "label_smoothing", "r_drop", "pair_weights", "decoder"},
    ),
    # Predicts all target tokens at once, by the encoder only, which reads each token several times.
    "ctc": TrainingObjective(
        (True, True),
        CtcTransformer,
        {"translate"},
        strategy="ctc",
        make_loss=lambda training, mesh: functools.partial(ctc_loss, mesh),
        stack_lengths=lambda model, source, target: (model.ctc_frames * source, 0),
    ),
}
