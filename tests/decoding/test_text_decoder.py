"""Translation by the decoder: order, cut lines, passes, and independence of neighbours."""

import jax
import numpy as np
import pytest
from absl import logging

from configs import base
from tests.decoding.models import greedy, log_probabilities, tiny_model
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding import batches
from transformer.decoding.batches import pad, padded_lengths
from transformer.decoding.beam_search import Hypotheses
from transformer.decoding.forced_decoding import score_pairs
from transformer.decoding.shortlist import Shortlist
from transformer.decoding.strategies import STRATEGIES, Strategy
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import EMPTY
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, UNK

VOCAB_SIZE = 12
VOCABULARY = IdsVocabulary(VOCAB_SIZE)
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY)
MODEL = tiny_model(VOCAB_SIZE, seed=0)
DEVICES = jax.local_devices()
RANDOM = np.random.default_rng(0)
SHORTLIST = Shortlist(
    RANDOM.integers(4, VOCAB_SIZE, (VOCAB_SIZE, 1), np.int32),
    np.array([5], np.int32),
    VOCAB_SIZE,
    is_shared=False,
)


def make_decoder(
    shortlist: Shortlist | None = None,
    tokenizer: Tokenizer = TOKENIZER,
    kind: type[TextDecoder] = TextDecoder,
    **changes,
) -> TextDecoder:
    decoding_config = base.get_config().decoding
    decoding_config.update(
        {
            "beam_size": 2,
            "max_extra_length": 4,
            "max_source_length": 20,
            "batch_tokens": 256,
            **changes,
        }
    )
    return kind([MODEL.graph], tokenizer, decoding_config, DEVICES, shortlist)


def translate(
    decoder: TextDecoder,
    texts: list[str],
    n_best: int = 1,
    parameters=MODEL.parameters,
    **arguments,
):
    return decoder.translate(decoder.place([parameters]), texts, n_best, **arguments)


def random_texts(count: int, longest: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, longest + 1, count)
    return [" ".join(map(str, random.integers(0, VOCAB_SIZE - 4, length))) for length in lengths]


@pytest.fixture
def warnings_logged(monkeypatch) -> list[str]:
    logged: list[str] = []
    monkeypatch.setattr(
        logging, "warning", lambda message, *values: logged.append(message % values)
    )
    return logged


def test_warnings_that_depend_on_texts_are_not_kept_for_ever(warnings_logged):
    decoder = make_decoder()
    for line in range(300):
        decoder.source_tokens(["1 " * 30, "1 2"], line)
        decoder.source_tokens(["1 " * 30, "1 2"], line)
    assert len(warnings_logged) == 300 and decoder._warn_once.cache_info().currsize < 300


@pytest.mark.first_case
@pytest.mark.parametrize("shortlist", [None, SHORTLIST], ids=["vocabulary", "shortlist"])
def test_order_is_restored_and_neighbours_and_batch_size_change_nothing(shortlist):
    texts = random_texts(60, longest=19, seed=0)
    decoder = make_decoder(shortlist)
    together = translate(decoder, texts, n_best=2)
    assert all(len(nbest) == 2 for nbest in together)
    one_by_one = [translate(decoder, [text], n_best=2)[0] for text in texts]
    backwards = translate(decoder, texts[::-1], n_best=2)[::-1]
    other_rows = translate(make_decoder(shortlist, batch_tokens=1), texts, n_best=2)
    for translations in (one_by_one, backwards, other_rows):
        for nbest, expected in zip(translations, together, strict=True):
            assert [best.text for best in nbest] == [best.text for best in expected]
            scores = [best.score for best in nbest]
            np.testing.assert_allclose(scores, [best.score for best in expected], atol=1e-4)


