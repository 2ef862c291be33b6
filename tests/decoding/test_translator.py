"""The translator: batches, order, cut lines, and independence of neighbours."""

import jax
import numpy as np
import pytest
from absl import logging

from configs import base
from tests.decoding.models import log_probabilities, tiny_model
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding.batches import make_batches, padded_lengths
from transformer.decoding.replicas import Replicas
from transformer.decoding.shortlist import Shortlist
from transformer.decoding.strategies import STRATEGIES, Strategy
from transformer.decoding.translation import EMPTY
from transformer.decoding.translator import Translator
from transformer.errors import UserError
from transformer.special_tokens import EOS, UNK

VOCAB_SIZE = 12
VOCABULARY = IdsVocabulary(VOCAB_SIZE)
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY)
MODEL = tiny_model(VOCAB_SIZE, seed=0)
DEVICES = jax.local_devices()
RANDOM = np.random.default_rng(0)
SHORTLIST = Shortlist(
    RANDOM.integers(4, VOCAB_SIZE, (VOCAB_SIZE, 1), np.int32), np.array([5], np.int32), VOCAB_SIZE, is_shared=False
)


def make_translator(
    n_best: int = 1, shortlist: Shortlist | None = None, tokenizer: Tokenizer = TOKENIZER, **changes
) -> Translator:
    config = base.get_config().decoding
    config.update({"beam_size": 2, "max_extra_length": 4, "max_source_length": 20, "batch_tokens": 256, **changes})
    return Translator([MODEL.graph], tokenizer, config, n_best, DEVICES, shortlist)


def translate(translator: Translator, texts: list[str], first_line: int = 1, report=lambda count: None):
    return translator.translate(replicas(), texts, first_line, report)


def replicas(parameters: dict = MODEL.parameters) -> Replicas:
    return Replicas([MODEL.graph], [parameters], DEVICES[0])


def random_texts(count: int, longest: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, longest + 1, count)
    return [" ".join(map(str, random.integers(0, VOCAB_SIZE - 4, length))) for length in lengths]


@pytest.fixture
def warnings_logged(monkeypatch) -> list[str]:
    logged: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda message, *values: logged.append(message % values))
    return logged


@pytest.mark.parametrize("shortlist", [None, SHORTLIST], ids=["vocabulary", "shortlist"])
def test_order_is_restored_and_neighbours_and_batch_size_change_nothing(shortlist):
    texts = random_texts(60, longest=19, seed=0)
    translator = make_translator(n_best=2, shortlist=shortlist)
    together = translate(translator, texts)
    assert all(len(each) == 2 for each in together)
    one_by_one = [translate(translator, [text])[0] for text in texts]
    backwards = translate(translator, texts[::-1])[::-1]
    other_rows = translate(make_translator(n_best=2, shortlist=shortlist, batch_tokens=1), texts)
    for other in (one_by_one, backwards, other_rows):
        for mine, its in zip(together, other, strict=True):
            assert [each.text for each in mine] == [each.text for each in its]
            np.testing.assert_allclose([each.score for each in mine], [each.score for each in its], atol=1e-4)


def test_scores_are_those_of_the_uncached_model():
    source = "1 2 3 4"
    best, second = translate(make_translator(n_best=2), [source])[0]
    assert best.score >= second.score
    for each in (best, second):
        assert VOCABULARY.decode([each.tokens]) == [each.text]
        output = list(each.tokens)
        assert output[-1] == EOS
        assert each.pieces == tuple(VOCABULARY.pieces[token] for token in output)
        assert sum(each.token_log_probabilities) == pytest.approx(each.log_probability, rel=1e-12)
        assert len(each.token_log_probabilities) == len(output)
        expected = log_probabilities([MODEL], np.array([*VOCABULARY.encode([source])[0], EOS]), [output])[0]
        assert each.log_probability == pytest.approx(expected, rel=1e-5)
        assert each.score == pytest.approx(expected / ((5 + len(output)) / 6) ** 0.6, rel=1e-5)


class LastIntegers(IdsVocabulary):
    """A vocabulary whose outputs have equal texts if they end with the same integer."""

    def decode(self, sequences) -> list[str]:
        return super().decode([tokens[-2:] for tokens in sequences])


