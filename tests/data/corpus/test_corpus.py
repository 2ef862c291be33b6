"""Corpora prepared from small files, by one process and by several."""

import subprocess
import sys

import numpy as np
import pytest

from tests.data.files import pair_tokens, text_config, write, write_pairs
from transformer.data.corpus import corpus, encoding
from transformer.data.sources import source as sources
from transformer.data.tokenizers import tokenizer
from transformer.support import workers
from transformer.support.errors import UserError

PAIRS = [
    (f"number {number} of a few", f"Zahl {number} von einigen wenigen") for number in range(300)
]


@pytest.fixture
def config(tmp_path):
    write_pairs(tmp_path, "train", PAIRS)
    write_pairs(tmp_path, "valid", PAIRS[:20])
    (tmp_path / "workdir").mkdir()
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.vocab_size = 60
    return config


@pytest.fixture
def prepared(config, tmp_path):
    """A function that prepares a split with the current config."""
    made = tokenizer.prepare(config, tmp_path / "workdir")

    def prepare(split="train"):
        loaded = tokenizer.Tokenizer.load(tmp_path / "workdir", config)
        assert loaded.fingerprint == made.fingerprint
        return corpus.prepare(config, loaded, split)

    return prepare


@pytest.fixture
def short_chunks(monkeypatch):
    """Divides small corpora into many chunks."""
    monkeypatch.setattr(encoding, "_CHUNK", 7)


def decoded(prepared_corpus, made):
    sources, targets = zip(*content(prepared_corpus), strict=True)
    return list(zip(made.source.decode(sources), made.target.decode(targets), strict=True))


def content(prepared_corpus):
    return [pair_tokens(prepared_corpus, index) for index in range(len(prepared_corpus))]


def folders(tmp_path):
    return sorted((tmp_path / "cache" / "corpora").glob("test-*"))


@pytest.mark.usefixtures("short_chunks")
def test_sentences_are_restored_in_order(config, prepared, tmp_path):
    made = tokenizer.prepare(config, tmp_path / "workdir")
    train = prepared()
    assert len(train) == 300
    assert decoded(train, made) == PAIRS
    assert train.lengths.dtype == np.int32 and isinstance(train.lengths, np.memmap)
    assert train.lengths.tolist() == [
        [len(source) + 1, len(target) + 1] for source, target in content(train)
    ]
    assert train.report["kept"] == 300 and not any(train.report["dropped"].values())
    epoch = train.epoch(3, 0)
    assert (
        epoch.numbers is None
        and epoch.sampler is None
        and np.array_equal(epoch.lengths, train.lengths)
    )


@pytest.mark.usefixtures("short_chunks")
def test_workers_and_compression_do_not_change_the_corpus(config, prepared, tmp_path):
    expected = content(prepared())
    config.data.workers, config.data.cache_dir = 2, str(tmp_path / "other")
    assert content(prepared()) == expected
    write_pairs(tmp_path, "packed", PAIRS, ending=".gz")
    config.data.train_split = "packed"
    assert content(prepared()) == expected


@pytest.mark.usefixtures("short_chunks")
def test_cleaning_drops_and_counts_pairs_by_reason(config, prepared, tmp_path):
    good = PAIRS[:30]
    long, lopsided = ("number " * 100, "Zahl " * 100), ("number", "Zahl von einigen wenigen")
    lines = [
        *good,
        ("", "Zahl"),
        ("number", " \t"),
        long,
        lopsided,
        good[3],
        good[3],
        *PAIRS[30:60],
    ]
    write_pairs(tmp_path, "dirty", lines)
    with (tmp_path / "dirty.en").open("ab") as file:
        file.write(b"number \xff\n")
    with (tmp_path / "dirty.de").open("ab") as file:
        file.write(b"Zahl\n")
    config.data.train_split = "dirty"
    config.data.max_length, config.data.max_length_ratio, config.data.deduplicate = 60, 3.0, True
    train = prepared()
    expected = {"invalid_utf8": 1, "empty": 2, "too_long": 1, "length_ratio": 1, "duplicate": 2}
    expected["candidate"] = 0
    assert train.report["dropped"] == expected
    assert train.report["kept"] == len(train) == len(train.lengths) == 60
    made = tokenizer.prepare(config, tmp_path / "workdir")
    assert decoded(train, made) == PAIRS[:60]


