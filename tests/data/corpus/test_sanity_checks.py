"""Warnings about data that was made wrong on purpose, and none about data as it should be."""

import itertools

import pytest
from rich.cells import cell_len

from tests.data.files import text_config, write_pairs
from transformer.data.corpus import corpus, sanity_checks
from transformer.data.sources import source as sources
from transformer.data.tokenizers import tokenizer
from transformer.data.tokenizers.byte_vocabulary import ByteVocabulary
from transformer.data.tokenizers.tokenizer import Tokenizer, count_losses, losses_of_pairs
from transformer.support.errors import UserError


@pytest.fixture
def config(tmp_path):
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.vocab_size = 300
    return config


@pytest.fixture
def captions(config, multi30k):
    """400 English-German pairs."""
    source = sources.open_source(text_config(multi30k, "").data, "train")
    return [
        (english.decode(), german.decode()) for english, german in itertools.islice(source, 400)
    ]


@pytest.fixture
def prepare(config, tmp_path):
    """A function that writes pairs, if any, and returns the arguments of `find_untranslated`."""

    def prepare(pairs=None, workdir="workdir"):
        languages = (config.data.source_language, config.data.target_language)
        if pairs:
            write_pairs(tmp_path, "train", pairs, languages)
        (tmp_path / workdir).mkdir(exist_ok=True)
        made = tokenizer.prepare(config, tmp_path / workdir)
        return config, made, corpus.prepare(config, made, "train")

    return prepare


@pytest.mark.parametrize(("equal", "count"), [(20, 0), (21, 1)])
def test_equal_sides_are_reported_above_a_fifth(prepare, captions, equal, count):
    pairs = [(english, english) for english, _ in captions[:equal]] + captions[equal:100]
    warnings = list(sanity_checks.find_untranslated(*prepare(pairs)))
    assert len(warnings) == count
    if warnings:
        assert warnings[0].startswith(
            f"{equal} of 100 sampled training pairs have equal sides, such as '"
        )
        assert captions[0][0][:40] in warnings[0]


def test_equal_sides_are_found_behind_a_tag(config, prepare, captions):
    config.data.source_tag = "<news>"
    (warning,) = sanity_checks.find_untranslated(
        *prepare([(english, english) for english, _ in captions[:30]])
    )
    assert warning.startswith("30 of 30 sampled training pairs have equal sides, such as '")


def test_integers_may_be_copied(config, prepare):
    config.data.source = config.tokenizer.kind = "ids"
    prepared = prepare([("1 2 3", "1 2 3"), ("4", "4")])
    assert list(sanity_checks.find_untranslated(*prepared)) == []
    lines = list(sanity_checks.pair_lines(config.data, *prepared[1:], 80))
    assert lines == ["en: 1 2 3", "de: 1 2 3", "en: 4", "de: 4"]


def test_two_pairs_are_shown_within_the_columns(config, prepare, captions):
    config.tokenizer.normalization = "identity"  # keeps control characters
    config, made, train = prepare([("a 犬 " * 30, "b\x1b[31m" * 30), *captions[:9]])
    shown = list(sanity_checks.pair_lines(config.data, made, train, 68))
    assert len(shown) == 4 and max(map(cell_len, shown)) <= 68
    assert shown[0].startswith("en: a 犬 a 犬") and shown[0].endswith("…")
    assert shown[1].isprintable()
    assert shown[2] == f"en: {captions[4][0]}"[:68]


def test_the_pairs_of_a_mixture_are_shown_with_their_languages(config, prepare, captions):
    config.data.mixture = (
        "label=a",
        "label=b source_language=de target_language=en source_tag=<en>",
    )
    made, train = prepare(captions[:9])[1:]
    shown = list(sanity_checks.pair_lines(config.data, made, train, 500))
    english, german = captions[0]
    assert shown == [f"en: {english}", f"de: {german}", f"de: <en> {german}", f"en: {english}"]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_held_out_pairs_are_found_in_either_direction(
    config, prepare, captions, tmp_path, is_reversed
):
    write_pairs(tmp_path, "valid", [(f" {english}", german) for english, german in captions[4:8]])
    if is_reversed:
        config.data.mixture = ("label=back source_language=de target_language=en",)
    train, source = prepare(captions[6:40])[2], sources.open_source(config.data, "valid")
    (line,) = sanity_checks.find_shared(train, source, list(sources.decode_pairs(source)))
    assert "2 pairs of 4" in line and captions[6][0][:20] in line


