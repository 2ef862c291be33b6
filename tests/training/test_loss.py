"""The loss against target distributions written out entry by entry (section 5.4)."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.special_tokens import EOS, PAD
from transformer.training.loss import LossSums, cross_entropy, symmetric_kl

VOCAB, EPSILON = 9, 0.1
TARGETS = np.array([[5, 4, EOS, PAD], [8, EOS, PAD, PAD]], np.int32)
LOGITS = np.random.default_rng(0).normal(size=(2, 4, VOCAB)).astype(np.float32) * 2


def distribution(truth: int, support: str) -> np.ndarray:
    if support == "uniform":
        target = np.full(VOCAB, EPSILON / VOCAB)
        target[truth] = 1 - EPSILON + EPSILON / VOCAB
    else:
        target = np.full(VOCAB, EPSILON / (VOCAB - 2))
        target[PAD], target[truth] = 0, 1 - EPSILON
    assert target.sum() == pytest.approx(1)
    return target


def real_tokens() -> list[tuple[int, np.ndarray]]:
    """(truth, log-probabilities) of each target that is not padding."""
    logits = LOGITS.astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return [(truth, row) for truth, row in zip(TARGETS.ravel(), log_p.reshape(-1, VOCAB), strict=True) if truth != PAD]


def sums(label_smoothing: float, support: str, logits=LOGITS) -> LossSums:
    return cross_entropy(jnp.asarray(logits), jnp.asarray(TARGETS), label_smoothing, support)


@pytest.mark.parametrize("support", ["uniform", "others"])
def test_loss_is_the_cross_entropy_against_the_smoothed_targets(support):
    by_hand = sum(-distribution(truth, support) @ log_p for truth, log_p in real_tokens())
    assert float(sums(EPSILON, support).loss) == pytest.approx(by_hand, rel=1e-5)


def test_the_annotated_transformers_divergence_differs_by_a_constant():
    """KL(q || p) = cross-entropy - H(q), and H(q) is the same for every token: minimising either is the same."""
    divergence = 0.0
    for truth, log_p in real_tokens():
        target = distribution(truth, "others")
        some = target > 0
        divergence += float(target[some] @ (np.log(target[some]) - log_p[some]))
    entropy = -(1 - EPSILON) * np.log(1 - EPSILON) - EPSILON * np.log(EPSILON / (VOCAB - 2))
    assert float(sums(EPSILON, "others").loss) == pytest.approx(divergence + 5 * entropy, rel=1e-5)


def test_counts_and_plain_likelihood():
    total = sums(EPSILON, "uniform")
    assert float(total.nll) == pytest.approx(-sum(log_p[truth] for truth, log_p in real_tokens()), rel=1e-5)
    assert float(total.correct) == sum(log_p.argmax() == truth for truth, log_p in real_tokens())
    assert (float(total.tokens), float(total.sentences)) == (5, 2)
    assert float(sums(0.0, "uniform").loss) == pytest.approx(float(total.nll), rel=1e-6)

    truth = np.arange(VOCAB) == TARGETS[..., None]
    assert float(sums(EPSILON, "uniform", LOGITS + 50 * truth).correct) == 5
    assert float(sums(EPSILON, "uniform", LOGITS - 50 * truth).correct) == 0


@pytest.mark.parametrize("support", ["uniform", "others"])
def test_padding_is_never_counted(support):
    noise = np.where((TARGETS == PAD)[..., None], 100.0, LOGITS).astype(np.float32)
    noise[0, 3, PAD] = 1000.0
    assert sums(EPSILON, support, noise) == sums(EPSILON, support)


def test_symmetric_kl_is_the_mean_of_both_divergences_of_each_target():
    passes = np.random.default_rng(1).normal(size=(4, 4, VOCAB)) * 2  # rows 0 and 1 are one sentence, so 2 and 3
    passes[:, 3, 5] = 50 * np.arange(4)  # padding of both
    p = np.exp(passes) / np.exp(passes).sum(-1, keepdims=True)
    by_hand = 0.0
    for row, position in zip(*np.nonzero(TARGETS), strict=True):
        one, two = p[2 * row, position], p[2 * row + 1, position]
        by_hand += (one @ np.log(one / two) + two @ np.log(two / one)) / 2
    found = symmetric_kl(jnp.asarray(passes, jnp.float32), jnp.asarray(TARGETS).repeat(2, axis=0))
    assert float(found) == pytest.approx(by_hand, rel=1e-5)
