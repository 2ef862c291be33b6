"""The estimate of a batch's memory counts the heads and the positions that the model has."""

from tests.training.tiny import setup, tiny_config
from transformer.data.batches.epoch_plan import Bucket
from transformer.planning.memory import bytes_used
from transformer.training.memory import activation_bytes, by_memory


def estimate(**changes) -> int:
    return activation_bytes(tiny_config(**changes), Bucket(8, 16, 16))


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


def test_ctc_has_its_frames_in_the_encoder_and_no_decoder():
    frames = {"training__objective": "ctc", "model__ctc_frames": 3}
    assert estimate(**frames) == activation_bytes(tiny_config(training__objective="masked_lm"), Bucket(8, 48, 0))


def test_the_shape_that_needs_most_memory_is_first_for_ctc_too():
    """A translation model has its longer side in the decoder, which a model of CTC does not have."""
    shapes = [Bucket(8, 8, 64), Bucket(8, 32, 16)]
    assert by_memory(tiny_config(), shapes) == shapes
    config = tiny_config(training__objective="ctc", training__label_smoothing=0.0)
    assert by_memory(config, shapes) == shapes[::-1]
    here = setup(config)
    used = [bytes_used(compiled().memory_analysis()) for compiled in here.step.compilations(here.initializer(), shapes)]
    assert used[0] > used[1]
