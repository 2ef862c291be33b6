"""Colours that are even and safe for colour-blind readers, and text that cannot be anything but
text.
"""

import itertools
import json

import numpy as np
import pytest

from scripts.charts import theme

# Linear RGB of what readers without red or green cones see (Machado et al. 2009, severity 1).
BLIND = {
    "none": np.eye(3),
    "red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def lab(colors, blind: str = "none") -> np.ndarray:
    """Returns CIELAB coordinates (N, 3) of sRGB colours under D65."""
    rgb = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in colors])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.clip(linear @ np.transpose(BLIND[blind]), 0, 1) @ XYZ.T / XYZ.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack(
        [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1
    )


def test_steps_of_the_sequential_colours_look_equal():
    steps = np.linalg.norm(np.diff(lab(theme.SEQUENTIAL), axis=0), axis=1)
    np.testing.assert_allclose(steps, 13, atol=0.5)


@pytest.mark.parametrize("blind", BLIND)
def test_sequential_colours_darken_and_lines_differ_for_every_reader(blind):
    assert np.all(np.diff(lab(theme.SEQUENTIAL, blind)[:, 0]) < -7)
    lines = lab(theme.CATEGORICAL, blind)
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(lines, 2)) > 11


def test_forty_two_lines_differ_in_colour_or_dashes():
    lines = zip(itertools.cycle(theme.CATEGORICAL), itertools.cycle(map(tuple, theme.DASHES)))
    assert len(set(itertools.islice(lines, 42))) == 42


def test_text_stays_on_one_line_and_has_no_invisible_characters():
    assert theme.visible("▁Hund") == "·Hund"
    assert theme.visible("a\n\x00\x07\u202eb\u200b") == r"a\n\x00\x07\u202eb\u200b"
    assert theme.visible("größer 日本 <b>&\\") == "größer 日本 <b>&\\"


def test_labels_are_a_literal_whatever_they_contain():
    labels = ['"];alert(1)//', "\\", "</script>", "\u2028", "'"]
    expression = theme.label_expression(labels)
    assert expression.isascii() and expression.endswith("[datum.value]")
    assert json.loads(expression.removesuffix("[datum.value]")) == [
        theme.visible(label) for label in labels
    ]
