"""Epochs of mixtures: which pairs they read, the tags of sources, and batches that are functions of
their number.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import multi30k_both
from tests.data.files import text_config, write, write_pairs
from tests.meshes import one_device
from transformer.data.batches.loader import DataPosition, Loader
from transformer.data.corpus import corpus, encoding
from transformer.data.corpus.epoch import pairs_of_epoch
from transformer.data.sources.mixture import ListedCorpus, MixedSource, held_out_sets
from transformer.data.sources.source import open_source, read_pairs
from transformer.data.tokenizers import tokenizer
from transformer.data.tokenizers.vocabulary_training import training_pairs
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS

NEWS = [(f"news {number} today", f"Nachricht {number} heute") for number in range(60)]
TALKS = [(f"talk {number}", f"Rede {number}") for number in range(20)]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.05, 3.0)), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_all_pairs_of_a_part_are_read_equally_often(parts, seed):
    counts, weights = zip(*parts, strict=True)
    epochs = 30
    if not all(weight * count >= 1 for count, weight in parts):
        return
    read = Counter()
    for epoch in range(epochs):
        pairs = pairs_of_epoch(counts, weights, seed, epoch)
        assert len(pairs) == pytest.approx(sum(c * w for c, w in parts), abs=len(parts))
        read.update(pairs.tolist())
    first = 0
    for count, weight in parts:
        times = [read[pair] for pair in range(first, first + count)]
        assert max(times) - min(times) <= 1
        assert sum(times) == round(epochs * weight * count)
        first += count
    assert max(read) < first


def test_epochs_draw_different_pairs_and_the_same_ones_again():
    half = [pairs_of_epoch([100], [0.5], 7, epoch).tolist() for epoch in (0, 1, 2)]
    assert not set(half[0]) & set(half[1]) and half[0] != half[2]
    assert (
        pairs_of_epoch([100], [0.5], 7, 1).tolist()
        == half[1]
        != pairs_of_epoch([100], [0.5], 8, 1).tolist()
    )


def test_a_temperature_draws_by_the_root_of_the_size():
    def weigh(weights, temperature):
        corpora = tuple(ListedCorpus("", None, weight, {}) for weight in weights)
        return MixedSource(corpora, (), temperature).weigh([900, 100])

    # 900 and 300 pairs, as sqrt(900) to sqrt(100)
    assert weigh([1.0, 1.0], 2.0) == [1.0, pytest.approx(3.0)]
    assert weigh([1.0, 2.0], 1.0) == [1.0, 2.0]
    assert weigh([1.0, 1.0], 2.0**30)[1] * 100 == pytest.approx(900)


@pytest.mark.parametrize(("limit", "expected"), [(1000, (60, 50)), (55, (30, 25))])
def test_a_vocabulary_is_trained_on_what_an_epoch_reads(config, limit, expected):
    config.data.mixture = ("train_split=news", "train_split=talks weight=2.5")
    pairs = list(training_pairs(open_source(config.data, "train"), limit))
    counts = Counter(source.split()[0] for source, _ in pairs)
    assert (counts["news"], counts["talk"]) == expected
    if limit == 1000:
        assert (
            sorted(Counter(pair for pair in pairs if pair in TALKS).values()) == [2] * 10 + [3] * 10
        )


@pytest.fixture
def config(tmp_path):
    for stem, pairs in (("news", NEWS), ("talks", TALKS), ("valid", NEWS[:5]), ("test", NEWS[:5])):
        write_pairs(tmp_path, stem, pairs)
    (tmp_path / "workdir").mkdir()
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.vocab_size = 70
    config.data.max_length = 32
    config.batch.tokens, config.batch.row_multiple = 256, 2
    config.data.mixture = ("train_split=news source_tag=<news>", "train_split=talks weight=2.5")
    return config


def prepare(config, tmp_path):
    made = tokenizer.prepare(config, tmp_path / "workdir")
    return made, corpus.prepare(config, made, "train")


def test_the_settings_of_a_validation_set_leave_the_others_as_they_are():
    config = multi30k_both.get_config()
    languages = {
        name: (each.data.source_language, each.data.target_language)
        for name, each in held_out_sets(config).items()
    }
    assert (
        languages == {"": ("en", "de"), "de-en": ("de", "en")}
        and config.data.source_language == "en"
    )


def test_pairs_to_translate_are_not_those_of_a_mixture(config):
    with pytest.raises(UserError, match="split train: is a mixture of corpora here"):
        read_pairs(config.data, "train")
    assert len(read_pairs(config.data, "valid")[0]) == 5


def test_the_parts_follow_each_other_and_a_tag_is_one_token_of_each_source(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr(encoding, "_CHUNK", 7)
    made, train = prepare(config, tmp_path)
    assert train.report["parts"] == [60, 20] and train.weights == [1.0, 2.5]
    pieces = made.source.pieces
    sources = [
        [pieces[token] for token in train.sentences(0, np.array([pair]))[0]] for pair in (0, 59, 60)
    ]
    assert [source.count("<news>") for source in sources] == [1, 1, 0]
    texts = made.source.decode(train.sentences(0, np.array([3, 62])))
    assert texts == ["<news> news 3 today", "talk 2"]
    lengths = train.epoch(0, 0).lengths
    assert len(lengths) == 60 + 50
    where = open_source(config.data, "train").where(61, 1)
    assert where == f"{tmp_path / 'talks.de'}, line 2"


def test_dropped_pairs_are_not_counted(config, tmp_path):
    config.data.deduplicate = True
    write_pairs(tmp_path, "talks", [TALKS[0], ("", "leer"), *TALKS[:4], NEWS[5]])
    _, train = prepare(config, tmp_path)
    # A pair of the first corpus is a repeated one in the second, whatever the tags.
    assert train.report["parts"] == [60, 4] and train.report["dropped"]["duplicate"] == 2
    # In another direction the same texts are another pair.
    write_pairs(tmp_path, "talks", [*TALKS[:4], NEWS[5]], languages=("en", "fr"))
    config.data.mixture = ("train_split=news", "train_split=talks target_language=fr")
    _, train = prepare(config, tmp_path)
    assert train.report["parts"] == [60, 5] and train.report["dropped"]["duplicate"] == 0


def test_a_tag_that_the_vocabulary_lacks_is_refused(config, tmp_path):
    prepare(config, tmp_path)
    config.data.mixture = ("train_split=news source_tag=<talk>",)
    with pytest.raises(
        UserError,
        match="<talk>: the vocabulary has no such token .*; set .*init_vocabulary=own, or",
    ):
        prepare(config, tmp_path)


def test_a_corpus_whose_pairs_all_repeat_others_is_refused(config, tmp_path):
    write_pairs(tmp_path, "talks", NEWS[:5])
    config.data.deduplicate = True
    config.data.mixture = ("train_split=news", "train_split=talks")
    message = (
        "mixture: no pair of talks is left, as earlier corpora have them .* set "
        "config.data.deduplicate=False"
    )
    with pytest.raises(UserError, match=message):
        prepare(config, tmp_path)


def test_weights_of_documents_may_have_a_line_for_each_blank_line(config, tmp_path):
    write_pairs(tmp_path, "talks", [TALKS[0], ("", ""), *TALKS[1:3]])
    config.data.context = 1
    config.data.mixture = (
        "train_split=news",
        f"train_split=talks pair_weights={tmp_path / 'weights.txt'}",
    )
    for lines in (["0.5", "9", "2", "3"], ["0.5", "", "2", "3"], ["0.5", "2", "3"]):
        write(tmp_path / "weights.txt", lines)
        _, train = prepare(config, tmp_path)
        assert train.annotations(np.arange(60, 63)).weights.tolist() == [0.5, 2, 3]
    write(tmp_path / "weights.txt", ["0.5", "2"])
    with pytest.raises(UserError, match="has 2 lines for 3 pairs of talks"):
        prepare(config, tmp_path)


def test_languages_are_in_the_tag_of_each_direction(config, tmp_path):
    write_pairs(tmp_path, "news", [pair[::-1] for pair in NEWS], languages=("de", "fr"))
    config.data.source_tag = ">>{target_language}<<"
    config.data.mixture = (
        "train_split=news",
        "label=back train_split=news source_language=de target_language=fr",
    )
    made, train = prepare(config, tmp_path)
    assert made.source_tag == ">>de<<"
    texts = made.source.decode(train.sentences(0, np.array([7, 67])))
    assert texts == [">>de<< news 7 today", ">>fr<< Nachricht 7 heute"]
    encode = made.encoders[0].encode
    assert encode([texts[0].removeprefix(">>de<< ")]) == train.sentences(0, np.array([7]))
    assert encode(["", " ", "\u200b \ufeff"]) == [[], [], []]


def test_words_that_end_with_a_colon_begin_sources_as_text(config, tmp_path):
    """T5's task prefixes: the vocabulary needs no token for them."""
    write_pairs(tmp_path, "news", NEWS)
    config.data.mixture = ()
    config.data.train_split = "news"
    config.data.source_tag = "news today to {target_language}:"
    made, train = prepare(config, tmp_path)
    assert made.source_tag == f"news today to {config.data.target_language}:"
    assert not any("news today" in piece for piece in made.source.pieces)
    (tokens,) = train.sentences(0, np.array([7]))
    assert made.source.encode([f"{made.source_tag} {NEWS[7][0]}"]) == [tokens]
    assert made.tag_length == len(made.source.encode([made.source_tag])[0]) > 1


