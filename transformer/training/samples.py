"""Sentences of the validation split whose translations and attention are shown at each validation."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformer.config_types import Config
from transformer.decoding.activations import Attention, attention_compilation
from transformer.decoding.replicas import Replicas
from transformer.decoding.scoring import is_scorable, longest_text
from transformer.decoding.text_decoder import TextDecoder
from transformer.training.objectives import OBJECTIVES

MAX_TOKENS = 40  # of a text; the maps of longer ones cannot be read


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
        abstract = Replicas.abstract(self.decoder.graphs, parameters)
        return [attention_compilation(self.decoder, abstract, source, target) for _, source, target in self.pairs]

    def take(self, parameters: Replicas, translations: Sequence[str]) -> list[Sample]:
        """Returns the samples, given the translations of all texts."""
        samples = []
        for i, source, reference in self.pairs:
            attention = self.decoder.attention(parameters, source, reference) if self.has_attention else None
            samples.append(Sample(source, reference, translations[i], attention))
        return samples
