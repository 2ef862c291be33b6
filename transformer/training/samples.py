"""Samples of a validation: a few sentences with their translations and the model's attention."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformer.config.types import Config
from transformer.decoding.batches import Replicas
from transformer.decoding.forced_decoding import (
    Attention,
    attention_compilation,
    is_scorable,
    read_pair,
)
from transformer.decoding.translation import Translation
from transformer.training.held_out import ValidationTexts
from transformer.training.objectives import OBJECTIVES

MAX_TOKENS = 40  # the attention maps of longer sentences cannot be read


class ValidationSample(NamedTuple):
    """A sentence with its translation, and the attention of the model that reads the reference."""

    source: str
    reference: str
    translation: str
    attention: Attention | None  # None for objectives whose models have none


class SampledPairs:
    """The first short pairs of a validation set, the same at each validation."""

    def __init__(self, training_config: Config, held_out: ValidationTexts):
        self.decoder = held_out.decoder
        self.has_attention = "attention" in OBJECTIVES[training_config.objective].methods

        # The pairs by their numbers in the set.
        pairs = enumerate(zip(held_out.texts, held_out.references, strict=True))
        short_pairs = (
            (number, pair)
            for number, pair in pairs
            if pair[0].strip() and is_scorable(self.decoder, pair, MAX_TOKENS)
        )
        self.pairs = dict(itertools.islice(short_pairs, training_config.samples))

    def compilations(self, parameters: tuple[dict, ...]) -> list[Callable[[], object]]:
        """Returns functions that each compile a program. The parameters may be abstract."""
        pairs = self.pairs.values() if self.has_attention else ()
        return [attention_compilation(self.decoder, parameters, *pair) for pair in pairs]

    def read(
        self, replicas: Replicas, translations: Sequence[Translation]
    ) -> list[ValidationSample]:
        """Returns the samples, given the translations of the whole set."""
        samples = []
        for number, pair in self.pairs.items():
            attention = read_pair(self.decoder, replicas, *pair) if self.has_attention else None
            samples.append(ValidationSample(*pair, translations[number].text, attention))
        return samples