@pytest.mark.parametrize("plan", ["buckets", "packed"])
def test_each_target_token_has_the_weight_of_its_pair(config, tmp_path, plan):
    config.batch.plan, config.batch.packed_length, config.tokenizer.subword_sampling = plan, 48, 0.1
    # of which two are dropped
    write_pairs(tmp_path, "talks", [TALKS[0], ("", "leer"), TALKS[0], *TALKS[1:]])
    write(tmp_path / "weights.txt", [0.5, 9, 9, *(number / 4 for number in range(1, 20))])
    config.data.deduplicate = True
    config.data.mixture = (
        "train_split=news",
        f"train_split=talks weight=2 pair_weights={tmp_path / 'weights.txt'}",
    )
    made, train = prepare(config, tmp_path)
    assert train.annotations(np.array([0, 59, 60, 61, 79])).weights.tolist() == [
        1,
        1,
        0.5,
        0.25,
        19 / 4,
    ]
    with Loader(train, config, DataPosition(0, 0), one_device()) as batches:
        _, arrays, _ = next(batches)
    weights, targets = np.asarray(arrays["target_weights"]), np.asarray(arrays["target_output"])
    assert weights.dtype == np.float32 and ((weights > 0) == (targets != 0)).all()
    texts = {
        text: weight
        for (_, text), weight in zip(TALKS, [0.5, *(n / 4 for n in range(1, 20))], strict=True)
    }
    found = Counter()
    for row, row_weights in zip(targets, weights, strict=True):
        ends = np.flatnonzero(row == EOS)
        for sentence, its_weights in zip(
            np.split(row, ends + 1)[:-1], np.split(row_weights, ends + 1)[:-1], strict=True
        ):
            (text,) = made.target.decode([sentence.tolist()])
            assert set(its_weights) == {np.float32(texts.get(text, 1.0))}
            found[text in texts] += 1
    assert found[True] and found[False]


