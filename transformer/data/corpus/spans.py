"""Span corruption: texts with masked spans, and the spans as targets (Raffel et al. 2020, T5).

T5 joins sentences to texts of 512 tokens; here each sentence is a text. A masked span may begin and
end anywhere.
"""

import dataclasses
import random
import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from transformer.config.types import Config
from transformer.data.corpus.annotations import PairNumbers, Sequences
from transformer.data.corpus.corpus import Corpus
from transformer.data.corpus.encoding import end_sentences
from transformer.data.corpus.epoch import Epoch, mix
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.support.errors import UserError

SENTINEL = re.compile("\u2581?<extra_id_([0-9]+)>")  # in vocabularies of T5


class SpanMasking(NamedTuple):
    """The masked spans of a sentence: `fraction` of its tokens, `mean_length` tokens each.

    The n-th sentinel replaces the n-th span. There are at most as many spans as sentinels.
    """

    sentinels: list[int]
    fraction: float
    mean_length: float

    def counts(self, lengths: Int[np.ndarray, " N"]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the number of masked tokens and of spans of sentences with these lengths.

        Lengths do not count end-of-sentence.
        """
        longest = np.maximum(lengths - 1, 1)  # a target is not longer than a longer sentence
        num_masked = np.clip(np.rint(self.fraction * lengths), 1, longest).astype(int)
        num_spans = np.rint(num_masked / self.mean_length).astype(int)
        # At least one token is between two spans.
        most = np.minimum(np.maximum(lengths - num_masked, 1), len(self.sentinels))
        return num_masked, np.clip(num_spans, 1, most)

    def apply(self, tokens: list[int], seed: int) -> tuple[list[int], list[int]]:
        """Returns the source and the target of a sentence. The function is pure.

        The source is the sentence with a sentinel in place of each span. The target has each span
        after its sentinel.
        """
        counts = self.counts(np.array([len(tokens)]))
        num_masked, num_spans = np.concatenate(counts).tolist()
        generator = random.Random(seed)
        spans = _split(num_masked, num_spans, generator)
        # Only the text before the first span and after the last one may be empty.
        gaps = _split(len(tokens) - num_masked + 2, num_spans + 1, generator)
        gaps[0] -= 1

        source = []
        target = []
        end = 0
        for sentinel, gap, span in zip(self.sentinels, gaps, spans, strict=False):
            begin = end + gap
            source += [*tokens[end:begin], sentinel]
            end = begin + span
            target += [sentinel, *tokens[begin:end]]
        return source + tokens[end:], target


class SpanCorpus(Corpus):
    """A monolingual corpus as pairs: its sentences with masked spans, and the spans.

    The spans are a function of (seed, epoch, sentence). Outside of epochs, as in validation, they
    are the same every time.
    """

    def __init__(
        self, texts: Corpus, masking: SpanMasking, seeds: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(texts.folder)
        self.name = texts.name
        self.names = texts.names
        self.weights = texts.weights
        self._texts = texts
        self._masking = masking
        self._seeds = seeds  # seed and epoch

        # Both sides have a sentinel for each span, and end-of-sentence.
        lengths = texts.lengths[:, 0] - 1
        num_masked, num_spans = masking.counts(lengths)
        sides = [lengths - num_masked, num_masked]
        self.lengths: Int32[np.ndarray, "N 2"] = np.stack(
            [side + num_spans + 1 for side in sides], axis=1
        ).astype(np.int32)

    def sequences(self, side: int, pairs: PairNumbers) -> Sequences:
        """Returns the concatenated tokens of these sources or targets, and their lengths."""
        numbers = np.arange(len(self))[pairs]
        seeds = mix(*self._seeds, numbers).tolist()
        sentences = self._texts.sentences(0, numbers)
        masked = [
            self._masking.apply(tokens, seed)[side]
            for tokens, seed in zip(sentences, seeds, strict=True)
        ]
        return end_sentences(masked, np.dtype(np.int32))

    def epoch(self, epoch: int, seed: int) -> Epoch:
        """Returns the pairs that this epoch reads. There is no subword sampling."""
        pairs = SpanCorpus(self._texts, self._masking, (seed, epoch))
        return dataclasses.replace(super().epoch(epoch, seed), corpus=pairs)


def mask_spans(corpus: Corpus, config: Config, tokenizer: Tokenizer) -> SpanCorpus:
    """Returns the corpus with masked spans. Raises UserError if the vocabulary has no sentinel."""
    sentinels = {}
    for token, piece in enumerate(tokenizer.source.pieces):
        match = SENTINEL.fullmatch(piece)
        if match:
            sentinels[int(match[1])] = token
    if not sentinels:
        raise UserError(
            f"config.training.objective={config.training.objective}: the vocabulary has no "
            "sentinel; put <extra_id_0> and so on into tokenizer.user_symbols"
        )
    tokens = [sentinels[number] for number in sorted(sentinels)]
    training_config = config.training
    masking = SpanMasking(tokens, training_config.masked_fraction, training_config.mean_span_length)
    return SpanCorpus(corpus, masking)


def _split(total: int, count: int, generator: random.Random) -> list[int]:
    """Splits a total into positive integers, uniformly among all ways."""
    cuts = sorted(generator.sample(range(1, total), count - 1))
    return np.diff([0, *cuts, total]).tolist()