@pytest.mark.first_case
@pytest.mark.parametrize("share", ["all", "none"])
def test_int8_is_close_to_float32_whatever_the_neighbours(share, monkeypatch):
    monkeypatch.setattr(batches, "computes_int8", lambda: True)
    texts, model = (
        random_texts(30, longest=19, seed=1),
        tiny_model(VOCAB_SIZE, seed=0, share_embeddings=share),
    )
    decoding_config = make_decoder(dtype="int8").decoding_config
    decoder = TextDecoder([model.graph], TOKENIZER, decoding_config, DEVICES)
    replicas = decoder.place([model.parameters])
    assert {leaf.dtype.name for leaf in jax.tree.leaves(replicas[DEVICES[0]])} == {
        "float32",
        "int8",
    }
    together = decoder.translate(replicas, texts)
    for text, (best,) in list(zip(texts, together, strict=True))[:8]:
        ((alone,),) = decoder.translate(replicas, [text])
        assert alone.tokens == best.tokens
        np.testing.assert_allclose(alone.score, best.score, atol=1e-5)
    pairs = [
        (text, best.text) for text, (best,) in zip(texts, together, strict=True) if best.tokens
    ]
    exact = TextDecoder([model.graph], TOKENIZER, make_decoder().decoding_config, DEVICES)
    expected = [
        known.log_probability
        for known in score_pairs(exact, exact.place([model.parameters]), pairs)
    ]
    found = [known.log_probability for known in score_pairs(decoder, replicas, pairs)]
    # nats of a sentence, of some -20
    assert 1e-5 < np.abs(np.subtract(found, expected)).mean() < 0.3


@pytest.mark.parametrize(
    "attribute", [("computes_int8", lambda: False), ("target_platform", lambda: "gpu")]
)
def test_int8_is_refused_where_it_would_be_slow(monkeypatch, attribute):
    monkeypatch.setattr(batches, "computes_int8", lambda: True)
    monkeypatch.setattr(batches, *attribute)
    with pytest.raises(
        UserError, match="decoding.dtype=int8: this machine has no fast 8-bit matmuls"
    ):
        make_decoder(dtype="int8")


def test_scores_are_those_of_the_uncached_model():
    source = "1 2 3 4"
    best, second = translate(make_decoder(), [source], n_best=2)[0]
    assert best.score >= second.score
    for translation in (best, second):
        assert VOCABULARY.decode([translation.tokens]) == [translation.text]
        output = list(translation.tokens)
        assert output[-1] == EOS
        assert translation.pieces == tuple(VOCABULARY.pieces[token] for token in output)
        assert sum(translation.token_log_probabilities) == pytest.approx(
            translation.log_probability, rel=1e-12
        )
        assert len(translation.token_log_probabilities) == len(output)
        expected = log_probabilities(
            [MODEL], np.array([*VOCABULARY.encode([source])[0], EOS]), [output]
        )[0]
        assert translation.log_probability == pytest.approx(expected, rel=1e-5)
        assert translation.score == pytest.approx(
            expected / ((5 + len(output)) / 6) ** 0.6, rel=1e-5
        )


class LastIntegers(IdsVocabulary):
    """A vocabulary whose outputs have equal texts if they end with the same integer."""

    def decode(self, sequences) -> list[str]:
        return super().decode([tokens[-2:] for tokens in sequences])


def test_of_equal_texts_the_best_is_returned_and_the_rest_of_the_beam_fills_up():
    texts = ["1 2", "3", "4 4 0"]
    beams = translate(make_decoder(beam_size=4), texts, n_best=4)
    tokenizer = Tokenizer(VOCABULARY, LastIntegers(VOCAB_SIZE))
    pairs = translate(make_decoder(None, tokenizer, beam_size=4), texts, n_best=2)
    for beam, pair in zip(beams, pairs, strict=True):
        next_texts = [
            hypothesis for hypothesis in beam if hypothesis.tokens[-2] != beam[0].tokens[-2]
        ]
        expected = [beam[0], *next_texts[:1]]
        assert [(best.tokens, best.score) for best in pair] == [
            (best.tokens, best.score) for best in expected
        ]
    # Of the first source the fourth hypothesis is the second text; of the last source all
    # hypotheses have one text.
    assert pairs[0][1].tokens == beams[0][3].tokens and len(pairs[2]) == 1


