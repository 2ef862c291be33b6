"""Shapes of the arrays that hold the texts which control a search."""

import itertools

import numpy as np

from tests.decoding.control.decoders import make_decoder
from tests.decoding.models import make_decoding_config
from tests.decoding.test_text_decoder import VOCABULARY, translate
from transformer.decoding.control import control
from transformer.decoding.control.control import Control, OutputControl

TEXTS = ["1 2 3", "4 5", "6 7 1 1", "2 2"]
CONTROLS = [
    Control("7"),
    Control("", [["3 2"], ["6", "5 5"]]),
    Control("1 1", [["4"]], ["2"]),
    Control(banned=["5 6"]),
]


def test_padding_changes_no_translation(monkeypatch):
    padded = translate(make_decoder(), TEXTS, n_best=2, controls=CONTROLS)
    for name, sizes in control.LEAST_SIZES.items():
        monkeypatch.setitem(control.LEAST_SIZES, name, (1,) * len(sizes))
    monkeypatch.setattr(control, "GROWTH", 2)
    assert translate(make_decoder(), TEXTS, n_best=2, controls=CONTROLS) == padded


def test_controls_have_few_shapes():
    encoder = OutputControl(make_decoding_config(max_extra_length=50), VOCABULARY)
    shapes = set()
    for prefix, phrases, alternatives, length in itertools.product(
        range(0, 17, 4), *[range(1, 5)] * 3
    ):
        phrase = [" ".join("1" * length)] * alternatives
        text = " ".join("2" * prefix)
        arrays = encoder.encode([Control(text, [phrase] * phrases)], [[5] * 9], first_line=1)([0])
        shapes.add(tuple((name, array.shape) for name, array in arrays.items()))
    sizes = {dict(shape)["required"][1:] for shape in shapes}
    assert len(shapes) == 2 * len(sizes) and sizes == {(2, 2, 4), (8, 2, 4), (2, 8, 4), (8, 8, 4)}


def test_many_long_phrases_are_padded_little():
    encoder = OutputControl(make_decoding_config(max_extra_length=90), VOCABULARY)
    phrases = [[" ".join("1" * 5)] * 3] * 5
    arrays = encoder.encode([Control(required=phrases)], [[5] * 9], first_line=1)([0])
    assert np.prod(arrays["required"].shape) == control.MAX_REQUIRED
