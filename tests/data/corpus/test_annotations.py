"""Annotations of pairs: the tokens of linked words, worked out by hand, and those of the batches of
a corpus.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.data.files import text_config, write, write_pairs
from tests.meshes import one_device
from transformer.data.batches.loader import DataPosition, Loader
from transformer.data.corpus import corpus
from transformer.data.corpus.annotations import (
    Annotations,
    number_words,
    parse_links,
    read_links,
    word_starts,
)
from transformer.data.sources.mixture import listed_corpora
from transformer.data.sources.synthetic import SyntheticSource
from transformer.data.tokenizers import tokenizer
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS

# tokens 4 and 6 begin words, 5 does not
STARTS = np.array([False, False, False, False, True, False, True])


def links(*pairs):
    return np.array(pairs, np.uint16).reshape(-1, 2)


def test_words_begin_where_the_vocabulary_marks_it():
    assert word_starts(["<pad>", "\u2581the", "re", "\u2581a"]).tolist() == [
        False,
        True,
        False,
        True,
    ]
    assert word_starts(["<pad>", "7", "8"]).all()
    assert number_words(np.array([True, False, True])).tolist() == [0, 0, 1]
    # an unmarked first word
    assert number_words(np.array([False, True, False])).tolist() == [0, 1, 1]
    assert number_words(np.array([], bool)).tolist() == []


def test_tokens_of_linked_words_are_linked_wherever_the_pair_is_in_its_row():
    annotated = Annotations(
        links=[links((1, 0)), links((0, 1), (1, 0), (7, 0))], starts=[STARTS, STARTS]
    )
    # words: 4 | 6 5 and 4 5 | 6
    sources = np.array([4, 6, 5, EOS, 4, 5, 6, EOS], np.int32), np.array([4, 4], np.int32)
    # 4 5 and 6 | 4
    targets = np.array([4, 5, EOS, 6, 4, EOS], np.int32), np.array([3, 3], np.int32)
    firsts = np.array([0, 4]), np.array([0, 3])
    linked = annotated.link_tokens([sources, targets], np.array([0, 0]), firsts, (2, 7, 9))
    expected = np.zeros((2, 7, 9), bool)
    # both tokens of the only target word, and of the second source word
    expected[0, 0:2, 1:3] = True
    expected[0, 4, 4:6] = True  # word 1 and word 0 of the second pair
    expected[0, 3, 6] = True
    np.testing.assert_array_equal(linked, expected)
    with pytest.raises(
        UserError, match="in 1 of 2 pairs, links name words that the sentences do not have"
    ):
        annotated.check_links([sources, targets])
    # the rows of a process that gets no sentence
    nothing = np.array([], np.int32), np.array([], np.int32)
    empty = annotated._replace(links=[])
    assert not empty.link_tokens(
        [nothing, nothing], np.array([], int), [np.array([], int)] * 2, (1, 2, 2)
    ).any()


TEXTS = [
    (f"the year {number} begins", f"es beginnt das Jahr {number}") for number in range(100, 160)
]
LINES = ["0-2 1-3 2-4 3-1 3-0"] * 60


@pytest.mark.parametrize("plan", ["buckets", "packed"])
@pytest.mark.parametrize("sampling", [0.0, 0.3])
def test_batches_have_the_links_of_words_in_any_segmentation(tmp_path, plan, sampling):
    config = prepared_config(tmp_path, LINES)
    config.batch.plan, config.tokenizer.subword_sampling = plan, sampling
    made = tokenizer.prepare(config, tmp_path)
    with Loader(
        corpus.prepare(config, made, "train"), config, DataPosition(0, 0), one_device()
    ) as batches:
        _, arrays, _ = next(batches)
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    assert arrays["links"].dtype == bool
    checked = 0
    for row in range(len(arrays["source"])):
        sides = [
            np.flatnonzero(arrays[name][row] == EOS) + 1 for name in ("source", "target_output")
        ]
        begins = [[0, *ends][: len(ends)] for ends in sides]
        assert not arrays["links"][row][:, arrays["source"][row] == EOS].any()
        for source, source_end, target, target_end in zip(
            begins[0], sides[0], begins[1], sides[1], strict=True
        ):
            source_words, target_words = (
                number_words(word_starts(side.pieces)[arrays[name][row, begin : end - 1]])
                for side, name, begin, end in (
                    (made.source, "source", source, source_end),
                    (made.target, "target_output", target, target_end),
                )
            )
            expected = {tuple(map(int, link.split("-"))) for link in LINES[0].split()}
            block = arrays["links"][row, target : target_end - 1, source : source_end - 1]
            found = {(int(source_words[s]), int(target_words[t])) for t, s in np.argwhere(block)}
            assert found == expected and block.shape == (len(target_words), len(source_words))
            assert block.sum() == sum(
                (source_words == s).sum() * (target_words == t).sum() for s, t in expected
            )
            checked += 1
        assert not arrays["links"][row, :, sides[0][-1] if len(sides[0]) else 0 :].any()
    assert checked >= 8


def prepared_config(folder, lines):
    write_pairs(folder, "train", TEXTS)
    write(folder / "links", lines)
    config = text_config(folder, folder / "cache")
    config.data.mixture, config.training.guided_heads = (f"alignments={folder / 'links'}",), "1.1"
    config.tokenizer.vocab_size, config.data.max_length = 60, 40
    config.batch.tokens, config.batch.packed_length = 640, 80
    return config


def test_links_of_another_tokenization_are_refused(tmp_path):
    config = prepared_config(tmp_path, ["0-2 4-3", *LINES[1:]])
    made = tokenizer.prepare(config, tmp_path)
    write(tmp_path / "links", [""] * 60)
    with pytest.raises(UserError, match="the files of alignments have no link"):
        corpus.prepare(config, made, "train")
    write(tmp_path / "links", ["0-2 4-3", *LINES[1:]])
    message = (
        "in 1 of 60 pairs, links name words that the sentences do not have; align the words that "
        "spaces"
    )
    with pytest.raises(UserError, match=message):
        corpus.prepare(config, made, "train")


def test_a_file_may_be_in_the_folder_of_its_corpus(tmp_path):
    config = prepared_config(tmp_path, LINES)
    config.data.mixture = ("alignments=links", "label=other alignments=absent")
    paths = [corpus.annotations["alignments"] for corpus in listed_corpora(config.data)]
    assert paths == [tmp_path / "links", Path("absent")]


def test_repeated_and_dropped_pairs_keep_the_links_of_the_others(tmp_path):
    config = prepared_config(tmp_path, LINES)
    write_pairs(tmp_path, "train", [TEXTS[0], ("", "leer"), TEXTS[0], TEXTS[1]])
    write(tmp_path / "links", ["0-0", "", "1-1", "2-2"])
    config.data.deduplicate = True
    train = corpus.prepare(config, tokenizer.prepare(config, tmp_path), "train")
    assert [pair.tolist() for pair in train.annotations(np.array([1, 0])).links] == [
        [[2, 2]],
        [[0, 0]],
    ]


def pairs(count):
    return SyntheticSource("train", count, ("en", "de"))


def test_each_pair_has_the_links_of_its_line(tmp_path):
    write(tmp_path / "links.gz", ["0-0 2-1", "", "1?0 10p3"])
    links = read_links(tmp_path / "links.gz", pairs(3), "news")
    assert links == [[(0, 0), (2, 1)], [], [(1, 0), (10, 3)]]
    assert parse_links("1?0 2-2", "here") == [(1, 0, False), (2, 2, True)]
    assert read_links(None, pairs(2), "news") == [[], []]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0-0 1:1", "line 2: 1:1 is not a link such as 0-1"),
        ("0-0 -1-1", "line 2: -1-1"),
        ("1-99999", "line 2: 1-9"),
    ],
)
def test_anything_but_a_link_is_named_with_its_line(tmp_path, line, message):
    write(tmp_path / "links", ["0-0", line])
    with pytest.raises(UserError, match=message):
        read_links(tmp_path / "links", pairs(2), "news")
    with pytest.raises(UserError, match="links: has 2 lines for 3 pairs of news"):
        read_links(tmp_path / "links", pairs(3), "news")
