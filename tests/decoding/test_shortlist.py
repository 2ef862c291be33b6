"""Search with a lexical shortlist: its tokens, the plain search, and an exhaustive search."""

import functools
import itertools

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

from tests.checkpoints.saved_runs import refusal
from tests.decoding.models import make_decoding_config, random_sources, teacher_forced, tiny_model
from tests.decoding.test_forced_decoding import (
    REPLICAS,
    SOURCES,
    TOKENIZER,
    VOCABULARY,
    make_decoder,
)
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding import ensemble
from transformer.decoding.beam_search import BeamSearch, SourceBatch
from transformer.decoding.beam_tree import trace
from transformer.decoding.shortlist import Shortlist, ShortlistModel
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL

VOCAB_SIZE = 12


def make_shortlist(
    size: int, vocab_size: int = VOCAB_SIZE, is_shared: bool = False, seed: int = 0
) -> Shortlist:
    """Returns a shortlist of random translations, some of them absent, and two frequent tokens."""
    random = np.random.default_rng(seed)
    translations = random.integers(SPECIAL, vocab_size, (vocab_size, size), np.int32)
    translations[random.random(translations.shape) < 0.2] = -1
    translations[:SPECIAL] = -1
    return Shortlist(translations, np.array([7, 5], np.int32), vocab_size, is_shared)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(("size", "vocab_size"), [(1, 12), (2, 40), (50, 40)])
def test_shortlisted_tokens_are_complete_distinct_and_those_of_their_row(
    size, vocab_size, is_shared
):
    shortlist = make_shortlist(size, vocab_size, is_shared)
    sources = random_sources(20, 9, vocab_size, seed=1)
    shortlisted = shortlist.tokens_of(sources)
    assert shortlisted.shape[1] <= vocab_size
    for source, row in zip(sources, shortlisted, strict=True):
        expected = {
            PAD,
            1,
            BOS,
            EOS,
            *shortlist.frequent.tolist(),
            *shortlist.translations[source].ravel().tolist(),
        }
        if is_shared:
            expected |= set(source.tolist())
        present = row[row >= 0]
        assert present[:SPECIAL].tolist() == [0, 1, 2, 3]
        # in the vocabulary's order, which decides ties, and without duplicates
        assert (np.diff(present) > 0).all()
        assert set(present.tolist()) == expected - {-1}
        assert (row[len(present) :] == -1).all()
        np.testing.assert_array_equal(shortlist.tokens_of(source[None]), row[None])


def search(models, source, shortlisted, limits, width, max_length=16, **changes):
    graphs, parameters = zip(*models, strict=True)
    limits, settings = np.array(limits, np.int32), (width, max_length, *changes.items())
    return jax.device_get(_search(graphs, settings, parameters, source, shortlisted, limits))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _search(graphs, settings, parameters, source, shortlisted, limits):
    (width, max_length, *changes), models = settings, ensemble.build_models(graphs, parameters)
    models = (
        models if shortlisted is None else [ShortlistModel(model, shortlisted) for model in models]
    )
    decoding_config = make_decoding_config(beam_size=width, **dict(changes))
    return BeamSearch(
        models, SourceBatch(source, limits, max_length), decoding_config, n_best=width
    ).run()[0]


@pytest.mark.first_case
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize(("sharing", "count"), [("all", 1), ("none", 1), ("all", 2)])
def test_with_the_whole_vocabulary_as_shortlist_the_search_is_the_plain_one(
    sharing, count, beam_size
):
    changes = {"share_embeddings": sharing, "output_bias": sharing == "none"}
    models = [tiny_model(VOCAB_SIZE, seed=seed, **changes) for seed in range(count)]
    sources = random_sources(16, 6, VOCAB_SIZE, seed=1)
    limits = (sources != PAD).sum(axis=1) + 4
    shortlisted = np.tile(np.arange(VOCAB_SIZE, dtype=np.int32), (16, 1))
    plain, listed = (
        search(models, sources, tokens, limits, beam_size) for tokens in (None, shortlisted)
    )
    np.testing.assert_array_equal(listed.tokens, plain.tokens)
    np.testing.assert_allclose(listed.scores, plain.scores, atol=1e-5)
    np.testing.assert_allclose(
        listed.token_log_probabilities, plain.token_log_probabilities, atol=1e-5
    )


