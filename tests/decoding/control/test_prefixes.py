"""Prefixes that end within a word, in a vocabulary that spells the same text in several ways."""

import itertools
import math
import re

import pytest

from tests.decoding.control.test_phrases import MODEL, SPELLING, TEXTS, VOCABULARY, make_decoder
from tests.decoding.models import log_probabilities
from tests.decoding.test_text_decoder import VOCABULARY as INTEGERS
from transformer.decoding.batches import pad
from transformer.decoding.control.control import Control
from transformer.decoding.control.phrases import Spelling
from transformer.decoding.control.prefixes import ended_word, fragment_states, split_fragment
from transformer.decoding.translation import encode
from transformer.support.special_tokens import EOS, SPECIAL


def token(text: str) -> int:
    return SPELLING.token_of[text]


def test_the_last_word_is_split_off():
    tokens = VOCABULARY.encode(["b ab"])[0]
    assert split_fragment(tokens, SPELLING) == ([token(" b")], " ab")
    assert split_fragment([], SPELLING) == ([], "")
    whole = INTEGERS.encode(["1 2"])[0]
    assert split_fragment(whole, Spelling(INTEGERS)) == (whole, "")


def test_states_by_hand():
    """The tokens of the vocabulary are ab, _ab, _b, _a, a, b, _ and the full stop."""
    states = fragment_states(2, " ab", SPELLING)
    assert [state[0] for state in states] == [2, 2, 2]
    following = [
        [SPELLING.sorted_texts[rank] for rank in range(first, end_plus_one - 1)]
        for _, first, end_plus_one, *_ in states
    ]
    assert following == [[" ab"], ["ab"], ["b"]]
    beginnings = [{SPELLING.texts[x] for x in tokens} for _, _, _, *tokens in states]
    assert beginnings == [{" ", " a", " ab"}, {"a", "ab"}, {"b"}]


def test_a_beginning_that_the_other_tokens_cannot_finish_is_left_out():
    """Both "_x" and "_xy" begin "_xyz", but no token spells the "z" alone."""
    spelling = object.__new__(Spelling)
    spelling.token_of = {" x": 4, " xy": 5, "yz": 6}
    spelling.sorted_texts = sorted(spelling.token_of)
    first, *_ = fragment_states(0, " xyz", spelling)
    assert first[3:] == [4]


@pytest.mark.first_case
@pytest.mark.parametrize("prefix", ["a", "ab a", "b.a", "ba"])
def test_the_search_finds_the_best_of_all_outputs_that_begin_with_the_characters(prefix):
    decoder = make_decoder(
        beam_size=32, max_extra_length=0, max_length_factor=1.0, length_penalty=0.0
    )
    limit = 4
    source_text = "b a b."
    tokens = encode(VOCABULARY, "source", source_text)
    assert len(tokens) - 1 == limit
    source = pad([tokens], 1, 16)[0]
    bodies = [
        body
        for n in range(limit + 1)
        for body in itertools.product(range(SPECIAL, VOCABULARY.size), repeat=n)
    ]
    spelled = ["".join(SPELLING.texts[x] for x in body) for body in bodies]
    obedient = [
        list(body)
        for body, text in zip(bodies, spelled, strict=True)
        if text.startswith(f" {prefix}")
    ]
    best = max(log_probabilities([MODEL], source, [[*body, EOS] for body in obedient]))
    ((found,),) = decoder.translate(
        decoder.place([MODEL.parameters]), [source_text], controls=[Control(prefix)]
    )
    assert found.text.startswith(prefix)
    assert math.isclose(found.log_probability, best, rel_tol=1e-4)


def test_tokens_after_the_end_of_a_word_by_hand():
    ((num_forced, first, end_plus_one, *others),) = ended_word(2, SPELLING)
    with_space = SPELLING.sorted_texts[first : end_plus_one - 1]
    assert num_forced == 2 and with_space == [" ", " a", " ab", " b"]
    assert EOS in others and {SPELLING.texts[x] for x in others} == {".", ""}


def test_a_space_after_a_prefix_ends_its_last_word():
    decoder = make_decoder()
    parameters = decoder.place([MODEL.parameters])
    for word in ("a", "ab", "b"):
        controls = [Control(f"{word} ")] * len(TEXTS)
        found = decoder.translate(parameters, TEXTS, controls=controls)
        assert all(re.match(rf"{word}\b", best.text) for (best,) in found), word
    # A space after punctuation allows all that follows.
    whole = [Control("b. ")] * len(TEXTS), [Control(VOCABULARY.encode(["b."])[0])] * len(TEXTS)
    first, second = (decoder.translate(parameters, TEXTS, controls=controls) for controls in whole)
    assert [best.tokens for (best,) in first] == [best.tokens for (best,) in second]


@pytest.mark.parametrize("prefix", ["a ", "ab "])
def test_required_phrases_hold_after_a_prefix_that_ends_a_word(prefix):
    decoder = make_decoder(max_extra_length=8)
    controls = [Control(prefix, required=[["bb"]])] * len(TEXTS)
    found = decoder.translate(decoder.place([MODEL.parameters]), TEXTS, controls=controls)
    assert all(re.match(rf"{prefix.strip()}\b.*\bbb\b", best.text) for (best,) in found)


def test_a_prefix_within_a_word_holds_whatever_its_neighbours():
    decoder = make_decoder()
    parameters = decoder.place([MODEL.parameters])
    prefixes = ["a", "", "b.a", "ab b", "a"]
    controls = [Control(prefix) for prefix in prefixes]
    together = decoder.translate(parameters, TEXTS, controls=controls)
    for (best,), prefix in zip(together, prefixes, strict=True):
        assert best.text.startswith(prefix)
    for text, control, expected in zip(TEXTS, controls, together, strict=True):
        (alone,) = decoder.translate(parameters, [text], controls=[control])
        assert alone[0].tokens == expected[0].tokens