def test_of_equal_texts_the_best_is_returned_and_the_rest_of_the_beam_fills_up():
    texts = ["1 2", "3", "4 4 0"]
    beams = translate(make_translator(4, beam_size=4), texts)
    tokenizer = Tokenizer(VOCABULARY, LastIntegers(VOCAB_SIZE))
    found = translate(make_translator(2, None, tokenizer, beam_size=4), texts)
    for beam, pair in zip(beams, found, strict=True):
        other = [each for each in beam if each.tokens[-2] != beam[0].tokens[-2]][:1]
        assert [(each.tokens, each.score) for each in pair] == [(each.tokens, each.score) for each in beam[:1] + other]
    # Of the first source the fourth hypothesis is the second text; of the last source all hypotheses have one text.
    assert found[0][1].tokens == beams[0][3].tokens and len(found[2]) == 1


def test_samples_of_equal_text_are_all_returned():
    hypotheses = (np.array([[5, EOS]] * 2), np.zeros(2, np.float32), np.zeros((2, 2), np.float32))
    assert len(make_translator(2, strategy="sample")._read(*hypotheses)) == 2
    assert len(make_translator(2)._read(*hypotheses)) == 1


def test_lines_without_tokens_stay_empty_and_are_not_searched():
    translator = make_translator()
    translator.search = None
    assert translate(translator, ["", "   ", "\t"]) == [[EMPTY]] * 3


def test_a_line_that_is_too_long_is_cut_with_a_warning(warnings_logged):
    longest = " ".join(map(str, [1, 2, 3] * 6 + [4]))
    translator = make_translator()
    whole, cut = translate(translator, [longest, longest + " 5 6 7"], first_line=41)
    assert whole == cut
    assert len(warnings_logged) == 1 and "42" in warnings_logged[0] and "23 tokens" in warnings_logged[0]


def test_lines_that_are_cut_are_named_once_and_counted_at_the_end(warnings_logged):
    translator, texts = make_translator(), [" ".join(["1"] * count) for count in (20, 19, 25)]
    translator.compilations([MODEL.parameters], texts)
    for first_line in (1, 4, 7):
        translator._encode(texts, first_line, translator._warn_once)
    translator.log_cut_lines()
    translator.log_cut_lines()
    named, count = warnings_logged
    assert named.startswith("Line 1 has 21 tokens")
    assert count == "6 lines are cut to decoding.max_source_length=20."


def test_many_texts_share_a_few_shapes():
    translator = make_translator()
    for seed in range(3):
        translate(translator, random_texts(40, longest=40, seed=seed))
    # Two padded lengths, in each of two passes.
    assert len(padded_lengths(20)) == 2
    assert len(translator.search.programs) <= 4


def test_progress_counts_every_line_once():
    counts = []
    translate(make_translator(), ["", *random_texts(30, 12, seed=1)], report=counts.append)
    assert sum(counts) == 31


def test_nan_parameters_give_empty_translations():
    broken = jax.tree.map(lambda x: x * np.nan, MODEL.parameters)
    assert make_translator().translate(replicas(broken), ["1 2"], 1, lambda count: None) == [[EMPTY]]


def test_samples_depend_on_the_line_number_but_not_on_other_lines():
    texts = random_texts(20, longest=12, seed=2)
    translator = make_translator(n_best=3, strategy="sample")
    together = translate(translator, texts)
    alone = translate(translator, texts[7:8], first_line=8)
    assert [each.text for each in alone[0]] == [each.text for each in together[7]]
    first_only = translate(make_translator(n_best=1, strategy="sample"), texts)
    assert [each[0].text for each in together] == [each[0].text for each in first_only]
    elsewhere = translate(translator, texts[7:8], first_line=9)
    assert [each.text for each in elsewhere[0]] != [each.text for each in together[7]]
    other_seed = translate(make_translator(n_best=3, strategy="sample", seed=1), texts)
    assert together != other_seed


def test_a_token_that_is_no_integer_is_reported_with_its_line():
    with pytest.raises(UserError, match="line 3: 'x'"):
        translate(make_translator(), ["1", "2", "3 x"])