@pytest.mark.first_case
@pytest.mark.parametrize("count", [1, 2])
def test_the_search_is_exhaustive_over_the_renormalized_shortlist_of_each_row(count):
    limit, alpha = 3, 0.6
    models = [tiny_model(9, seed=seed) for seed in range(count)]
    sources = random_sources(2, 5, 9, seed=4)
    shortlisted = np.array([[0, 1, 2, 3, 5, 8, -1], [0, 1, 2, 3, 4, 6, 7]], np.int32)
    width = sum(4**length for length in range(limit + 1))
    settings = {"length_penalty": alpha, "forbid_unk": False}
    hypotheses = search(models, sources, shortlisted, [limit] * 2, width, limit + 1, **settings)
    for row, source in enumerate(sources):
        allowed = shortlisted[row][shortlisted[row] >= 0]
        words = [token for token in allowed.tolist() if token not in (PAD, BOS, EOS)]
        space = [
            [*body, EOS]
            for length in range(limit + 1)
            for body in itertools.product(words, repeat=length)
        ]
        by_model = [teacher_forced([model], source, space).astype(np.float64) for model in models]
        by_model = [
            log_p - logsumexp(log_p[:, :, allowed], axis=2, keepdims=True) for log_p in by_model
        ]
        log_p = logsumexp(by_model, axis=0) - np.log(count)
        sums = [
            sum(log_p[i, t, token] for t, token in enumerate(output))
            for i, output in enumerate(space)
        ]
        scores = np.array(sums) / [((5 + len(output)) / 6) ** alpha for output in space]
        ranking = np.argsort(-scores)
        outputs = [
            tokens[tokens != PAD].tolist() for tokens in hypotheses.tokens[row, : len(space)]
        ]
        assert outputs == [space[i] for i in ranking]
        np.testing.assert_allclose(hypotheses.scores[row, : len(space)], scores[ranking], rtol=1e-5)
        assert (hypotheses.scores[row, len(space) :] == -np.inf).all()


@pytest.mark.slow
def test_a_beam_tree_has_only_shortlisted_tokens_and_leads_to_the_translation():
    shortlist, seen = make_shortlist(1), set()
    texts, decoder = [text for text in SOURCES if text], make_decoder(shortlist=shortlist)
    for text, (best,) in zip(texts, decoder.translate(REPLICAS, texts), strict=True):
        tree = trace(decoder, REPLICAS, text)
        assert tuple(tree.nodes[i].piece for i in tree.best[1:]) == best.pieces
        assert tree.nodes[tree.best[-1]].score == pytest.approx(best.score, rel=1e-5)
        (shortlisted,) = shortlist.tokens_of(np.array([[*VOCABULARY.encode([text])[0], EOS]]))
        pieces = {VOCABULARY.pieces[token] for token in shortlisted if token >= 0}
        assert {node.piece for node in tree.nodes} <= pieces
        seen |= set(VOCABULARY.pieces) - pieces
    assert seen, "the shortlists have the whole vocabulary"


def test_a_saved_shortlist_has_as_many_translations_as_are_asked_of_it(tmp_path):
    shortlist, path = make_shortlist(5), tmp_path / "shortlist.npz"
    shortlist.save(path, TOKENIZER)
    for size in (2, 5):
        loaded = Shortlist.load(path, TOKENIZER, size)
        np.testing.assert_array_equal(loaded.translations, shortlist.translations[:, :size])
        np.testing.assert_array_equal(loaded.frequent, shortlist.frequent)
        assert (loaded.vocab_size, loaded.is_shared) == (VOCAB_SIZE, True)
    assert not Shortlist.load(path, Tokenizer(VOCABULARY, IdsVocabulary(VOCAB_SIZE)), 1).is_shared


def test_a_shortlist_that_does_not_fit_is_refused(tmp_path):
    path, command = tmp_path / "shortlist.npz", f"python -m scripts.shortlist --workdir={tmp_path}"
    expected = f"--decoding.shortlist=6: {path} is missing; make it with: {command}"
    assert refusal(Shortlist.load, path, TOKENIZER, 6) == expected
    make_shortlist(5).save(path, TOKENIZER)
    expected = (
        f"--decoding.shortlist=6: must be at most 5, the translations of each token in {path}"
    )
    assert refusal(Shortlist.load, path, TOKENIZER, 6) == expected
    larger = IdsVocabulary(VOCAB_SIZE + 1)
    message = refusal(Shortlist.load, path, Tokenizer(larger, larger), 5)
    assert message == f"{path}: is for another vocabulary; make it again with: {command}"


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "array", "arrays"])
def test_a_damaged_shortlist_is_refused(tmp_path, damage):
    path = tmp_path / "shortlist.npz"
    make_shortlist(5).save(path, TOKENIZER)
    content = path.read_bytes()
    with path.open("wb") as file:
        if damage == "array":
            np.save(file, np.zeros(3))
        elif damage == "arrays":
            np.savez(file, frequent=np.zeros(3))
        else:
            file.write({"empty": b"", "cut": content[:-40], "text": b"shortlist"}[damage])
    assert f"{path}: damaged (" in refusal(Shortlist.load, path, TOKENIZER, 5)