def test_targets_that_no_output_can_reach_are_reported(config, prepare):
    config.data.source = config.tokenizer.kind = "ids"
    limit = 2 * 3 + 1
    config.decoding.max_length_factor, config.decoding.max_extra_length = 2.0, 1
    pairs = [("1 2 3", " ".join(["4"] * length)) for length in [limit] * 198 + [limit + 1] * 3]
    config, _, train = prepare(pairs)
    (line,) = sanity_checks.find_unreachable(config, train)
    assert line.startswith(
        "3 of 201 sampled training targets have more tokens than outputs may have (decoding."
    )
    config.decoding.max_extra_length = 2
    assert list(sanity_checks.find_unreachable(config, train)) == []
    # three integers and the end are four frames
    config.decoding.strategy, config.model.ctc_frames = "ctc", 1
    (line,) = sanity_checks.find_unreachable(config, train)
    assert line.startswith("201 of 201") and "raise ctc_frames" in line
    config.model.ctc_frames = 2
    assert list(sanity_checks.find_unreachable(config, train)) == []


def losses(config, made, texts):
    sides = [count_losses(side, list(texts)) for side in made.sides]
    return list(sanity_checks.find_losses(config, made, "data", sides, is_train=True))


def test_targets_that_normalization_changes_and_unknown_characters_are_reported(
    config, prepare, captions
):
    changed = [("one", "一，二！"), ("e\u0301 …", "½\u200c"), ("a\tb ", "a  b")] * 5
    config, made, train = prepare(captions + changed)
    ((counts, _), (target, _)) = train.report["losses"]
    assert counts["changed"] == target["changed"] - 5 == 5  # tabs and spaces survive as spaces
    (warning,) = sanity_checks.find_losses(
        config, made, "data", train.report["losses"], is_train=True
    )
    assert warning.startswith("data: the vocabulary's normalization changes 2.4% of the targets")
    assert (
        "'一，二！' becomes '一,二!'" in warning and "tokenizer.normalization=identity" in warning
    )
    decomposed = ({}, {}), count_losses(made.target, ["ein Ma\u0308dchen"])
    (warning,) = sanity_checks.find_losses(config, made, "valid", decomposed, is_train=False)
    assert warning.startswith("valid: the vocabulary's normalization changes 100.0% of the targets")
    assert "convert the text to Unicode's form NFC" in warning
    config.tokenizer.normalization, config.tokenizer.vocab_size = "identity", 310
    assert losses(*prepare(captions + changed, "identity")[:2], ["一，二！", "½\u200c…"]) == []
    with pytest.raises(
        UserError,
        match=r"data, en: 9\d\.\d% of the characters are unknown .* tokenizer\.model_file",
    ):
        losses(config, made, ["καλημέρα κόσμε, τι κάνετε"])
    config.training.init_from = "runs/parent"
    with pytest.raises(
        UserError, match=r"with training\.init_vocabulary=own if there is a parent$"
    ):
        losses(config, made, ["καλημέρα κόσμε, τι κάνετε"])
    lines = losses(config, made, ["a man with a dog κ"])
    assert len(lines) == 2 and lines[0].startswith(
        "data, en: 7.7% of the characters are unknown to the vocabulary; 'a"
    )


@pytest.mark.parametrize(
    ("mark", "shown"),
    [
        (lambda text: text.replace("an", "an@@ "), "words split by another vocabulary, such as '"),
        (
            lambda text: "\u2581" + text.replace(" ", " \u2581"),
            "words split by another vocabulary, such as '\u2581",
        ),
        (lambda text: text + " &amp; & AT&T;", "entities of HTML, such as '"),
        (lambda text: f"&#39;{text} ki@@", "words split by another vocabulary, such as '"),
    ],
)
@pytest.mark.parametrize(("count", "warnings"), [(1, 0), (5, 1)])
def test_traces_of_other_tools_are_one_warning(prepare, captions, mark, shown, count, warnings):
    """Five of 400 targets are more than 1 %.

    The example is around the trace, and both kinds are named at once.
    """
    chosen = [pair for pair in captions if "an" in pair[1] and len(pair[1]) < 60]
    marked = [(english, mark(german)) for english, german in chosen[:count]]
    config, made, train = prepare(
        [pair for pair in captions if pair not in chosen[:count]] + marked
    )
    lines = list(
        sanity_checks.find_losses(config, made, "data", train.report["losses"], is_train=True)
    )
    lines = [line for line in lines if "many lines have" in line]
    assert len(lines) == warnings
    assert all(
        line.startswith("data, de: ") and shown in line and "restore the text" in line
        for line in lines
    )


def test_all_traces_are_named_with_what_is_around_them(config, prepare, captions):
    _, made, _ = prepare(captions)
    text = "a long text before a ki@@ ng and &quot; the queen"
    first, second = [line for line in losses(config, made, [text] * 2) if "many lines have" in line]
    assert first.startswith(
        "data, en: many lines have words split by another vocabulary, such as '"
    )
    assert "text before a ki@@ ng and &quot;" in first
    assert "and entities of HTML, such as ' a ki@@ ng and &quot; the queen';" in first
    assert second.startswith("data, de: ")


def test_a_sample_without_utf8_has_lost_nothing():
    tokenizer_of_bytes = Tokenizer(*[ByteVocabulary()] * 2)
    losses = losses_of_pairs(tokenizer_of_bytes, [])
    assert [counts for counts, _ in losses] == [{"lines": 0}] * 2