def test_n_best_beyond_the_beam_size_is_refused():
    with pytest.raises(UserError, match="--n_best=3: must be at most decoding.beam_size=2"):
        make_translator(n_best=3)


@pytest.mark.parametrize("shortest, most", [(16, 5), (64, 3)])
@pytest.mark.parametrize("longest", [1, 2, 15, 16, 17, 100, 256])
def test_batches_hold_every_sequence_once_within_the_budget(longest, shortest, most):
    lengths = dict(enumerate(np.random.default_rng(longest).integers(1, longest + 1, 300).tolist()))
    batches = make_batches(lengths, longest, extra_length=10, max_positions=512, shortest=shortest)
    assert sorted(i for batch in batches for i in batch.indices) == list(lengths)
    for batch in batches:
        assert batch.length in padded_lengths(longest, shortest)
        assert max(lengths[i] for i in batch.indices) <= batch.length
        assert len(batch.indices) <= batch.rows
        assert batch.rows == 1 or batch.rows * (batch.length + 10) <= 512
    assert len({(batch.rows, batch.length) for batch in batches}) <= len(padded_lengths(longest, shortest)) <= most


def test_long_outputs_take_a_second_pass_with_the_same_result(monkeypatch):
    texts = random_texts(40, longest=15, seed=3)
    one_pass = translate(make_translator(max_extra_length=8), texts)
    extra_lengths = []
    translator = make_translator(max_extra_length=8)
    search = translator.search.map

    def spy(*arguments, extra_length):
        extra_lengths.append(extra_length)
        return search(*arguments, extra_length=extra_length)

    monkeypatch.setattr(translator.search, "map", spy)
    monkeypatch.setattr("transformer.decoding.translator.FIRST_EXTRA_LENGTH", 1)
    two_passes = translate(translator, texts)
    assert extra_lengths == [1, 8]
    for once, twice in zip(one_pass, two_passes, strict=True):
        assert once[0].text == twice[0].text
        assert once[0].score == pytest.approx(twice[0].score, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"max_extra_length": 9}, 2),
        ({"max_extra_length": 8}, 1),
        ({"max_extra_length": 9, "strategy": "ctc"}, 1),
        ({"max_extra_length": 9, "strategy": "ctc", "beam_size": 1}, 1),
    ],
)
def test_each_pass_that_can_find_more_is_compiled_once(changes, passes):
    translator = make_translator(**changes)
    texts = random_texts(40, longest=15, seed=3)  # one padded length
    assert len(translator.compilations([MODEL.parameters], texts)) == passes


@pytest.mark.parametrize("shortlist", [None, SHORTLIST], ids=["vocabulary", "shortlist"])
def test_a_program_compiled_ahead_is_the_one_that_translates(shortlist):
    translator, texts = make_translator(shortlist=shortlist), random_texts(5, longest=9, seed=3)
    for compilation in translator.compilations([MODEL.parameters], texts):
        compilation()
    ahead = set(translator.search.programs)
    translate(translator, texts)
    assert ahead == set(translator.search.programs) and len(ahead) == 1


@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_unk_is_generated_only_if_allowed(strategy):
    model = tiny_model(VOCAB_SIZE, seed=7)
    model.parameters["decoder"]["embedding"]["table"][UNK] *= 20.0

    def tokens(**changes) -> list[int]:
        translator = make_translator(strategy=strategy, **changes)
        found = translator.translate(replicas(model.parameters), random_texts(20, 12, seed=4), 1, lambda count: None)
        return [token for (best,) in found for token in best.tokens]

    assert base.get_config().decoding.forbid_unk
    assert UNK not in tokens() and UNK in tokens(forbid_unk=False)


def test_a_strategy_in_the_table_is_used_and_another_is_an_error(monkeypatch):
    beam, used = STRATEGIES["beam"], []

    def search(*arguments):
        used.append(arguments)
        return beam.search(*arguments)

    monkeypatch.setitem(STRATEGIES, "new", Strategy(beam.num_hypotheses, search))
    texts = random_texts(5, 12, seed=5)
    assert translate(make_translator(strategy="new"), texts) == translate(make_translator(), texts) and used
    with pytest.raises(KeyError):
        make_translator(strategy="unknown")
