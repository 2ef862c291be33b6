"""The coverage penalty: by hand, against exhaustive search, and in the decoder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.control.test_constraints import LIMIT, MODEL, SCORES, SOURCE, SPACE, VOCAB_SIZE
from tests.decoding.models import make_decoding_config, tiny_model
from tests.decoding.test_text_decoder import make_decoder, random_texts, translate
from transformer.decoding import ensemble
from transformer.decoding.batches import pad
from transformer.decoding.beam_search import SourceBatch
from transformer.decoding.coverage import log_coverage, search_with_coverage
from transformer.model.transformer import attention_weights
from transformer.support.special_tokens import BOS, EOS, PAD

DEEP = [
    tiny_model(VOCAB_SIZE, seed, num_layers=2, **changes)
    for seed, changes in ((5, {}), (6, {"source_eos": False}))
]


def build(models):
    return ensemble.build_models(
        [model.graph for model in models], [jax.tree.map(jnp.asarray, m.parameters) for m in models]
    )


def by_hand(models, source: np.ndarray, body: list[int]) -> float:
    """Returns the penalty with beta 1, in loops over the weights from `attention_weights`."""
    arrays = jnp.array(source[None]), jnp.array([[BOS, *body]])
    weights = np.mean(
        [attention_weights(model, *arrays)["cross"][-1, 0] for model in models], axis=0
    )
    total, heads = 0.0, range(weights.shape[0])
    for i, token in enumerate(source.tolist()):
        if token not in (EOS, PAD):
            attention = sum(
                weights[head, j, i] / len(heads) for head in heads for j in range(len(body) + 1)
            )
            total += np.log(min(attention, 1.0))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [DEEP[:1], DEEP[1:], DEEP])
def test_the_penalty_by_hand(graphs):
    models = build(graphs)
    bodies, sources = (
        [[4, 5], [], [5, 5, 4, 5]],
        np.array([[4, 5, 4, EOS, PAD], [5, EOS, PAD, PAD, PAD], [4, 4, 5, 5, EOS]]),
    )
    target = pad([[*body, EOS] for body in bodies], 3, 6)
    found = log_coverage(models, jnp.array(sources), jnp.array(target), len(target) // len(sources))
    expected = [by_hand(models, source, body) for source, body in zip(sources, bodies, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert min(expected) < -0.1


@functools.partial(jax.jit, static_argnums=0)
def search(beta, parameters, source):
    models = ensemble.build_models([MODEL.graph], parameters)
    decoding_config = make_decoding_config(
        forbid_unk=False, beam_size=len(SPACE), coverage_penalty=beta
    )
    return search_with_coverage(
        models, SourceBatch(source, jnp.array([LIMIT]), LIMIT + 1), decoding_config, n_best=50
    )[0]


@pytest.mark.slow
def test_the_beam_is_ranked_by_score_and_penalty():
    beta = 2.0
    models = build([MODEL])
    scores = SCORES + beta * np.array([by_hand(models, SOURCE[0], body) for body in SPACE])
    best = np.argsort(-scores)[:50]
    hypotheses = search(beta, [MODEL.parameters], SOURCE)
    found = [row[row != PAD].tolist() for row in np.array(hypotheses.tokens[0])]
    assert (
        found == [[*SPACE[i], EOS] for i in best]
        and best.tolist() != np.argsort(-SCORES)[:50].tolist()
    )
    np.testing.assert_allclose(hypotheses.scores[0], scores[best], rtol=1e-4)


def test_neighbours_and_n_best_change_nothing_and_the_key_has_an_effect():
    texts = random_texts(20, longest=15, seed=0)
    decoder = make_decoder(coverage_penalty=1.0, beam_size=4)
    together, plain = (
        translate(decoder, texts, n_best=4),
        translate(make_decoder(beam_size=4), texts, n_best=4),
    )
    assert [best.text for best, *_ in together] == [
        best.text for (best,) in translate(decoder, texts)
    ]
    for text, ranked, unranked in zip(texts[:4], together, plain, strict=False):
        (one,) = translate(decoder, [text], n_best=4)
        assert [best.tokens for best in one] == [best.tokens for best in ranked]
        np.testing.assert_allclose([x.score for x in one], [x.score for x in ranked], atol=1e-4)
        assert {best.tokens for best in ranked} == {best.tokens for best in unranked}
    assert [best.text for best, *_ in together] != [best.text for best, *_ in plain]