def test_samples_of_equal_text_are_all_returned():
    hypotheses = Hypotheses(
        np.array([[[5, EOS]] * 2]), np.zeros((1, 2), np.float32), np.zeros((1, 2, 2), np.float32)
    )
    assert len(make_decoder(strategy="sample")._read(hypotheses, 0)) == 2
    assert len(make_decoder()._read(hypotheses, 0)) == 1


def test_lines_without_tokens_stay_empty_and_are_not_searched():
    decoder = make_decoder()
    assert translate(decoder, ["", "   ", "\t"]) == [[EMPTY]] * 3
    assert not decoder.programs.compiled


def compilations(decoder, texts):
    lengths = [len(source) for source in decoder.source_tokens(texts, first_line=1)]
    return decoder.compilations(decoder.abstract([MODEL.parameters]), lengths)


def test_a_line_that_is_too_long_is_cut_with_a_warning(warnings_logged):
    longest = " ".join(map(str, [1, 2, 3] * 6 + [4]))
    whole, cut = translate(make_decoder(), [longest, longest + " 5 6 7"], first_line=41)
    assert whole == cut
    assert (
        len(warnings_logged) == 1
        and "42" in warnings_logged[0]
        and "23 tokens" in warnings_logged[0]
    )


def test_the_first_line_that_is_cut_is_named_and_all_are_counted_once(warnings_logged):
    decoder, texts = make_decoder(), [" ".join(["1"] * count) for count in (20, 19, 25)]
    for _ in range(3):  # as a validation does
        decoder.source_tokens(texts, first_line=1)
    (warning,) = warnings_logged
    assert warning.startswith("Line 1 has 21 tokens") and warning.endswith(" 2 of 3 lines are cut.")


def test_lines_of_unknown_words_give_a_warning(warnings_logged):
    decoder = make_decoder()
    decoder.source_tokens(["1 2 999", "3 999 999 999"], first_line=7)
    (warning,) = warnings_logged
    assert warning.startswith("Line 8: its words are unknown")


def test_many_texts_share_a_few_shapes():
    decoder = make_decoder()
    for seed in range(3):
        translate(decoder, random_texts(40, longest=40, seed=seed))
    # Two padded lengths, in each of two passes.
    assert len(padded_lengths(20)) == 2
    assert len(decoder.programs.compiled) <= 4


def test_progress_counts_every_line_once():
    counts = []
    translate(make_decoder(), ["", *random_texts(30, 12, seed=1)], report=counts.append)
    assert sum(counts) == 31


def test_nan_parameters_give_empty_translations():
    broken = jax.tree.map(lambda x: x * np.nan, MODEL.parameters)
    assert translate(make_decoder(), ["1 2"], parameters=broken) == [[EMPTY]]


@pytest.mark.slow
def test_samples_depend_on_the_line_number_but_not_on_other_lines():
    texts = random_texts(20, longest=12, seed=2)
    decoder = make_decoder(strategy="sample")
    together = translate(decoder, texts, n_best=3)
    drawn = [sample.text for sample in together[7]]
    alone = translate(decoder, texts[7:8], n_best=3, first_line=8)
    assert [sample.text for sample in alone[0]] == drawn
    first_only = translate(decoder, texts)
    assert [samples[0].text for samples in together] == [samples[0].text for samples in first_only]
    elsewhere = translate(decoder, texts[7:8], n_best=3, first_line=9)
    assert [sample.text for sample in elsewhere[0]] != drawn
    assert together != translate(make_decoder(strategy="sample", seed=1), texts, n_best=3)


def test_a_token_that_is_no_integer_is_reported_with_its_line():
    with pytest.raises(UserError, match="line 3: 'x'"):
        translate(make_decoder(), ["1", "2", "3 x"])


def test_n_best_beyond_the_beam_size_is_refused():
    with pytest.raises(UserError, match="^n_best=3: must be at most decoding.beam_size=2"):
        translate(make_decoder(), [], n_best=3)


