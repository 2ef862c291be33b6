"""Attention maps: the weights of the chosen layers and heads over the right tokens."""

import numpy as np
import pytest

from scripts.charts import attention
from tests.scripts.charts.drawn import matrices, svg, texts
from transformer.decoding.forced_decoding import Attention
from transformer.support.errors import UserError

RANDOM = np.random.default_rng(0)
SOURCE, READ, PREDICTED = ("▁a", "▁b", "</s>"), ("<s>", "▁x"), ("▁x", "</s>")


def weights_over(source: tuple[str, ...]) -> Attention:
    """Returns random weights of 6 encoder layers, 3 decoder layers and 5 heads."""
    length = len(source)
    shapes = {
        "encoder": (6, 5, length, length),
        "decoder": (3, 5, 2, 2),
        "cross": (3, 5, 2, length),
    }
    weights = {part: RANDOM.random(shape, np.float32) for part, shape in shapes.items()}
    return Attention(source, READ, PREDICTED, **weights)


WEIGHTS = weights_over(SOURCE)
HOSTILE = ("<script>alert(1)</script>", '"];alert(1)//', "\x07\x00\n\u202e", "]]>&amp;", "</s>")


@pytest.mark.parametrize(
    ("part", "layers"), [("encoder", (2, 4, 6)), ("decoder", (2,)), ("cross", (2,))]
)
def test_even_layers_and_the_first_four_heads_are_drawn_by_default(part, layers):
    weights = getattr(WEIGHTS, part)
    drawn = matrices(attention.draw(WEIGHTS, part), weights.shape[2:], "layer", "head")
    assert set(drawn) == {(layer, head) for layer in layers for head in (1, 2, 3, 4)}
    for (layer, head), matrix in drawn.items():
        np.testing.assert_allclose(matrix, weights[layer - 1, head - 1], atol=5.1e-5)


def test_chosen_layers_and_heads_are_drawn_and_others_refused():
    drawn = matrices(
        attention.draw(WEIGHTS, "cross", layers=(3, 1), heads=(5,)), (2, 3), "layer", "head"
    )
    assert set(drawn) == {(1, 5), (3, 5)}
    shallow = Attention(
        SOURCE, READ, PREDICTED, WEIGHTS.encoder[:1], WEIGHTS.decoder[:1], WEIGHTS.cross[:1]
    )
    assert set(matrices(attention.draw(shallow), (3, 3), "layer", "head")) == {
        (1, head) for head in (1, 2, 3, 4)
    }
    with pytest.raises(UserError, match="layers=0,4: the part cross has the layers 1, 2, 3$"):
        attention.draw(WEIGHTS, "cross", layers=(4, 2, 0))
    with pytest.raises(UserError, match="heads=6: the part encoder has the heads 1, 2, 3, 4, 5$"):
        attention.draw(WEIGHTS, heads=(6,))


def test_a_decoder_without_self_attention_is_refused():
    recurrent = Attention(SOURCE, READ, PREDICTED, WEIGHTS.encoder, None, WEIGHTS.cross)
    with pytest.raises(UserError, match="part=decoder: the decoder has no self-attention"):
        attention.draw(recurrent, "decoder")


@pytest.mark.parametrize(
    ("part", "queries", "keys"),
    [("encoder", SOURCE, SOURCE), ("decoder", READ, READ), ("cross", PREDICTED, SOURCE)],
)
def test_axes_have_the_tokens_of_the_weights(part, queries, keys):
    rows, columns = attention.axes(WEIGHTS, part)
    assert (rows.labels, columns.labels) == (queries, keys)


def test_a_sentence_of_more_than_sixty_tokens_is_refused():
    with pytest.raises(UserError, match="has 61 tokens, and at most 60 can be drawn"):
        attention.draw(weights_over(("a",) * 61), "cross")
    attention.draw(weights_over(("a",) * 60), "cross")


def test_hostile_tokens_are_drawn_as_text():
    picture = svg(attention.draw(weights_over(HOSTILE), layers=[1], heads=[1]))
    assert not [element for element in picture.iter() if "script" in element.tag]
    shown = [text for text in texts(picture) if not text.startswith(("Layer", "Head", "0", "1"))]
    labels = ["<script>alert(1)</script>", '"];alert(1)//', r"\x07\x00\n\u202e", "]]>&amp;", "</s>"]
    # both axes, in order
    assert [text for text in shown if text not in ("key", "query", "weight")] == labels * 2