@pytest.mark.parametrize("plan", ["buckets", "packed"])
@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_batches_are_pure_functions_of_their_number(config, tmp_path, plan, sampling):
    config.batch.plan, config.batch.packed_length, config.tokenizer.subword_sampling = (
        plan,
        48,
        sampling,
    )
    made, train = prepare(config, tmp_path)

    def taken(start, count):
        with Loader(train, config, start, one_device()) as batches:
            return [
                (after, {name: array.tolist() for name, array in arrays.items()}, stats)
                for after, arrays, stats in itertools.islice(batches, count)
            ]

    straight = taken(DataPosition(0, 0), 30)
    assert straight[-1][0].epoch >= 3
    for done in (1, 10, 20):
        assert taken(straight[done - 1][0], 30 - done) == straight[done:]
    first = [
        entry
        for entry in straight
        if entry[0].epoch == 0 or (entry[0].epoch, entry[0].batch) == (1, 0)
    ]
    assert sum(stats.sentences for _, _, stats in first) == 110
    if not sampling:
        counted = [int(np.count_nonzero(arrays["target_output"])) for _, arrays, _ in straight]
        assert counted == [stats.target_tokens for _, _, stats in straight]


@pytest.mark.parametrize(
    ("mixture", "part"),
    [
        (("train_split=news", "train_split=absent"), "absent.en"),
        (("train_split=news weight=0",), "corpus 1: weight must be a number above 0"),
        (
            ("train_split=news", "train_split=talks weight=-1"),
            "corpus 2: weight must be a number above 0",
        ),
        (("train_split=news weight=much",), "corpus 1: weight must be a number"),
        (("train_split=news", "train_split=news"), "called news"),
        (("train_split=news wait=2",), "'wait' must be KEY=VALUE"),
        (("news",), "'news' must be KEY=VALUE"),
        (
            ("train_split=news source_tag='two words'",),
            "source_tag=two words must be one word, or empty",
        ),
        (("train_split='news",), "open quotation mark"),
        (("train_split=news", "train_split=talks weight=0.01"), "less than one pair of talks"),
        (("train_split=news source=txt",), "source=txt must be one of tfds, text"),
        (("train_split=news train_pairs=-1",), "train_pairs=-1 must be"),
        (("train_split=news train_pairs=few",), "train_pairs=few must be"),
        (("train_split=news weight=2 weight=3",), "weight is given twice"),
        (("train_split=news source_tag={tongue}",), "source_tag={tongue} must be one word"),
        (("train_split=news pair_weights=absent.txt",), "absent.txt"),
        (
            ("train_split=news", "train_split=talks pair_weights={folder}/few.txt"),
            "has 2 lines for 20 pairs",
        ),
        (
            ("train_split=news", "train_split=talks pair_weights={folder}/bad.txt"),
            "bad.txt, line 3: 'x' must be a num",
        ),
        (("train_split=news alignments=absent.txt",), "news: alignments=absent.txt: no such file"),
        (
            ("train_split=news alignments={folder}/bad.txt source_tag=<a>",),
            "the words of alignments have no tag",
        ),
        (
            (
                "train_split=news pair_weights={folder}/zeros.txt",
                "train_split=talks pair_weights={folder}/zero.txt",
            ),
            "all pair_weights are 0; correct the files",
        ),
        (("train_split=news", "train_split=empty"), "no pair of empty is left"),
        (("train_split=news", "train_split=long"), "no pair of long is left"),
    ],
)
def test_a_wrong_mixture_is_one_line(config, tmp_path, mixture, part):
    write_pairs(tmp_path, "empty", [])
    write_pairs(tmp_path, "long", [(" ".join(map(str, range(100))), "kurz")])
    write(tmp_path / "few.txt", [1, 2])
    write(tmp_path / "zero.txt", [0, "0.0", "1e-60"] + [0] * 17)
    write(tmp_path / "zeros.txt", [0] * 60)
    write(tmp_path / "bad.txt", [1, 2, "x", *range(17)])
    config.data.mixture = tuple(text.replace("{folder}", str(tmp_path)) for text in mixture)
    with pytest.raises(UserError, match=part) as error:
        prepare(config, tmp_path)
    assert "\n" not in str(error.value)


def test_a_corpus_whose_weights_are_all_zero_is_a_warning(config, tmp_path, caplog):
    write(tmp_path / "zero.txt", [0] * 20)
    config.data.mixture = (
        "train_split=news",
        f"train_split=talks pair_weights={tmp_path / 'zero.txt'}",
    )
    prepare(config, tmp_path)
    assert "All pair_weights of talks are 0: nothing is learned from it." in caplog.text


def test_weights_that_are_zero_for_all_kept_pairs_are_refused(config, tmp_path):
    write_pairs(tmp_path, "some", [*NEWS, ("too long " * 300, "lang")])
    write(tmp_path / "weights.txt", [0] * 60 + [1])
    config.data.mixture = (f"train_split=some pair_weights={tmp_path / 'weights.txt'}",)
    with pytest.raises(UserError, match="all pair_weights are 0"):
        prepare(config, tmp_path)
