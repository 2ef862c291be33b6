"""The loss and its gradient against target distributions written out by entry (section 5.4)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from tests.model.models import cross_entropy
from transformer.support.special_tokens import EOS, PAD
from transformer.training.columns import LOWEST, Columns
from transformer.training.loss import LossSums, token_losses

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
    return [
        (truth, row)
        for truth, row in zip(TARGETS.ravel(), log_p.reshape(-1, VOCAB), strict=True)
        if truth != PAD
    ]


def sums(label_smoothing: float, support: str, logits=LOGITS) -> LossSums:
    return cross_entropy(jnp.asarray(logits), jnp.asarray(TARGETS), label_smoothing, support)


@pytest.mark.parametrize("support", ["uniform", "others"])
def test_loss_is_the_cross_entropy_against_the_smoothed_targets(support):
    by_hand = sum(-distribution(truth, support) @ log_p for truth, log_p in real_tokens())
    assert float(sums(EPSILON, support).loss) == pytest.approx(by_hand, rel=1e-5)


def test_the_annotated_transformers_divergence_differs_by_a_constant():
    """KL(q || p) = cross-entropy - H(q), and H(q) is the same for every token: minimising either is
    the same.
    """
    divergence = 0.0
    for truth, log_p in real_tokens():
        target = distribution(truth, "others")
        some = target > 0
        divergence += float(target[some] @ (np.log(target[some]) - log_p[some]))
    entropy = -(1 - EPSILON) * np.log(1 - EPSILON) - EPSILON * np.log(EPSILON / (VOCAB - 2))
    assert float(sums(EPSILON, "others").loss) == pytest.approx(divergence + 5 * entropy, rel=1e-5)


def test_counts_and_plain_likelihood():
    total = sums(EPSILON, "uniform")
    assert float(total.nll) == pytest.approx(
        -sum(log_p[truth] for truth, log_p in real_tokens()), rel=1e-5
    )
    assert float(total.correct) == sum(log_p.argmax() == truth for truth, log_p in real_tokens())
    assert float(total.tokens) == 5
    assert float(sums(0.0, "uniform").loss) == pytest.approx(float(total.nll), rel=1e-6)

    truth = np.arange(VOCAB) == TARGETS[..., None]
    assert float(sums(EPSILON, "uniform", LOGITS + 50 * truth).correct) == 5
    assert float(sums(EPSILON, "uniform", LOGITS - 50 * truth).correct) == 0


@pytest.mark.parametrize("support", ["uniform", "others"])
def test_padding_is_never_counted(support):
    noise = np.where((TARGETS == PAD)[..., None], 100.0, LOGITS).astype(np.float32)
    noise[0, 3, PAD] = 1000.0
    assert sums(EPSILON, support, noise) == sums(EPSILON, support)


def by_hand(logits: jax.Array, targets: np.ndarray, support: str, r_drop: float) -> jax.Array:
    """Returns the criterion, to be differentiated by JAX.

    Rows 2i and 2i + 1 are one sentence if there is an R-Drop.
    """
    log_p = jax.nn.log_softmax(logits)
    target = np.stack(
        [
            distribution(truth, support) if truth != PAD else np.zeros(VOCAB)
            for truth in targets.ravel()
        ]
    )
    losses = -jnp.sum(target.reshape(logits.shape) * log_p)
    if r_drop == 0.0:
        return losses
    # of the row's other pass
    log_q = log_p.reshape(-1, 2, *log_p.shape[1:])[:, ::-1].reshape(log_p.shape)
    divergences = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1) / 2
    return (losses + r_drop * jnp.sum(jnp.where(targets != PAD, divergences, 0.0))) / 2


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize(
    ("support", "r_drop"), [("uniform", 0.0), ("others", 0.0), ("uniform", 5.0)]
)
def test_criterion_and_gradient_are_those_of_the_definition(support, r_drop, is_padded):
    """Also with columns that are not in the vocabulary."""
    targets = TARGETS.repeat(2, axis=0)
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(4, 4, VOCAB)) * 2, jnp.float32)
    expected, expected_gradient = jax.value_and_grad(by_hand)(logits, targets, support, r_drop)

    training = base.get_config().training
    training.update(
        {"label_smoothing": EPSILON, "label_smoothing_support": support, "r_drop": r_drop}
    )
    columns = Columns.whole(VOCAB)
    if is_padded:
        columns = Columns(jnp.arange(VOCAB + 3)[None, None], VOCAB, is_padded=True)
        logits = jnp.pad(logits, ((0, 0), (0, 0), (0, 3)), constant_values=LOWEST)
    passes = 2 if r_drop else 1

    def criterion(logits):
        losses, _ = token_losses(
            logits, jnp.asarray(targets), columns, training_config=training, passes=passes
        )
        return jnp.sum(jnp.where(targets == PAD, 0.0, losses)) / passes

    value, gradient = jax.value_and_grad(criterion)(logits)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(gradient[..., :VOCAB], expected_gradient, atol=1e-5)
    assert (gradient[..., VOCAB:] == 0).all()
