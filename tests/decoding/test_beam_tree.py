"""The recorded tree of a beam search, and alternatives, compared with translations and the uncached
model.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.control.decoders import make_decoder as make_texts_decoder
from tests.decoding.models import teacher_forced
from tests.decoding.test_forced_decoding import (
    DECODER,
    MODELS,
    REPLICAS,
    SOURCES,
    TOKENIZER,
    encode,
    make_decoder,
)
from tests.decoding.test_text_decoder import MODEL, VOCABULARY, random_texts, translate
from transformer.decoding.beam_tree import DROPPED, ENDED, KEPT, BeamTree, alternatives, trace
from transformer.decoding.control.control import Control
from transformer.decoding.forced_decoding import score_pairs
from transformer.decoding.translation import EMPTY
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL, UNK

COUNT = 9  # tokens that may be generated
TREES = [trace(DECODER, REPLICAS, text) for text in SOURCES if text]


def path(tree: BeamTree, index: int) -> list[int]:
    """Returns the nodes from the root's child to a node."""
    nodes = []
    while tree.nodes[index].parent is not None:
        nodes.insert(0, index)
        index = tree.nodes[index].parent
    return nodes


def test_the_best_node_is_the_translation():
    expected = DECODER.translate(REPLICAS, [text for text in SOURCES if text], n_best=3)
    for tree, translations in zip(TREES, expected, strict=True):
        assert tuple(tree.nodes[i].piece for i in tree.best[1:]) == translations[0].pieces
        assert tree.nodes[tree.best[-1]].score == pytest.approx(translations[0].score, rel=1e-5)
        assert tree.nodes[tree.best[0]].parent is None


def test_a_search_without_an_output_is_an_error():
    parameters = jax.tree.map(lambda x: x * jnp.nan, MODEL.parameters)
    decoder = make_texts_decoder()
    (text, *_) = random_texts(1, longest=9, seed=0)
    with pytest.raises(UserError, match="the search finds no output"):
        trace(decoder, decoder.place([parameters]), text)


@pytest.mark.slow
def test_searches_and_scores_follow_the_length_options():
    options = {
        "length_penalty_form": "power",
        "length_penalty": 1.0,
        "max_length_factor": 0.5,
        "max_extra_length": 1,
    }
    decoder, texts = make_decoder(**options), [text for text in SOURCES if text]
    translations = [best for (best,) in decoder.translate(REPLICAS, texts)]
    pairs = [(text, best.text) for text, best in zip(texts, translations, strict=True)]
    for text, best, scored in zip(
        texts, translations, score_pairs(decoder, REPLICAS, pairs), strict=True
    ):
        tree = trace(decoder, REPLICAS, text)
        assert tuple(tree.nodes[i].piece for i in tree.best[1:]) == best.pieces
        expected = best.log_probability / len(best.tokens)
        assert [best.score, tree.nodes[tree.best[-1]].score, scored.score] == pytest.approx(
            [expected] * 3, rel=1e-4
        )


def test_each_node_has_the_log_probability_of_its_tokens():
    tree, source = TREES[0], np.array(encode(SOURCES[0]))
    leaves = sorted(set(range(len(tree.nodes))) - {node.parent for node in tree.nodes})
    paths = [path(tree, leaf) for leaf in leaves]
    outputs = [
        [TOKENIZER.target.pieces.index(tree.nodes[i].piece) for i in nodes] for nodes in paths
    ]
    log_p = teacher_forced(MODELS, source, outputs).astype(np.float64)
    for row, nodes, output in zip(log_p, paths, outputs, strict=True):
        sums = np.cumsum(row[np.arange(len(output)), output])
        values = [(tree.nodes[i].log_probability, tree.nodes[i].score) for i in nodes]
        lengths = np.arange(1, len(output) + 1)
        np.testing.assert_allclose(
            values, np.stack([sums, sums / ((5 + lengths) / 6) ** 0.6], axis=1), rtol=1e-4
        )


