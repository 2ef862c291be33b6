"""The model against PyTorch's encoder and decoder stacks, whose outputs tests/golden/make_parity.py wrote."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.model.models import LARGE, Model, assert_gradients_close, flat, loss_and_gradients, tiny_transformer
from transformer.special_tokens import PAD

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


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_those_of_pytorch(golden, case):
    model = tiny_transformer(attention_bias=True, layer_norm_epsilon=1e-5, **CASES[case])
    model = Model(model.graph, arrays(model.parameters, golden, "weights"))
    sums, logits, gradients = loss_and_gradients(model, padded_batch(golden))

    real = golden["target_output"] != PAD
    rows, length = real.shape
    np.testing.assert_allclose(logits[:rows, :length][real], golden[f"{case}/logits"][real], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums.loss, golden[f"{case}/loss"], rtol=1e-5)
    assert {name for name in golden if name.startswith(f"{case}/gradients/")} == {
        f"{case}/gradients/{path}" for path, _ in flat(gradients)
    }
    assert_gradients_close(gradients, arrays(gradients, golden, f"{case}/gradients"))


def padded_batch(golden: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """PyTorch's batch with filler rows and more padding, which are to change nothing."""
    rows, source_length, target_length = LARGE
    batch = {}
    for name in ("source", "target_input", "target_output"):
        tokens = golden[name]
        length = source_length if name == "source" else target_length
        batch[name] = jnp.asarray(np.pad(tokens, [(0, rows - tokens.shape[0]), (0, length - tokens.shape[1])]))
    return batch


def arrays(like: dict, golden: dict[str, np.ndarray], prefix: str) -> dict:
    """A tree such as `like` of the golden arrays that have its paths after `prefix`."""
    leaves = [jnp.asarray(golden[f"{prefix}/{path}"]) for path, _ in flat(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
