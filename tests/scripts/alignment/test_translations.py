"""IBM Model 1: a textbook's numbers, the likelihood, and the dictionary behind a corpus."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from scripts.alignment import translations
from scripts.alignment.translations import TokenLinks


def links_of(pairs) -> TokenLinks:
    targets = [(source, target) for source, side in pairs for target in side]
    links = [(token, target, i) for i, (source, target) in enumerate(targets) for token in source]
    return TokenLinks(*map(np.array, zip(*links, strict=True)))


def learned(chunks, sizes, iterations):
    """Returns the probabilities after each iteration, and the log-likelihood before it."""
    results = itertools.islice(translations.em_iterations(lambda: chunks, sizes), iterations)
    return [(probabilities.toarray(), log_likelihood) for probabilities, log_likelihood in results]


def random_pairs(
    count: int, seed: int, vocab_size: int = 30
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns pairs whose target is the source, each token t become vocab_size - 1 - t, in random
    order.
    """
    random = np.random.default_rng(seed)
    sources = [random.integers(0, vocab_size, random.integers(1, 9)) for _ in range(count)]
    return [(source, vocab_size - 1 - random.permutation(source)) for source in sources]


def test_the_probabilities_are_those_of_the_textbook():
    # Koehn, Statistical Machine Translation (2010), figure 4.4. Source: das 0, Buch 1, Haus 2, ein
    # 3. Target: the 0, book 1, house 2, a 3.
    pairs = [([0, 2], [0, 2]), ([0, 1], [0, 1]), ([3, 1], [3, 1])]
    expected = {
        (0, 0): (0.5, 0.6364, 0.7479),
        (0, 1): (0.25, 0.1818, 0.1208),
        (0, 2): (0.25, 0.1818, 0.1313),
        (1, 1): (0.5, 0.6364, 0.7479),
        (1, 3): (0.25, 0.1818, 0.1313),
        (2, 0): (0.5, 0.4286, 0.3466),
        (2, 2): (0.5, 0.5714, 0.6534),
        (3, 3): (0.5, 0.5714, 0.6534),
    }
    for number, (probabilities, _) in enumerate(learned([links_of(pairs)], (4, 4), 3)):
        for link, values in expected.items():
            assert probabilities[link] == pytest.approx(values[number], abs=5e-5)


def test_the_likelihood_grows_and_the_dictionary_is_found():
    results = learned([links_of(random_pairs(300, seed=0))], (30, 30), 10)
    likelihoods = [log_likelihood for _, log_likelihood in results]
    assert likelihoods[0] == pytest.approx(np.log(1 / 30))
    assert (np.diff(likelihoods) > -1e-6).all() and likelihoods[-1] > likelihoods[0] + 1
    probabilities = results[-1][0]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-4)
    assert probabilities.argmax(axis=1).tolist() == list(range(29, -1, -1))


def test_chunks_change_nothing():
    pairs = random_pairs(40, seed=1)
    whole = learned([links_of(pairs)], (30, 30), 4)
    parts = learned([links_of(pairs[:1]), links_of(pairs[1:25]), links_of(pairs[25:])], (30, 30), 4)
    for (mine, likelihood), (its, its_likelihood) in zip(whole, parts, strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-12)
        assert likelihood == pytest.approx(its_likelihood)


def test_a_token_whose_probabilities_have_all_become_zero_is_ignored(monkeypatch):
    monkeypatch.setattr(translations, "SMALLEST", 0.3)
    pairs = [([0], [0]), ([0], [0]), ([0], [0]), ([0], [1]), ([1], [1])]
    (first, _), (second, log_likelihood) = learned([links_of(pairs)], (2, 2), 2)
    np.testing.assert_allclose(first, [[0.75, 0], [0, 1]])
    np.testing.assert_allclose(second, [[1, 0], [0, 1]])
    assert log_likelihood == pytest.approx((3 * np.log(0.75) + np.log(0.3)) / 5)


def test_chunks_hold_every_link_once_and_few_of_them(monkeypatch):
    pairs = random_pairs(50, seed=2)
    sides = list(zip(*pairs, strict=True))
    corpus = SimpleNamespace(
        lengths=np.array([[len(source), len(target)] for source, target in pairs], np.int32),
        tokens=lambda side, chosen: np.concatenate([sides[side][i] for i in chosen]),
    )
    monkeypatch.setattr(translations, "CHUNK", 100)
    chosen = np.arange(50)[::-2]
    chunks = list(translations.read_links(corpus, chosen))
    expected = links_of([pairs[i] for i in chosen])
    for name in ("sources", "targets"):
        read = np.concatenate([getattr(chunk, name) for chunk in chunks])
        np.testing.assert_array_equal(read, getattr(expected, name))
    for chunk in chunks:  # each counts its own target tokens
        assert np.unique(chunk.positions).tolist() == list(range(chunk.positions[-1] + 1))
    assert sum(chunk.positions[-1] + 1 for chunk in chunks) == expected.positions[-1] + 1
    assert len(chunks) > 5 and max(len(chunk.sources) for chunk in chunks) < 100 + 64
