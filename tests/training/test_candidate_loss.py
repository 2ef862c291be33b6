"""Losses of candidates: their gradients equal those of enumerated candidates with whole logits.

Meshes: tests/distributed.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.model.models import logits_of
from tests.training.tiny import distance, setup, tiny_config
from transformer.support.special_tokens import BOS, EOS, PAD
from transformer.training import columns
from transformer.training.candidate_loss import contrastive, minimum_risk

VOCAB_SIZE = 6  # the four special tokens and two others
# All outputs of at most two tokens other than special ones.
OUTPUTS = [
    list(tokens)
    for length in range(3)
    for tokens in itertools.product(range(EOS + 1, VOCAB_SIZE), repeat=length)
]
SOURCES = [[4, 5], [5], [5, 4, 4]]


def enumerated_batch() -> dict[str, np.ndarray]:
    """Returns a batch with every output as a candidate of each source, and a filler group."""
    rows = [(source, output) for source in SOURCES for output in OUTPUTS]
    count = len(rows) + len(OUTPUTS)
    batch = {
        name: np.full((count, 4), PAD, np.int32)
        for name in ("source", "target_input", "target_output")
    }
    for row, (source, output) in enumerate(rows):
        batch["source"][row, : len(source) + 1] = [*source, EOS]
        batch["target_input"][row, : len(output) + 1] = [BOS, *output]
        batch["target_output"][row, : len(output) + 1] = [*output, EOS]
    rewards = np.random.default_rng(0).random((len(SOURCES) + 1, len(OUTPUTS)))
    return batch | {"rewards": rewards.astype(np.float32)}


def plain_loss(graph, parameters, batch, training) -> jax.Array:
    """Returns the criterion from the logits of all rows, by the formulas of the papers."""
    rewards = batch["rewards"][: len(SOURCES)]
    rows = np.arange(rewards.size)
    inputs = {name: jnp.asarray(x[rows]) for name, x in batch.items() if name != "rewards"}
    log_p = jax.nn.log_softmax(jnp.float32(logits_of(graph, parameters, inputs)))
    targets = inputs["target_output"]
    truth = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    smoothed = (1 - training.label_smoothing) * truth + training.label_smoothing * log_p.mean(-1)
    sentences, smoothed = (
        jnp.sum((targets != PAD) * x, axis=1).reshape(rewards.shape) for x in (truth, smoothed)
    )
    total = 0.0
    for source, source_rewards in enumerate(rewards.tolist()):
        best = source_rewards.index(max(source_rewards))
        worst = source_rewards.index(min(source_rewards))
        if training.candidate_loss == "minimum_risk":
            # P(y)^alpha over its sum
            weights = jnp.exp(training.risk_sharpness * sentences[source])
            total += jnp.sum(weights * (1 - rewards[source])) / jnp.sum(weights)
        elif best != worst:
            margin = sentences[source, best] - sentences[source, worst]
            total += jnp.log(1 + jnp.exp(-training.preference_scale * margin))
        total -= training.likelihood_weight * smoothed[source, best]
    return total


def step_gradients(batch, **changes):
    """Returns the gradient of a step, the reported sums, and the step with its parameters."""
    config = tiny_config(model__dropout=0.0, **changes)
    parts = setup(config, vocab_size=VOCAB_SIZE)
    state = parts.initializer.create()
    # Unequal probabilities, which initial parameters do not give.
    state = state.replace(parameters=jax.tree.map(lambda x: 2 * x, state.parameters))
    gradient, sums = parts.step.gradients(state, batch, 0, np.uint32(0))
    return gradient, sums, parts.step, state.parameters


def gradients(batch, **changes):
    """Returns the gradients of a step and of `plain_loss`."""
    actual, _, step, parameters = step_gradients(batch, **changes)
    training = step.config.training
    expected = jax.jit(jax.grad(lambda p: plain_loss(step.graph, p, batch, training)))
    return actual, expected(parameters)


RISK = {"training__candidate_loss": "minimum_risk"}
CONTRAST = {"training__candidate_loss": "contrastive"}
LOSSES = [
    RISK | {"training__risk_sharpness": 0.3, "training__likelihood_weight": 0.2},
    CONTRAST | {"training__preference_scale": 0.7, "training__likelihood_weight": 1.0},
    RISK | {"training__risk_sharpness": 1.0},
    CONTRAST,
]


@pytest.mark.first_case
@pytest.mark.parametrize("changes", LOSSES)
def test_the_gradient_is_that_of_all_outputs_enumerated(changes, monkeypatch):
    """Also in several chunks, the last one with filler rows."""
    monkeypatch.setitem(columns.CHUNK_BYTES, "cpu", 5 * 4 * 4 * VOCAB_SIZE)
    actual, expected = gradients(enumerated_batch(), **changes)
    assert distance(actual, expected) < 1e-5


def test_the_gradient_in_bfloat16_differs_by_rounding():
    actual, expected = gradients(enumerated_batch(), model__dtype="bfloat16", **LOSSES[0])
    assert distance(actual, expected) < 3e-2


def test_risk_changes_each_candidate_by_its_advantage():
    """d risk / d log p(k) = sharpness Q(k) (expected reward - reward of k)."""
    log_p = jnp.array([[-1.0, -2.5, -4.0]])
    rewards = jnp.array([[0.2, 0.9, 0.5]])
    training = tiny_config(training__risk_sharpness=0.5).training
    q = jax.nn.softmax(0.5 * log_p[0])
    value, gradient = jax.value_and_grad(lambda x: minimum_risk(x, rewards, training)[0])(log_p)
    assert float(value) == pytest.approx(1 - float(q @ rewards[0]), rel=1e-6)
    np.testing.assert_allclose(gradient[0], 0.5 * q * (q @ rewards[0] - rewards[0]), rtol=1e-5)


def test_the_preference_is_between_the_best_and_the_worst():
    log_p = jnp.array([[-1.0, -2.5, -4.0], [-1.0, -2.5, -4.0]])
    rewards = jnp.array([[0.2, 0.9, 0.5], [0.5, 0.5, 0.5]])
    training = tiny_config(training__preference_scale=2.0).training
    value = contrastive(log_p, rewards, training)
    # best -2.5 and worst -1; then no preference
    np.testing.assert_allclose(value, [np.log1p(np.exp(3.0)), 0.0], rtol=1e-6)


@pytest.mark.first_case
@pytest.mark.parametrize("loss", [RISK, CONTRAST])
def test_equal_rewards_leave_the_likelihood_of_the_first_candidate(loss):
    batch = enumerated_batch()
    batch["rewards"] = np.full_like(batch["rewards"], 0.3)
    actual, *_ = step_gradients(batch, **loss)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(actual)) < 1e-7

    actual, sums, *_ = step_gradients(batch, training__likelihood_weight=1.0, **loss)
    del batch["rewards"]
    first = {name: array[:: len(OUTPUTS)] for name, array in batch.items()}
    # A batch without rewards has the loss of plain training.
    for changes in ({}, loss):
        expected, expected_sums, *_ = step_gradients(first, **changes)
        assert distance(actual, expected) < 1e-5
        np.testing.assert_allclose(*map(jax.tree.leaves, (sums, expected_sums)), rtol=1e-5)


@pytest.mark.slow
def test_no_array_has_the_logits_of_all_rows(monkeypatch):
    monkeypatch.setitem(columns.CHUNK_BYTES, "cpu", 4 * 4 * 200)
    config = tiny_config(training__candidate_loss="minimum_risk", training__likelihood_weight=0.1)
    parts = setup(config, vocab_size=200)
    state = parts.initializer.create()
    batch = enumerated_batch()
    text = parts.step.gradients.lower(state, batch, 0, np.uint32(0)).compile().as_text()
    rows = len(batch["source"])
    assert "f32[4,200]" in text
    assert f"[{4 * rows},200]" not in text and f"[{rows},4,200]" not in text