def test_held_out_pairs_are_kept_at_any_length(config, prepared, tmp_path):
    write_pairs(
        tmp_path,
        "valid",
        [("number " * 100, "Zahl"), ("", "Zahl"), ("number", "Zahl"), ("number", "Zahl")],
    )
    config.data.max_length, config.data.deduplicate = 20, True
    valid = prepared("valid")
    assert len(valid) == 3 and valid.lengths[0, 0] > 100
    assert valid.report["dropped"]["empty"] == 1


def test_held_out_pairs_must_be_utf8(prepared, tmp_path):
    write(tmp_path / "valid.en", b"number\nnumb\xe9r\n")
    write(tmp_path / "valid.de", b"Zahl\nZahl\n")
    with pytest.raises(UserError, match=r"valid\.en, line 2: not UTF-8"):
        prepared("valid")


def test_a_corpus_is_encoded_again_only_if_its_inputs_change(
    config, prepared, tmp_path, monkeypatch
):
    first = content(prepared())
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "encode", lambda *_: pytest.fail("encoded again"))
        assert content(prepared()) == first
        config.batch.tokens = 1  # the corpus does not depend on it
        prepared()
    for change in ({"max_length": 99}, {"deduplicate": True}, {"max_length_ratio": 9.0}):
        config.data.update(change)
        prepared()
    write_pairs(tmp_path, "train", PAIRS[::-1])
    assert content(prepared()) == first[::-1]
    assert len(folders(tmp_path)) == 5


def test_a_corpus_without_pairs_is_refused_with_the_counts(config, prepared, tmp_path):
    config.data.max_length = 3
    with pytest.raises(
        UserError, match=r"no pair is left of 300; .*300 longer than data\.max_length"
    ):
        prepared()
    assert not folders(tmp_path)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_leaves_no_unfinished_files(config, prepared, tmp_path, processes):
    config.data.source, config.data.train_split, config.data.workers = "ids", "bad", processes
    write_pairs(tmp_path, "bad", [("1", "2")] * 40 + [("1", "two")])
    with pytest.raises(UserError, match=r"bad\.de, line 41: 'two' is not a non-negative integer"):
        prepared()
    assert [path.suffix for path in (tmp_path / "cache" / "corpora").iterdir()] == [".lock"]


PREPARE = """
import sys
from pathlib import Path
from tests.data.files import text_config
from transformer.support import cache
from transformer.data.corpus import corpus
from transformer.data.tokenizers import tokenizer
folder, pause = Path(sys.argv[1]), float(sys.argv[2])
config = text_config(folder, folder / "cache")
make_once = cache.make_once
def slow(path, fill, seconds):
    def filled(unfinished):
        fill(unfinished)
        print("writing", flush=True)
        import time; time.sleep(pause)
    make_once(path, filled, seconds)
cache.make_once = slow
made = corpus.prepare(config, tokenizer.Tokenizer.load(folder / "workdir", config), "train")
print(len(made), int(made.lengths.sum()), flush=True)
"""


def start(tmp_path, pause):
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(tmp_path), str(pause)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_two_processes_one_prepares_the_corpus_and_the_other_waits(config, prepared, tmp_path):
    processes = [start(tmp_path, 0.3) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].split("\n") for process in processes]
    assert sorted(map(len, outputs)) == [2, 3]  # only one of them printed "writing"
    assert outputs[0][-2] == outputs[1][-2] == f"300 {prepared().lengths.sum()}"


def test_a_killed_preparation_is_repeated(config, prepared, tmp_path):
    process = start(tmp_path, 60)
    assert process.stdout.readline() == "writing\n"
    process.kill()
    process.communicate()
    assert not folders(tmp_path)
    assert len(prepared()) == 300
    assert not list((tmp_path / "cache" / "corpora").glob("*.unfinished"))


