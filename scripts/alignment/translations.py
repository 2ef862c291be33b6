"""Lexical shortlists, learned from sentence pairs.

A shortlist has the likeliest translations of source tokens, and the most frequent target tokens.
EM learns the probabilities of translations by IBM Model 1 (Brown et al. 1993). In this model, each
target token is the translation of one token of its source, with a uniform prior over the source
tokens. The source's end-of-sentence serves as the NULL word.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Int
from scipy.sparse import csr_array

from transformer.data.batches.collation import ragged_arange
from transformer.data.corpus.corpus import Corpus
from transformer.data.sources.lines import count_noun
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.shortlist import Shortlist
from transformer.support.special_tokens import SPECIAL

# The approximate number of links of a chunk. A link is a source token and a target token of a pair.
CHUNK = 1 << 22
SMALLEST = 1e-6  # smaller probabilities become 0, which saves memory
ITERATIONS = 5  # of EM
# Reported values of decoding.shortlist. The file has translations for the largest value.
SIZES = (8, 16, 32, 64)
FREQUENT = 100  # number of most frequent target tokens, Marian's default


class TokenLinks(NamedTuple):
    """All links of some sentence pairs.

    sources, targets: the tokens of each link.
    positions: the position of the target token among all target tokens.
    """

    sources: Int[np.ndarray, " L"]
    targets: Int[np.ndarray, " L"]
    positions: Int[np.ndarray, " L"]


def read_links(corpus: Corpus, pairs: Int[np.ndarray, " N"]) -> Iterator[TokenLinks]:
    """Yields the links of these pairs of a corpus, a chunk of pairs at a time."""
    num_links = np.cumsum(corpus.lengths[pairs].astype(np.int64).prod(axis=1))

    # A chunk ends where the number of links passes a multiple of CHUNK.
    ends = np.flatnonzero(np.diff(num_links // CHUNK)) + 1
    for chunk in np.split(pairs, ends):
        source_lengths, target_lengths = corpus.lengths[chunk].astype(np.int64).T

        # For each target token: the number of its links, and the first token of its source.
        counts = np.repeat(source_lengths, target_lengths)  # (T,)
        starts = np.repeat(np.cumsum(source_lengths) - source_lengths, target_lengths)  # (T,)
        positions = np.repeat(np.arange(len(counts)), counts)  # (L,)
        sources = corpus.tokens(0, chunk)[starts[positions] + ragged_arange(counts)]
        yield TokenLinks(sources, corpus.tokens(1, chunk)[positions], positions)


def em_iterations(
    read: Callable[[], Iterable[TokenLinks]], sizes: tuple[int, int]
) -> Iterator[tuple[csr_array, float]]:
    """Yields the probabilities after each iteration of EM, and the mean log-likelihood before it.

    The iterator is infinite. Its memory is proportional to the number of pairs of tokens that occur
    together.

    Args:
      read: returns the links of the training pairs. Each iteration calls it once.
      sizes: VS and VT, the vocabulary sizes of source and target.

    Yields:
      probabilities: (VS, VT), p(target token | source token). The row of a source token that does
          not occur is empty.
      log_likelihood: in nats per target token, of the previous probabilities. The first
          probabilities are uniform.
    """
    probabilities = None
    while True:
        expected = csr_array(sizes)
        log_likelihood = 0.0
        count = 0

        # E-step: the expected number of times that a source token is translated by a target token.
        for sources, targets, positions in read():
            if probabilities is None:
                p = np.full(len(positions), 1 / sizes[1])
            else:
                p = probabilities[sources, targets]

            # The sum is 0 if all p of a target token have become 0.
            sums = np.maximum(np.bincount(positions, p), SMALLEST)
            expected += csr_array((p / sums[positions], (sources, targets)), sizes)
            log_likelihood += np.log(sums / np.bincount(positions)).sum()
            count += len(sums)

        # M-step: the expected counts of a source token, normalized.
        expected.data /= np.repeat(expected.sum(axis=1), np.diff(expected.indptr))
        expected.data[expected.data < SMALLEST] = 0
        expected.eliminate_zeros()
        probabilities = expected
        yield probabilities, log_likelihood / count


def learn(train: Corpus, most: int, tokenizer: Tokenizer) -> Shortlist:
    """Returns the shortlist of at most `most` evenly spaced pairs of a corpus."""
    pairs = train.spread(most)
    logging.info("Learning from %d of %s.", len(pairs), count_noun(len(train), "pair"))
    iterations = em_iterations(lambda: read_links(train, pairs), tokenizer.vocab_sizes)
    for number in range(1, ITERATIONS + 1):
        probabilities, log_likelihood = next(iterations)
        logging.info(
            "Iteration %d of %d: %.3f nats per target token.", number, ITERATIONS, -log_likelihood
        )
    translations = likeliest(probabilities, max(SIZES))
    frequent = most_frequent(np.bincount(train.tokens(1, pairs)), FREQUENT)
    return Shortlist(translations, frequent, tokenizer.target.size, tokenizer.is_shared)


def likeliest(probabilities: csr_array, count: int) -> Int[np.ndarray, "VS N"]:
    """Returns the most probable translations of each source token, best first, filled with -1."""
    translations = np.full((probabilities.shape[0], count), -1, np.int32)

    # Row i of a sparse array is data[indptr[i] : indptr[i + 1]].
    for row, (begin, end) in enumerate(itertools.pairwise(probabilities.indptr)):
        order = np.argsort(-probabilities.data[begin:end], kind="stable")
        tokens = probabilities.indices[begin:end][order]
        tokens = tokens[tokens >= SPECIAL][:count]
        translations[row, : len(tokens)] = tokens
    return translations


def most_frequent(counts: Int[np.ndarray, " V"], count: int) -> Int[np.ndarray, " F"]:
    """Returns the tokens with the largest counts, without special tokens and counts of 0."""
    tokens = np.argsort(-counts, kind="stable")
    tokens = tokens[(tokens >= SPECIAL) & (counts[tokens] > 0)]
    return tokens[:count].astype(np.int32)


def coverage(shortlist: Shortlist, size: int, held_out: Corpus) -> tuple[float, float]:
    """Returns the fraction of target tokens that are shortlisted, and the mean size of a shortlist.

    The search considers `size` translations of each source token. The mean is over sentences.
    """
    # A shortlist of fewer translations is a prefix of the columns.
    limited = dataclasses.replace(shortlist, translations=shortlist.translations[:, :size])
    covered = total = shortlisted = 0
    for pair in range(len(held_out)):
        source, target = (held_out.tokens(side, np.array([pair])) for side in (0, 1))
        (allowed,) = limited.tokens_of(source[None])

        # Special tokens are always shortlisted, and padding of `allowed` is -1.
        target = target[target >= SPECIAL]
        covered += int(np.isin(target, allowed).sum())
        total += len(target)
        shortlisted += int((allowed >= 0).sum())
    return covered / total, shortlisted / len(held_out)