@pytest.mark.parametrize("tree", TREES)
def test_a_step_keeps_the_best_extensions_of_the_hypotheses_that_were_kept(tree):
    depths = [len(path(tree, i)) for i in range(len(tree.nodes))]
    assert depths == sorted(depths)
    kept = {i for i, node in enumerate(tree.nodes) if node.outcome == ENDED}
    for depth in range(1, max(depths) + 1):
        step = [
            i for i, its in enumerate(depths) if its == depth and tree.nodes[i].outcome != ENDED
        ]
        scores = [tree.nodes[i].log_probability for i in step]
        beam_size = DECODER.decoding_config.beam_size
        assert len(step) <= 2 * beam_size and scores == sorted(scores, reverse=True)
        kept.update(step[:beam_size])
    assert {node.parent for node in tree.nodes} <= {None, 0, *kept}
    extended = {tree.nodes[i].parent for i in kept}
    for i, node in enumerate(tree.nodes):
        assert node.outcome == (
            ENDED if node.piece == "</s>" else KEPT if i in extended else DROPPED
        )
    assert len(
        {tuple(tree.nodes[j].piece for j in path(tree, i)) for i in range(len(tree.nodes))}
    ) == len(tree.nodes)


def test_a_beam_wider_than_the_vocabulary_has_only_finite_nodes():
    tree = trace(make_decoder(beam_size=12), REPLICAS, "1 2 3")
    assert np.isfinite([node.log_probability for node in tree.nodes]).all()


@pytest.mark.first_case
# decoding.max_source_length is 20, and the longest output has 24 tokens
@pytest.mark.parametrize("length", [22, 40])
def test_a_long_text_is_cut_as_for_its_translation(length, caplog):
    text = " ".join(["4"] * length)
    ((expected,),) = DECODER.translate(REPLICAS, [text])
    tree = trace(make_decoder(), REPLICAS, text)
    warning = (
        f" has {length + 1} tokens including end-of-sentence; only the first 19 are translated"
    )
    assert caplog.text.count(f"Line 1{warning}") == 2
    assert len(tree.source_pieces) == 20
    assert tuple(tree.nodes[i].piece for i in tree.best[1:]) == expected.pieces


@pytest.mark.first_case
@pytest.mark.parametrize("prefix", ["", "3", "2 2 5"])
def test_each_of_the_likeliest_tokens_after_the_prefix_is_completed(prefix):
    decoder = make_texts_decoder(beam_size=5, max_extra_length=6)
    tokens = VOCABULARY.encode([prefix])[0]
    for text in (text for text in random_texts(4, longest=9, seed=2) if text):
        found = alternatives(decoder, decoder.place([MODEL.parameters]), text, prefix, COUNT)
        source = np.array([*VOCABULARY.encode([text])[0], EOS], np.int32)
        log_p = teacher_forced([MODEL], source, [[*tokens, EOS]])[0, len(tokens)]
        log_p[[PAD, BOS, UNK]] = -np.inf
        best = np.argsort(-log_p)[:COUNT].tolist()
        assert [translation.tokens[len(tokens)] for translation in found] == best
        chosen = [translation.token_log_probabilities[len(tokens)] for translation in found]
        np.testing.assert_allclose(chosen, log_p[best], atol=1e-4)
        for token, translation in zip(best, found, strict=True):
            ((forced,),) = translate(decoder, [text], controls=[Control([*tokens, token])])
            assert forced.tokens == translation.tokens
        assert set(best) == {EOS, *range(SPECIAL, VOCABULARY.size)}
        assert (
            alternatives(decoder, decoder.place([MODEL.parameters]), text, prefix, 3) == found[:3]
        )


@pytest.mark.slow
def test_keys_forbid_tokens_and_the_limit_leaves_only_the_end():
    parameters = make_texts_decoder().place([MODEL.parameters])
    decoders = make_texts_decoder(beam_size=5), make_texts_decoder(beam_size=5, min_length=3)
    free, short = (alternatives(decoder, parameters, "1", "3", COUNT) for decoder in decoders)
    assert len(free) == COUNT and any(translation.text == "3" for translation in free)
    assert len(short) == COUNT - 1 and all(len(translation.tokens) > 3 for translation in short)
    (only,) = alternatives(
        make_texts_decoder(max_extra_length=2, max_length_factor=0.0), parameters, "1", "3 3", 4
    )
    assert only.text == "3 3"
    assert alternatives(make_texts_decoder(), parameters, " ", "3", 4) == [EMPTY]


@pytest.mark.parametrize(
    ("prefix", "count", "message"),
    [
        ("1", 5, "^count=5: must be at most 4, twice decoding.beam_size; raise that"),
        ("99", 4, "^prefix: '99' has characters that the vocabulary lacks"),
        (
            "1 1 1 1 1 1",
            4,
            "^line 1: prefix and required phrases have 6 tokens, an output may have 5; shorten",
        ),
    ],
)
def test_what_cannot_be_completed_is_refused(prefix, count, message):
    decoder = make_texts_decoder()
    with pytest.raises(UserError, match=message):
        alternatives(decoder, decoder.place([MODEL.parameters]), "1", prefix, count)
