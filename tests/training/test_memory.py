"""The estimate of a batch's memory counts the heads and the positions that the model has."""

import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from tests.training.tiny import setup, tiny_config
from transformer.data.batches.epoch_plan import Bucket
from transformer.distributed.mesh import AXES, AXIS_TYPES, one_device
from transformer.training.memory import activation_bytes, by_memory, bytes_used

GPU = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu")
H100 = AbstractMesh((1, 1, 1), AXES, AXIS_TYPES, abstract_device=GPU)


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


def test_a_recurrent_decoder_has_no_scores_of_self_attention():
    assert estimate() - estimate(model__decoder_self_attention="ssru") == 2 * 4 * 8 * 2 * 16 * 16


def test_ctc_has_its_frames_in_the_encoder_and_no_decoder():
    frames = {"training__objective": "ctc", "model__ctc_frames": 3}
    assert estimate(**frames) == activation_bytes(tiny_config(training__objective="masked_lm"), Bucket(8, 48, 0))


@pytest.mark.slow
def test_the_shape_that_needs_most_memory_is_first_for_ctc_too():
    """A translation model has its longer side in the decoder, which a model of CTC does not have."""
    shapes, mesh = [Bucket(8, 8, 64), Bucket(8, 32, 16)], one_device().abstract_mesh
    assert by_memory(tiny_config(), shapes, mesh) == shapes
    config = tiny_config(training__objective="ctc", training__label_smoothing=0.0)
    assert by_memory(config, shapes, mesh) == shapes[::-1]
    here = setup(config)
    used = [
        bytes_used(compiled().memory_analysis())
        for compiled in here.step.compilations(here.initializer.abstract_state, shapes)[: len(shapes)]
    ]
    assert used[0] > used[1]


@pytest.mark.parametrize(
    ("changes", "target_length", "is_fused"),
    [
        ({}, 96, True),
        ({"attention_implementation": "plain"}, 96, False),
        ({"attention_dropout": 0.1}, 96, False),
        ({"dtype": "float32"}, 96, False),
        ({"d_k": 4, "d_v": 4}, 96, False),  # no multiple of 8
        ({}, 97, False),  # of self- and cross-attention in the decoder
    ],
)
def test_scores_that_a_kernel_does_not_store_do_not_count(changes, target_length, is_fused):
    config = tiny_config(model__d_model=16, model__dtype="bfloat16")
    config.model.update(changes)
    many_rows, long = Bucket(64, 16, 16), Bucket(8, 96, target_length)
    assert many_rows.positions > long.positions
    assert by_memory(config, [long, many_rows], H100)[0] == (many_rows if is_fused else long)
    assert by_memory(config, [many_rows, long], one_device().abstract_mesh)[0] == long
