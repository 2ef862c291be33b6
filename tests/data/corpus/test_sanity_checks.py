"""Warnings about data that was made wrong on purpose, and none about data as it should be."""

import itertools

import pytest
from rich.cells import cell_len

from tests.data.files import text_config, write_pairs
from transformer.data.corpus import corpus, sanity_checks
from transformer.data.corpus.encoding import count_losses
from transformer.data.sources import source as sources
from transformer.data.tokenizers import tokenizer
from transformer.errors import UserError


@pytest.fixture
def config(tmp_path):
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.vocab_size = 300
    return config


@pytest.fixture
def captions(config, multi30k):
    """400 English-German pairs."""
    source = sources.open_source(text_config(multi30k, "").data, "train")
    return [(english.decode(), german.decode()) for english, german in itertools.islice(source, 400)]


@pytest.fixture
def prepare(config, tmp_path):
    """A function that writes pairs, if any, and returns the arguments of `find_mistakes`."""

    def prepare(pairs=None, workdir="workdir"):
        languages = (config.data.source_language, config.data.target_language)
        if pairs:
            write_pairs(tmp_path, "train", pairs, languages)
        (tmp_path / workdir).mkdir(exist_ok=True)
        made = tokenizer.prepare(config, tmp_path / workdir)
        return config, made, corpus.prepare(config, made, "train")

    return prepare


def mistakes(prepared):
    return list(sanity_checks.find_mistakes(*prepared))


def swapped(pairs):
    return [pair[::-1] for pair in pairs]


@pytest.mark.parametrize("shared", [True, False])
def test_good_data_gives_no_warning(config, prepare, captions, shared):
    config.tokenizer.shared = shared
    assert mistakes(prepare(captions)) == []
    config.data.source_language, config.data.target_language = "de", "en"
    assert mistakes(prepare(swapped(captions), "reverse")) == []
    config.data.source_language, config.data.target_language = "en", "de"
    config.data.source, config.data.synthetic_examples = "synthetic", 500
    assert mistakes(prepare(workdir="synthetic")) == []


@pytest.mark.parametrize(("kind", "size"), [("char", 500), ("word", 1000), ("bpe", 90)])
def test_a_vocabulary_of_single_characters_or_words_may_be_intended(config, prepare, captions, tmp_path, kind, size):
    config.tokenizer.kind, config.tokenizer.vocab_size = kind, size
    assert mistakes(prepare(captions)) == []
    if kind != "bpe":  # with which a few characters can only be a mistake
        config.tokenizer.model_file = str(tmp_path / "workdir" / tokenizer.MODEL)
        assert mistakes(prepare(workdir="given")) == []


def test_swapped_sides_are_reported_with_shares_and_an_example(prepare, captions):
    source, target = mistakes(prepare(swapped(captions)))
    assert source.startswith("data.source_language=en, but ") and " function words of de and " in source
    assert target.startswith("data.target_language=de, but ") and " function words of en and " in target
    assert captions[0][1][:30] in source and captions[0][0][:30] in target


def test_languages_without_a_table_give_no_warning(config, prepare, captions):
    config.data.source_language, config.data.target_language = "src", "tgt"
    assert mistakes(prepare(captions)) == []


@pytest.mark.parametrize(("equal", "count"), [(20, 0), (21, 1)])
def test_equal_sides_are_reported_above_a_fifth(prepare, captions, equal, count):
    pairs = [(english, english) for english, _ in captions[:equal]] + captions[equal:100]
    warnings = mistakes(prepare(pairs))
    assert len(warnings) == count
    if warnings:
        assert warnings[0].startswith(f"{equal} of 100 sampled training pairs have equal sides, such as '")
        assert captions[0][0][:40] in warnings[0]


def test_integers_may_be_copied(config, prepare):
    config.data.source = config.tokenizer.kind = "ids"
    prepared = prepare([("1 2 3", "1 2 3"), ("4", "4")])
    assert mistakes(prepared) == []
    lines = list(sanity_checks.pair_lines(config.data, *prepared[1:], 80))
    assert lines == ["en: 1 2 3", "de: 1 2 3", "en: 4", "de: 4"]


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("language", ["German", "Cyrillic"])
def test_a_vocabulary_of_another_language_is_reported(config, prepare, captions, tmp_path, byte_fallback, language):
    config.tokenizer.vocab_size, config.tokenizer.byte_fallback = 300 + 256 * byte_fallback, byte_fallback
    prepare([(english, english) for english, _ in captions], "english")
    cyrillic = dict(zip("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувшюыз", strict=True))
    known = {character for english, _ in captions for character in english}
    german = ["".join(character for character in text if character in known) for _, text in captions]
    texts = german if language == "German" else [text.lower().translate(str.maketrans(cyrillic)) for text in german]
    config.tokenizer.model_file = str(tmp_path / "english" / tokenizer.MODEL)
    config.data.source_language = "other"
    warnings = mistakes(prepare(list(zip(texts, german, strict=True))))
    start = f"tokenizer.model_file={config.tokenizer.model_file} splits frequent words of the source into "
    assert any(line.startswith(start) for line in warnings)


def test_two_pairs_are_shown_within_the_columns(config, prepare, captions):
    config.tokenizer.normalization = "identity"  # keeps control characters
    config, made, train = prepare([("a 犬 " * 30, "b\x1b[31m" * 30), *captions[:9]])
    shown = list(sanity_checks.pair_lines(config.data, made, train, 68))
    assert len(shown) == 4 and max(map(cell_len, shown)) <= 68
    assert shown[0].startswith("en: a 犬 a 犬") and shown[0].endswith("…")
    assert shown[1].isprintable()
    assert shown[2] == f"en: {captions[4][0]}"[:68]


def losses(config, made, texts):
    sides = [count_losses(side, list(texts), side.encode(list(texts))) for side in made.sides]
    return list(sanity_checks.find_losses(config, made, "data", sides, is_train=True))


def test_targets_that_normalization_changes_and_unknown_characters_are_reported(config, prepare, captions):
    changed = [("one", "一，二！"), ("e\u0301 …", "½\u200c"), ("a\tb ", "a  b")] * 5
    config, made, train = prepare(captions + changed)
    ((counts, _), (target, _)) = train.report["losses"]
    assert counts["changed"] == target["changed"] - 5 == 5  # tabs and spaces survive as spaces
    (warning,) = sanity_checks.find_losses(config, made, "data", train.report["losses"], is_train=True)
    assert warning.startswith("the vocabulary's normalization changes 2.4% of the training targets")
    assert "'一，二！' becomes '一,二!'" in warning and "tokenizer.normalization=identity" in warning
    config.tokenizer.normalization, config.tokenizer.vocab_size = "identity", 310
    assert losses(*prepare(captions + changed, "identity")[:2], ["一，二！", "½\u200c…"]) == []
    # The vocabulary of a parent in another language.
    config.training.init_from = "runs/parent"
    with pytest.raises(
        UserError,
        match=r"data, en: 9\d\.\d% of the characters are unknown .* check that training\.init_from=runs/parent",
    ):
        losses(config, made, ["καλημέρα κόσμε, τι κάνετε"])
    lines = losses(config, made, ["a man with a dog κ"])
    assert len(lines) == 2 and lines[0].startswith("data, en: 7.7% of the characters are unknown to the vocabulary; 'a")