def test_held_out_pairs_are_never_sampled(config, prepared):
    config.tokenizer.subword_sampling = 0.2
    valid = prepared("valid")
    assert (
        valid.epoch(1, 5).sampler is None
        and prepared().epoch(1, 5).lengths.sum() > prepared().lengths.sum()
    )


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_tokens_are_stored_in_the_smallest_type_that_holds_the_vocabulary(
    config, tmp_path, vocab_size, dtype
):
    largest = vocab_size - 5
    config.data.source, config.data.train_split = "ids", "large"
    config.tokenizer.kind, config.tokenizer.vocab_size = "ids", vocab_size
    write_pairs(tmp_path, "large", [(f"0 {largest}", "1")])
    made = tokenizer.prepare(config, tmp_path / "workdir")
    train = corpus.prepare(config, made, "train")
    assert pair_tokens(train, 0) == ([4, vocab_size - 1], [5])
    assert (folders(tmp_path)[0] / "tokens").stat().st_size == 5 * np.dtype(dtype).itemsize


def test_synthetic_and_real_text_are_encoded(multi30k, tmp_path, config):
    config.data.path, config.tokenizer.vocab_size = str(multi30k), 150
    made = tokenizer.prepare(config, tmp_path / "workdir")
    valid = corpus.prepare(config, made, "valid")
    expected = tuple(map(list, zip(*decoded(valid, made), strict=True)))
    texts = sources.read_pairs(config.data, "valid")
    assert [[" ".join(text.split()) for text in side] for side in texts] == [*expected]
    config.data.source, config.data.synthetic_examples = "synthetic", 1000
    assert len(corpus.prepare(config, made, "train")) == 1000
    assert len(corpus.prepare(config, made, "test")) == 200


def test_a_small_corpus_starts_no_processes(config, prepared, monkeypatch):
    monkeypatch.setattr(workers, "Pool", lambda *_, **__: pytest.fail("a process was started"))
    config.data.workers = 0
    assert len(prepared()) == 300


def test_a_truncated_file_of_a_corpus_is_refused(prepared, tmp_path):
    prepared()
    (folder,) = folders(tmp_path)
    (folder / "tokens").write_bytes((folder / "tokens").read_bytes()[:-1])
    with pytest.raises(
        UserError,
        match=r"damaged \(ValueError: tokens has \d+ bytes of \d+\); delete .*/test-train-",
    ):
        prepared()
    (folder / "corpus.json").write_text("{")
    with pytest.raises(UserError, match=r"corpus\.json: damaged .*; delete .*/test-train-"):
        prepared()


def test_text_that_the_vocabulary_loses_is_counted_with_an_example(config, prepared, tmp_path):
    config.data.train_split = "lossy"
    write_pairs(
        tmp_path, "lossy", [("number 犬犬", "Zahl  1"), ("number", "Zahl ①"), ("number 1", "Zahl")]
    )
    (source, unknown), (target, changed) = prepared().report["losses"]
    assert (
        source["unknown"] == 2
        and source["characters"] == 8 + 6 + 7
        and unknown == {"unknown": "number 犬犬"}
    )
    assert target["changed"] == 1 and target["lines"] == 3 and changed == {"changed": "Zahl ①"}


@pytest.mark.parametrize(("bad", "level"), [(15, "INFO"), (16, "WARNING")])
def test_many_dropped_pairs_are_a_warning(config, prepared, tmp_path, caplog, bad, level):
    config.data.train_split = "latin"
    write(tmp_path / "latin.en", b"number\n" * 300)
    write(tmp_path / "latin.de", b"Zahl\n" * (300 - bad) + b"Zahl f\xfcr\n" * bad)
    caplog.set_level("INFO", logger="absl")
    caplog.clear()
    prepared()
    (record,) = [record for record in caplog.records if "dropped" in record.getMessage()]
    assert record.levelname == level and f"{bad} not UTF-8" in record.getMessage()
