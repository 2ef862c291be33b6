"""The estimate of a batch's memory counts heads as wide as the model has them."""

from tests.training.tiny import tiny_config
from transformer.training.memory import activation_bytes


def estimate(**changes) -> int:
    return activation_bytes(tiny_config(**changes).model, 8, 16, 16)


def test_heads_of_the_default_width_need_what_that_width_needs():
    # d_model / num_heads is 4.
    for attention in ("dot_product", "additive"):
        assert estimate(model__attention=attention, model__d_k=4, model__d_v=4) == estimate(model__attention=attention)


def test_wider_heads_need_more():
    # Queries and keys, or values and the heads' outputs: two arrays of 2 heads x 16 more elements for each position.
    two_arrays = 2 * 4 * 8 * (16 + 16) * 2 * 16
    assert estimate(model__d_k=20) - estimate() == estimate(model__d_v=20) - estimate() == two_arrays
    # tanh(q + k) and its gradient, for each head and pair of positions in the three attentions of 1 + 1 layers.
    additive = {"model__attention": "additive"}
    tanh = 2 * 4 * 8 * 2 * 3 * 16 * 16 * 16
    assert estimate(model__d_k=20, **additive) - estimate(**additive) == two_arrays + tanh
