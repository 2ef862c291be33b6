"""Documents: sentences after those before them, on both sides, within their document."""

import numpy as np
import pytest

from tests.data.files import text_config, write_pairs
from transformer.data.corpus import corpus
from transformer.data.sources.source import open_source, read_pairs
from transformer.data.tokenizers import tokenizer

PAIRS = [
    ("a 1", "A 1"),
    ("b 2", "B 2"),
    ("c 3", "C 3"),
    ("", ""),
    ("d 4", "D 4"),
    ("\u3000", "\xa0"),
    ("", ""),
]
PAIRS += [("e 5", "E 5"), ("f 6", "F 6")]


@pytest.fixture
def config(tmp_path):
    for stem in ("train", "valid"):
        write_pairs(tmp_path, stem, PAIRS)
    (tmp_path / "workdir").mkdir()
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.kind, config.tokenizer.vocab_size = "char", 30
    config.data.context = 1
    return config


def test_each_sentence_follows_those_before_it_in_its_document(config, tmp_path):
    pairs = [tuple(side.decode() for side in pair) for pair in open_source(config.data, "train")]
    assert pairs == [
        ("a 1", "A 1"),
        ("a 1 <sep> b 2", "A 1 <sep> B 2"),
        ("b 2 <sep> c 3", "B 2 <sep> C 3"),
        ("d 4", "D 4"),
        ("e 5", "E 5"),
        ("e 5 <sep> f 6", "E 5 <sep> F 6"),
    ]
    source = open_source(config.data, "train")
    assert len(source) == 6 and source.where(3, 1) == f"{tmp_path / 'train.de'}, line 5"
    # A selection counts pairs, not the blank lines between them.
    config.data.train_pairs = 4
    assert [pair[0] for pair in open_source(config.data, "train")] == [
        b"a 1",
        b"a 1 <sep> b 2",
        b"b 2 <sep> c 3",
        b"d 4",
    ]
    config.data.train_pairs = 0
    config.data.context = 5
    assert [pair[0] for pair in open_source(config.data, "train")][2] == b"a 1 <sep> b 2 <sep> c 3"
    assert read_pairs(config.data, "valid")[0] == [source for source, _ in PAIRS]  # as they are


def test_examples_with_a_missing_translation_are_dropped(config, tmp_path):
    write_pairs(tmp_path, "train", [("a 1", "A 1"), ("b 2", ""), ("c 3", "C 3"), ("d 4", "D 4")])
    made = tokenizer.prepare(config, tmp_path / "workdir")
    train = corpus.prepare(config, made, "train")
    assert len(train) == 2 and train.report["dropped"]["empty"] == 2
    decoded = made.source.decode(train.sentences(0, np.array([1])))
    assert "c 3" in decoded[0] and "d 4" in decoded[0]


def test_the_separator_is_one_token_and_the_cache_knows_the_context(config, tmp_path):
    made = tokenizer.prepare(config, tmp_path / "workdir")
    assert "<sep>" in made.source.pieces
    train = corpus.prepare(config, made, "train")
    assert len(train) == 6 and not any(train.report["dropped"].values())
    assert [made.source.pieces[token] for token in train.sentences(0, np.array([1]))[0]].count(
        "<sep>"
    ) == 1
    config.data.context = 2
    assert corpus.prepare(config, made, "train").report["digest"] != train.report["digest"]


@pytest.mark.parametrize("blank", [True, False])
def test_documents_are_counted_and_a_single_one_is_a_warning(config, tmp_path, caplog, blank):
    caplog.set_level("INFO")
    write_pairs(tmp_path, "train", [pair for pair in PAIRS if blank or pair[0].strip()])
    made = tokenizer.prepare(config, tmp_path / "workdir")
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        corpus.prepare(config, made, "train")
        messages = {record.message.replace(str(tmp_path), ""): record for record in caplog.records}
        ((message, logged),) = [item for item in messages.items() if "document" in item[0]]
        said = (
            "train.de: 3 documents"
            if blank
            else "train.de: no blank line divides it, so it is one document"
        )
        assert said in message and logged.levelname == ("INFO" if blank else "WARNING")
    caplog.clear()
    config.data.context = 0
    corpus.prepare(config, made, "train")
    assert "document" not in caplog.text.replace(str(tmp_path), "")


def test_one_side_of_monolingual_documents_stays_empty(config):
    config.data.target_language = ""
    assert [pair[1] for pair in open_source(config.data, "train")] == [b""] * 6
