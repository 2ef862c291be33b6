"""The likeliest translations of source tokens, and the most frequent target tokens: a lexical shortlist."""

import dataclasses
import itertools

import numpy as np
from absl import logging
from jaxtyping import Int
from scipy.sparse import csr_array

from scripts.alignment import ibm_model_1
from transformer.data.corpus.corpus import Corpus
from transformer.data.sources.lines import counted
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.shortlist import Shortlist
from transformer.special_tokens import SPECIAL

ITERATIONS = 5  # of EM
SIZES = (8, 16, 32, 64)  # values of decoding.shortlist that are reported; the file has translations for the largest
FREQUENT = 100  # most frequent target tokens, the default of Marian


def learn(train: Corpus, most: int, tokenizer: Tokenizer) -> Shortlist:
    """Returns the shortlist of at most `most` pairs of a corpus, which are evenly spaced."""
    count = min(most, len(train))
    pairs = np.arange(count) * len(train) // count
    logging.info("Learning from %d of %s.", count, counted(len(train), "pair"))
    iterations = ibm_model_1.iterate(lambda: ibm_model_1.read_chunks(train, pairs), tokenizer.vocab_sizes)
    for number in range(1, ITERATIONS + 1):
        probabilities, log_likelihood = next(iterations)
        logging.info("Iteration %d of %d: %.3f nats per target token.", number, ITERATIONS, -log_likelihood)
    return Shortlist(
        likeliest(probabilities, max(SIZES)),
        most_frequent(np.bincount(train.tokens(1, pairs)), FREQUENT),
        tokenizer.target.size,
        tokenizer.source is tokenizer.target,
    )


def likeliest(probabilities: csr_array, count: int) -> Int[np.ndarray, "VS N"]:
    """Returns the most probable translations of each source token, the first one best; -1 where there are fewer."""
    translations = np.full((probabilities.shape[0], count), -1, np.int32)
    for row, (begin, end) in enumerate(itertools.pairwise(probabilities.indptr)):
        order = np.argsort(-probabilities.data[begin:end], kind="stable")
        tokens = probabilities.indices[begin:end][order]
        tokens = tokens[tokens >= SPECIAL][:count]
        translations[row, : len(tokens)] = tokens
    return translations


def most_frequent(counts: Int[np.ndarray, "V"], count: int) -> Int[np.ndarray, "F"]:
    """Returns the tokens with the largest counts, without special tokens and those that never occur."""
    tokens = np.argsort(-counts, kind="stable")
    return tokens[(tokens >= SPECIAL) & (counts[tokens] > 0)][:count].astype(np.int32)


def coverage(shortlist: Shortlist, size: int, held_out: Corpus) -> tuple[float, float]:
    """Returns the fraction of the targets' tokens, without special tokens, that are candidates for their source.

    Also returns the mean number of candidates of a sentence.
    """
    limited = dataclasses.replace(shortlist, translations=shortlist.translations[:, :size])
    covered = total = candidates = 0
    for pair in range(len(held_out)):
        source, target = (held_out.tokens(side, np.array([pair])) for side in (0, 1))
        (allowed,) = limited.candidates(source[None])
        target = target[target >= SPECIAL]
        covered += int(np.isin(target, allowed).sum())
        total += len(target)
        candidates += int((allowed >= 0).sum())
    return covered / total, candidates / len(held_out)