def test_long_outputs_take_a_second_pass_with_the_same_result(monkeypatch):
    texts = random_texts(40, longest=15, seed=3)
    one_pass = translate(make_decoder(max_extra_length=8), texts)
    functions, decoder = [], make_decoder(max_extra_length=8)
    run_batches = decoder.run_batches

    def spy(function, *arguments):
        functions.append(function)
        return run_batches(function, *arguments)

    monkeypatch.setattr(decoder, "run_batches", spy)
    monkeypatch.setattr("transformer.decoding.text_decoder.FIRST_EXTRA_LENGTH", 1)
    two_passes = translate(decoder, texts)
    assert len(set(functions)) == 2
    for once, twice in zip(one_pass, two_passes, strict=True):
        assert once[0].text == twice[0].text
        assert once[0].score == pytest.approx(twice[0].score, abs=1e-4)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("factor", "extra", "limit"),
    [(2.0, 1, lambda n: 2 * n + 1), (0.5, 0, lambda n: (n + 1) // 2), (0.0, 12, lambda n: 12)],
)
def test_the_longest_output_is_a_factor_of_the_source_and_extra_tokens(factor, extra, limit):
    decoder = make_decoder(beam_size=1, max_length_factor=factor, max_extra_length=extra)
    texts = [text for text in random_texts(20, longest=14, seed=3) if text]
    sources = [[*VOCABULARY.encode([text])[0], EOS] for text in texts]
    limits = [limit(len(source) - 1) for source in sources]
    outputs = [list(best.tokens) for (best,) in translate(decoder, texts)]
    assert outputs == greedy([MODEL], pad(sources, len(sources), 15), limits)
    assert any(len(output) == most + 1 > 1 for output, most in zip(outputs, limits, strict=True))


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"max_extra_length": 9}, 2),
        ({"max_extra_length": 8}, 1),
        ({"max_extra_length": 8, "max_length_factor": 0.5}, 1),
        ({"max_extra_length": 0, "max_length_factor": 1.1}, 2),
        ({"max_extra_length": 9, "strategy": "ctc"}, 1),
        ({"max_extra_length": 9, "strategy": "ctc", "beam_size": 1}, 1),
    ],
)
def test_each_pass_that_can_find_more_is_compiled_once(changes, passes):
    texts = random_texts(40, longest=15, seed=3)  # one padded length
    assert len(compilations(make_decoder(**changes), texts)) == passes


@pytest.mark.parametrize("shortlist", [None, SHORTLIST], ids=["vocabulary", "shortlist"])
def test_a_program_compiled_ahead_is_the_one_that_translates(shortlist):
    decoder, texts = make_decoder(shortlist), random_texts(5, longest=9, seed=3)
    for compilation in compilations(decoder, texts):
        compilation()
    ahead = set(decoder.programs.compiled)
    translate(decoder, texts)
    assert ahead == set(decoder.programs.compiled) and len(ahead) == 1


@pytest.mark.first_case
@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_unk_is_generated_only_if_allowed(strategy):
    model = tiny_model(VOCAB_SIZE, seed=7)
    model.parameters["decoder"]["embedding"]["table"][UNK] *= 20.0

    def tokens(**changes) -> list[int]:
        decoder = make_decoder(strategy=strategy, **changes)
        translations = translate(decoder, random_texts(20, 12, seed=4), parameters=model.parameters)
        return [token for (best,) in translations for token in best.tokens]

    assert base.get_config().decoding.forbid_unk
    assert UNK not in tokens() and UNK in tokens(forbid_unk=False)


def test_a_strategy_in_the_table_is_used_and_another_is_an_error(monkeypatch):
    used = []

    def search(*arguments):
        used.append(arguments)
        return STRATEGIES["beam"].search(*arguments)

    monkeypatch.setitem(STRATEGIES, "new", Strategy(search))
    texts = random_texts(5, 12, seed=5)
    assert translate(make_decoder(strategy="new"), texts) == translate(make_decoder(), texts)
    assert used
    with pytest.raises(KeyError):
        make_decoder(strategy="unknown")
