"""The model against PyTorch's encoder and decoder stacks, whose outputs tests/golden/make_parity.py
wrote.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.model.models import (
    LARGE,
    Model,
    assert_gradients_close,
    flat,
    logits_of,
    loss_and_gradients,
    tiny_transformer,
)
from transformer.support.special_tokens import PAD
from transformer.training.loss import LossSums

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "parity.npz"
CASES = {
    "post": {"norm_position": "post", "final_norm": False},
    "post_final_norm": {"norm_position": "post", "final_norm": True},
    "pre": {"norm_position": "pre", "final_norm": None},
}


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


@pytest.mark.first_case
@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_those_of_pytorch(golden, case):
    sums, logits, gradients = computed(golden, case, "float32")
    np.testing.assert_allclose(logits, real_logits(golden, case), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums.loss, golden[f"{case}/loss"], rtol=1e-5)
    assert {name for name in golden if name.startswith(f"{case}/gradients/")} == {
        f"{case}/gradients/{path}" for path, _ in flat(gradients)
    }
    assert_gradients_close(gradients, arrays(gradients, golden, f"{case}/gradients"))


def test_a_bfloat16_model_differs_from_pytorch_by_rounding(golden):
    """An activation is rounded with a relative error of up to 2**-9.

    Independent errors add up like a random walk: to about 1 % after the 20 to 30 roundings that
    lead to a logit, and with those of the backward pass to 1.5 % of the norm of all gradients.
    Single gradients may have three times that.
    """
    sums, logits, gradients = computed(golden, "post", "bfloat16")
    expected = real_logits(golden, "post")
    assert np.linalg.norm(logits - expected) < 0.015 * np.linalg.norm(expected)
    np.testing.assert_allclose(sums.loss, golden["post/loss"], rtol=2**-8)
    assert_gradients_close(gradients, arrays(gradients, golden, "post/gradients"), tolerance=0.06)


def computed(
    golden: dict[str, np.ndarray], case: str, dtype: str
) -> tuple[LossSums, np.ndarray, dict]:
    """Returns the LossSums, the logits of the target tokens and the gradients of our model with
    PyTorch's weights.
    """
    model = tiny_transformer(
        attention_bias=True, layer_norm_epsilon=1e-5, dtype=dtype, **CASES[case]
    )
    model = Model(model.graph, arrays(model.parameters, golden, "weights"))
    batch = padded_batch(golden)
    sums, gradients = loss_and_gradients(model, batch)
    logits = np.asarray(logits_of(model.graph, model.parameters, batch))
    rows, length = golden["target_output"].shape
    return sums, logits[:rows, :length][golden["target_output"] != PAD], gradients


def real_logits(golden: dict[str, np.ndarray], case: str) -> np.ndarray:
    """Returns PyTorch's logits of the target tokens."""
    return golden[f"{case}/logits"][golden["target_output"] != PAD]


def padded_batch(golden: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Returns PyTorch's batch with filler rows and more padding, which must change nothing."""
    rows, source_length, target_length = LARGE
    batch = {}
    for name in ("source", "target_input", "target_output"):
        tokens = golden[name]
        length = source_length if name == "source" else target_length
        batch[name] = jnp.asarray(
            np.pad(tokens, [(0, rows - tokens.shape[0]), (0, length - tokens.shape[1])])
        )
    return batch


def arrays(like: dict, golden: dict[str, np.ndarray], prefix: str) -> dict:
    """Returns a tree with the structure of `like`, whose leaves are the golden arrays at `prefix`
    and their paths.
    """
    leaves = [jnp.asarray(golden[f"{prefix}/{path}"]) for path, _ in flat(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
