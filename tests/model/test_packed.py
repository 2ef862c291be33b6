"""Packed rows give the same loss and gradients as one sentence per row."""

import pytest

from tests.model.models import (
    LARGE,
    ROUNDING,
    assert_gradients_close,
    batch_of,
    loss_and_gradients,
    sentences,
    tiny_transformer,
)

# Two sentences share the first row and leave padding on both sides; the third has the second row.
LENGTHS, ROWS = [(7, 3), (4, 6), (8, 1)], [0, 0, 1]


ADDED = ["sinusoidal", "sinusoidal_concatenated", "learned"]
VARIANTS = [(added, attention) for added in ADDED for attention in ("dot_product", "additive")]


# Rotary attention depends only on relative positions, which need no restart in a segment. Its case
# checks that segments do not attend to each other.
@pytest.mark.first_case
@pytest.mark.parametrize(
    "changes",
    [
        *({"positions": positions, "attention": attention} for positions, attention in VARIANTS),
        {"positions": "rotary", "num_key_heads": 1},
        {"positions": "shaw", "norm": "rms_norm"},
        {"positions": "alibi", "norm_position": "sandwich"},
        {"positions": "t5", "remat": "layers"},
        {"decoder_self_attention": "average"},
        {
            "decoder_self_attention": "ssru",
            "decoder_start": "zero",
            "output_bias": True,
            "source_eos": False,
        },
    ],
    ids=str,
)
def test_packed_equals_unpacked(changes):
    model = tiny_transformer(**changes)
    pairs = sentences(LENGTHS)
    packed = batch_of(pairs, ROWS, LARGE, packed=True)
    assert packed["source_segments"][0].max() == packed["target_segments"][0].max() == 2

    sums, gradients = loss_and_gradients(model, batch_of(pairs, [0, 1, 2], LARGE))
    packed_sums, packed_gradients = loss_and_gradients(model, packed)
    assert packed_sums.tokens == sums.tokens == 10
    assert float(packed_sums.loss) == pytest.approx(float(sums.loss), rel=1e-5)
    assert_gradients_close(packed_gradients, gradients)


def test_packed_equals_unpacked_up_to_rounding_in_bfloat16():
    model = tiny_transformer(dtype="bfloat16")
    pairs = sentences(LENGTHS)
    sums, gradients = loss_and_gradients(model, batch_of(pairs, [0, 1, 2], LARGE))
    packed_sums, packed_gradients = loss_and_gradients(
        model, batch_of(pairs, ROWS, LARGE, packed=True)
    )
    assert float(packed_sums.loss) == pytest.approx(float(sums.loss), rel=ROUNDING["bfloat16"])
    assert_gradients_close(packed_gradients, gradients, ROUNDING["bfloat16"])
