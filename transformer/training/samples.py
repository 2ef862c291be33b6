"""Sentences of the validation split whose translations and attention are shown at each validation."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from flax import nnx

from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.inspection import Attention, Inspector
from transformer.decoding.replicas import Replicas
from transformer.decoding.scoring import longest_text
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

    def __init__(
        self,
        config: Config,
        graph: nnx.GraphDef,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        references: Sequence[str],
    ):
        """`texts` and `references` are those that validation translates. Some objectives' models have no attention."""
        longest = min(MAX_TOKENS, longest_text(config.decoding))

        def is_short(pair: tuple[int, str, str]) -> bool:
            sides = zip(tokenizer.sides, pair[1:], strict=True)
            return all(len(side.encode([text])[0]) < longest for side, text in sides)

        pairs = zip(itertools.count(), texts, references)
        self.pairs = list(itertools.islice(filter(is_short, pairs), config.training.samples))
        self.inspector = None
        if "attention" in OBJECTIVES[config.training.objective].methods:
            self.inspector = Inspector(graph, tokenizer, config.decoding, jax.local_devices())

    def compilations(self, abstract: tuple[dict, ...]) -> list[Callable[[], object]]:
        """Returns functions that each compile a program of `take`, given the shapes of `Replicas.abstract`."""
        if self.inspector is None:
            return []
        return [self.inspector.compilation(abstract, source, target) for _, source, target in self.pairs]

    def take(self, replicas: Replicas, translations: Sequence[str]) -> list[Sample]:
        """Returns the samples, given the translations of all texts."""
        attentions = [self._attention(replicas, source, target) for _, source, target in self.pairs]
        return [
            Sample(source, reference, translations[i], attention)
            for (i, source, reference), attention in zip(self.pairs, attentions, strict=True)
        ]

    def _attention(self, replicas: Replicas, source: str, target: str) -> Attention | None:
        return None if self.inspector is None else self.inspector.attention(replicas, source, target)
