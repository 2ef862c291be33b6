"""The objectives that `training.objective` can name: a model, and what it reads and predicts in a batch."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, Key

from transformer.config_types import Config
from transformer.data.batches.collation import Batch
from transformer.model.ctc import CtcTransformer
from transformer.model.language_models import LanguageModel, MaskedLanguageModel
from transformer.model.transformer import Transformer
from transformer.special_tokens import BOS, PAD, SPECIAL
from transformer.training.ctc_loss import CtcLoss
from transformer.training.projected_loss import ProjectedLoss

MASK = BOS  # the input in place of a masked token; no source has BOS
# Of the chosen tokens, the shares that become MASK and a random token; the others stay (Devlin et al. 2019, 3.1).
MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1

Inputs = Callable[[Batch, jax.Array], Batch]  # (batch of the loader, key) to the model's inputs and `target_output`


class TrainingObjective(NamedTuple):
    """One way to train.

    sides: whether the pairs have a source and a target; the other side of monolingual text is absent.
    make_model(config.model, source_vocab_size, target_vocab_size, rngs): a module with `hidden` and `output_table`.
    make_inputs(config.training, pieces): see `inputs_of`.
    generates_text: whether the model can be searched for translations or continuations.
    make_loss(config.training, mesh): the loss as a function of the model and its inputs and targets.
    stack_lengths(config.model, source_length, target_length): the positions of a row in the encoder and the decoder; 0
      in a stack that the model does not have.
    """

    sides: tuple[bool, bool]
    make_model: Callable[[Config, int, int, nnx.Rngs], nnx.Module]
    make_inputs: Callable[[Config, Sequence[str]], Inputs]
    generates_text: bool
    make_loss: Callable[[Config, Mesh], ProjectedLoss | CtcLoss] = ProjectedLoss.from_config
    stack_lengths: Callable[[Config, int, int], tuple[int, int]] = lambda model, source, target: (source, target)

    @property
    def translates(self) -> bool:
        return all(self.sides)


def inputs_of(config: Config, pieces: Sequence[str]) -> Inputs:
    """Returns the function from batches of the loader to those of the model. `pieces`: the source's tokens."""
    return OBJECTIVES[config.training.objective].make_inputs(config.training, pieces)


def keep_batch(batch: Batch, key: Key[Array, ""]) -> Batch:
    """Returns the batch, in which all inputs and targets are given."""
    return batch


def make_masking(training: Config, pieces: Sequence[str]) -> Inputs:
    """Returns a function that masks tokens of the source and makes them the targets."""
    starts = word_starts(pieces) if training.whole_word_masking else np.ones(len(pieces), bool)

    def inputs(batch: Batch, key: jax.Array) -> Batch:
        source, targets = mask_tokens(batch["source"], starts, training.masked_fraction, key)
        return batch | {"source": source, "target_output": targets}

    return inputs


def mask_tokens(
    tokens: Int[Array, "B S"], starts: Bool[np.ndarray, "V"], fraction: float, key: Key[Array, ""]
) -> tuple[Int[Array, "B S"], Int[Array, "B S"]]:
    """Returns (inputs, targets): the tokens with some masked, and the masked ones at their positions, PAD elsewhere.

    Args:
      starts: for each token of the vocabulary, whether it begins a word. All tokens of a word are masked, or none.
      fraction: the probability that a word is masked.
    """
    of_words, of_kinds, of_tokens = jax.random.split(key, 3)
    words = jnp.maximum(jnp.cumsum(jnp.asarray(starts)[tokens], axis=1) - 1, 0)
    draws = jnp.take_along_axis(jax.random.uniform(of_words, tokens.shape), words, axis=1)
    is_chosen = (draws < fraction) & (tokens >= SPECIAL)
    kinds = jax.random.uniform(of_kinds, tokens.shape)
    others = jax.random.randint(of_tokens, tokens.shape, SPECIAL, len(starts))
    kept_or_random = jnp.where(kinds < MASKED_SHARE + RANDOM_SHARE, others, tokens)
    replaced = jnp.where(kinds < MASKED_SHARE, MASK, kept_or_random)
    return jnp.where(is_chosen, replaced, tokens), jnp.where(is_chosen, tokens, PAD)


def word_starts(pieces: Sequence[str]) -> Bool[np.ndarray, "V"]:
    """Returns whether each token begins a word. In a vocabulary that marks no beginnings, each token is a word."""
    starts = np.array([piece.startswith("\u2581") for piece in pieces])
    return starts if starts.any() else np.ones(len(pieces), bool)


# The names that `training.objective` can have.
OBJECTIVES = {
    # Predicts each target token from the source and the target tokens before it.
    "translation": TrainingObjective(
        (True, True),
        lambda model, source, target, rngs: Transformer(model, source, target, rngs=rngs),
        lambda training, pieces: keep_batch,
        generates_text=True,
    ),
    # Predicts masked tokens of the source, by the encoder only.
    "masked_lm": TrainingObjective(
        (True, False),
        lambda model, source, target, rngs: MaskedLanguageModel(model, source, rngs=rngs),
        make_masking,
        generates_text=False,
    ),
    # Predicts each target token from those before it, by the decoder only.
    "causal_lm": TrainingObjective(
        (False, True),
        lambda model, source, target, rngs: LanguageModel(model, target, rngs=rngs),
        lambda training, pieces: keep_batch,
        generates_text=True,
    ),
    # Predicts all target tokens at once, by the encoder only.
    "ctc": TrainingObjective(
        (True, True),
        lambda model, source, target, rngs: CtcTransformer(model, source, target, rngs=rngs),
        lambda training, pieces: keep_batch,
        generates_text=True,
        make_loss=lambda training, mesh: CtcLoss(mesh),
        stack_lengths=lambda model, source, target: (model.ctc_frames * source, 0),
    ),
}
