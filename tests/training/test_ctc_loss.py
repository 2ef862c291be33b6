"""The loss of CTC in chunks of rows equals that of all rows at once.

Alignments: tests/decoding/test_ctc_search.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.meshes import one_device
from tests.training.tiny import make_batch, set_chunk, tiny_config
from transformer.model.single_stack import CtcTransformer
from transformer.training.encoders import chunk_sums, ctc_loss

VOCAB, ROWS, FRAMES = 40, 7, 3 * 9
ONE_ROW = 4 * FRAMES * VOCAB  # bytes of float32 logits
# The second target needs more frames than there are; the last row is filler.
LENGTHS = [(8, 6), (1, 8), (3, 3), (8, 8), (2, 0), (5, 4)]
BATCH = {name: jnp.asarray(array) for name, array in make_batch(LENGTHS, ROWS, 9, seed=0).items()}


def gradients(share: str):
    """Returns the functions of the parameters by which the loss trains: in chunks, and of all rows
    at once.
    """
    config = tiny_config(
        training__objective="ctc", model__share_embeddings=share, model__ctc_frames=3
    )
    graph, state = nnx.split(CtcTransformer(config.model, VOCAB, VOCAB, rngs=nnx.Rngs(0)))

    def chunked(state):
        return ctc_loss(one_device(), nnx.merge(graph, state), BATCH, nnx.Rngs(dropout=1))

    def whole(state):
        model = nnx.merge(graph, state)
        hidden, frames = (
            model.hidden(BATCH["source"], nnx.Rngs(dropout=1)),
            model.frames(BATCH["source"]),
        )
        sums = chunk_sums(model, hidden, frames, BATCH["target_output"])
        return sums.loss, sums

    return [
        jax.jit(jax.value_and_grad(function, has_aux=True)) for function in (chunked, whole)
    ], state


@pytest.mark.first_case
@pytest.mark.parametrize("share", ["all", "none"])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_chunks_of_any_size_give_the_same_sums_and_gradients(monkeypatch, rows, share):
    set_chunk(monkeypatch, rows * ONE_ROW)
    (chunked, whole), state = gradients(share)
    results, expected = chunked(state), whole(state)
    assert expected[0][1].tokens == 6 + 3 + 8 + 4
    for leaf, expected_leaf in zip(
        jax.tree.leaves(results), jax.tree.leaves(expected), strict=True
    ):
        # Gradients are sums of terms of up to 30.
        np.testing.assert_allclose(leaf, expected_leaf, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_no_array_has_the_logits_of_all_rows(monkeypatch):
    set_chunk(monkeypatch, 2 * ONE_ROW)
    (chunked, whole), state = gradients("all")
    chunk_shape, whole_shape = f"[2,{FRAMES},{VOCAB}]", f"{ROWS},{FRAMES},{VOCAB}]"
    texts = [function.lower(state).compile().as_text() for function in (chunked, whole)]
    assert chunk_shape in texts[0] and whole_shape not in texts[0]
    assert whole_shape in texts[1]


def test_logits_are_those_of_the_hidden_vectors_the_output_table_and_the_bias():
    for share in ("all", "target", "none"):
        config = tiny_config(model__share_embeddings=share, model__output_bias=True)
        model = CtcTransformer(config.model, VOCAB, VOCAB, rngs=nnx.Rngs(0))
        model.output_bias[...] = jnp.arange(VOCAB, dtype=jnp.float32)
        source = BATCH["source"]
        expected = (
            model.hidden(source) @ model.output_table_and_bias[0].T + jnp.arange(VOCAB)[None, None]
        )
        np.testing.assert_allclose(model(source), expected, rtol=1e-5, atol=1e-5)
