"""Corpora prepared from small files, by one process and by several."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.data.files import text_config, write, write_pairs
from transformer.data.corpus import corpus, workers
from transformer.data.corpus import writer as corpus_writer
from transformer.data.corpus.corpus import Corpus
from transformer.data.sources import source as sources
from transformer.data.tokenizers import tokenizer
from transformer.errors import UserError

PAIRS = [(f"number {number} of a few", f"Zahl {number} von einigen wenigen") for number in range(300)]


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
    """A function that prepares a split with what the config then says."""
    made = tokenizer.prepare(config, tmp_path / "workdir")

    def prepare(split="train"):
        loaded = tokenizer.Tokenizer.load(tmp_path / "workdir", config)
        assert loaded.fingerprint == made.fingerprint
        return corpus.prepare(config, loaded, split)

    return prepare


@pytest.fixture
def short_stretches(monkeypatch):
    """Small corpora in many parts."""
    monkeypatch.setattr(corpus, "_STRETCH", 7)


def decoded(prepared_corpus, made):
    indices = range(len(prepared_corpus))
    source = made.source.decode([prepared_corpus.source(i).tolist() for i in indices])
    return list(zip(source, made.decode_target([prepared_corpus.target(i).tolist() for i in indices]), strict=True))


def content(prepared_corpus):
    indices = range(len(prepared_corpus))
    return [(prepared_corpus.source(i).tolist(), prepared_corpus.target(i).tolist()) for i in indices]


def folders(tmp_path):
    return sorted((tmp_path / "cache" / "corpora").glob("test-*"))


@pytest.mark.usefixtures("short_stretches")
def test_sentences_come_back_in_order(config, prepared, tmp_path):
    made = tokenizer.prepare(config, tmp_path / "workdir")
    train = prepared()
    assert isinstance(train, Corpus) and len(train) == 300
    assert decoded(train, made) == PAIRS
    assert train.lengths.dtype == np.int32 and isinstance(train.lengths, np.memmap)
    assert train.lengths.tolist() == [[len(source) + 1, len(target) + 1] for source, target in content(train)]
    assert train.report["kept"] == 300 and not any(train.report["dropped"].values())
    assert train.epoch(3, 0) is train


@pytest.mark.usefixtures("short_stretches")
def test_the_number_of_processes_and_compression_change_nothing(config, prepared, tmp_path):
    alone = content(prepared())
    config.data.workers, config.data.cache_dir = 2, str(tmp_path / "other")
    assert content(prepared()) == alone
    write_pairs(tmp_path, "packed", PAIRS, ending=".gz")
    config.data.train_split = "packed"
    assert content(prepared()) == alone


@pytest.mark.usefixtures("short_stretches")
def test_cleaning_drops_counts_and_keeps_the_rest(config, prepared, tmp_path):
    good = PAIRS[:30]
    long, lopsided = ("number " * 100, "Zahl " * 100), ("number", "Zahl von einigen wenigen")
    lines = [*good, ("", "Zahl"), ("number", " \t"), long, lopsided, good[3], good[3], *PAIRS[30:60]]
    write_pairs(tmp_path, "dirty", lines)
    with (tmp_path / "dirty.en").open("ab") as file:
        file.write(b"number \xff\n")
    with (tmp_path / "dirty.de").open("ab") as file:
        file.write(b"Zahl\n")
    config.data.train_split = "dirty"
    config.data.max_length, config.data.max_length_ratio, config.data.deduplicate = 60, 3.0, True
    train = prepared()
    expected = {"invalid_utf8": 1, "empty": 2, "too_long": 1, "length_ratio": 1, "duplicate": 2}
    assert train.report["dropped"] == expected
    assert train.report["kept"] == len(train) == len(train.lengths) == 60
    made = tokenizer.prepare(config, tmp_path / "workdir")
    assert decoded(train, made) == PAIRS[:60]


def test_held_out_pairs_are_kept_whatever_their_length(config, prepared, tmp_path):
    write_pairs(tmp_path, "valid", [("number " * 100, "Zahl"), ("", "Zahl"), ("number", "Zahl"), ("number", "Zahl")])
    config.data.max_length, config.data.deduplicate = 20, True
    valid = prepared("valid")
    assert len(valid) == 3 and valid.lengths[0, 0] > 100
    assert valid.report["dropped"]["empty"] == 1


def test_held_out_pairs_must_be_utf8(prepared, tmp_path):
    write(tmp_path / "valid.en", b"number\nnumb\xe9r\n")
    write(tmp_path / "valid.de", b"Zahl\nZahl\n")
    with pytest.raises(UserError, match=r"valid\.en, line 2: not UTF-8"):
        prepared("valid")


def test_a_prepared_corpus_is_not_prepared_again(config, prepared, tmp_path, monkeypatch):
    first = content(prepared())
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "_encode", lambda *_: pytest.fail("encoded again"))
        assert content(prepared()) == first
        config.batch.tokens = 1  # nothing to do with the corpus
        prepared()
    for change in ({"max_length": 99}, {"deduplicate": True}, {"max_length_ratio": 9.0}):
        config.data.update(change)
        prepared()
    write_pairs(tmp_path, "train", PAIRS[::-1])
    assert content(prepared()) == first[::-1]
    assert len(folders(tmp_path)) == 5


def test_nothing_left_is_an_error_with_the_counts(config, prepared, tmp_path):
    config.data.max_length = 3
    with pytest.raises(UserError, match=r"no pair is left of 300; .*300 longer than data\.max_length"):
        prepared()
    assert not folders(tmp_path)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_leaves_nothing_half_made(config, prepared, tmp_path, processes):
    config.data.source, config.data.train_split, config.data.workers = "ids", "bad", processes
    write_pairs(tmp_path, "bad", [("1", "2")] * 40 + [("1", "two")])
    with pytest.raises(UserError, match=r"bad\.de, line 41: 'two' is not a non-negative integer"):
        prepared()
    assert [path.suffix for path in (tmp_path / "cache" / "corpora").iterdir()] == [".lock"]


PREPARE = """
import sys
from pathlib import Path
from tests.data.files import text_config
from transformer.data import cache, corpus, tokenizer
folder, pause = Path(sys.argv[1]), float(sys.argv[2])
config = text_config(folder, folder / "cache")
write = cache.make_folder
def slow(path, fill):
    def filled(unfinished):
        fill(unfinished)
        print("writing", flush=True)
        import time; time.sleep(pause)
    write(path, filled)
cache.make_folder = slow
made = corpus.prepare(config, tokenizer.Tokenizer.load(folder / "workdir", config), "train")
print(len(made), int(made.lengths.sum()), flush=True)
"""


def start(tmp_path, pause):
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(tmp_path), str(pause)], stdout=subprocess.PIPE, text=True
    )


def test_two_processes_prepare_the_same_corpus(config, prepared, tmp_path):
    both = [start(tmp_path, 0.3) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].split("\n") for process in both]
    assert sorted(map(len, outputs)) == [2, 3]  # one of them wrote, the other waited and read
    assert outputs[0][-2] == outputs[1][-2] == f"300 {prepared().lengths.sum()}"


def test_a_killed_preparation_is_made_anew(config, prepared, tmp_path):
    process = start(tmp_path, 60)
    assert process.stdout.readline() == "writing\n"
    process.kill()
    process.communicate()
    assert not folders(tmp_path)
    assert len(prepared()) == 300
    assert not list((tmp_path / "cache" / "corpora").glob("*.unfinished"))


@pytest.mark.usefixtures("short_stretches")
class TestSampling:
    @pytest.fixture(autouse=True)
    def sampling(self, config, prepared):
        config.tokenizer.subword_sampling = 0.2

    def test_epochs_differ_and_each_is_a_function_of_seed_and_epoch(self, config, prepared, tmp_path):
        train = prepared()
        made = tokenizer.prepare(config, tmp_path / "workdir")
        first, second, other = (content(train.epoch(*which)) for which in ((0, 5), (1, 5), (1, 6)))
        assert len({str(first), str(second), str(other), str(content(train))}) == 4
        assert decoded(train.epoch(1, 5), made) == PAIRS
        config.data.workers, config.data.cache_dir = 2, str(tmp_path / "other")
        assert content(prepared().epoch(1, 5)) == second

    def test_equal_sentences_are_segmented_each_by_itself(self, prepared, tmp_path):
        write_pairs(tmp_path, "train", [("number of a few", "Zahl von einigen wenigen")] * 50)
        epoch = prepared().epoch(0, 0)
        assert len({str(pair) for pair in content(epoch)}) > 10

    def test_lengths_stay_within_the_limit(self, config, prepared):
        config.tokenizer.subword_sampling = 0.5
        config.data.max_length = int(prepared().lengths.max()) + 8
        train = prepared()
        epoch = train.epoch(0, 0)
        assert len(train) == len(epoch) == 300
        assert epoch.lengths.max() <= config.data.max_length
        assert epoch.lengths.sum() > train.lengths.sum()

    def test_earlier_epochs_are_deleted_but_stay_readable(self, prepared, tmp_path):
        train = prepared()
        train.epoch(0, 5)
        second = train.epoch(1, 5)
        before = content(second)
        for epoch in (2, 3, 4):
            train.epoch(epoch, 5)
        train.epoch(0, 6)
        (folder,) = folders(tmp_path)
        # The first stays, the shapes of batches are chosen by it; and the last two, which another host may be in.
        assert sorted(str(path.relative_to(folder)) for path in folder.glob("epochs-*/*")) == [
            "epochs-5-0.2/0",
            "epochs-5-0.2/2",
            "epochs-5-0.2/3",
            "epochs-5-0.2/4",
            "epochs-6-0.2/0",
        ]
        assert content(second) == before
        assert content(train.epoch(1, 5)) == before

    def test_held_out_pairs_are_never_sampled(self, prepared):
        valid = prepared("valid")
        assert valid.epoch(1, 5) is valid


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_ids_take_the_smallest_type_that_holds_them(config, tmp_path, vocab_size, dtype):
    largest = vocab_size - 5
    config.data.source, config.data.train_split = "ids", "large"
    config.tokenizer.kind, config.tokenizer.vocab_size = "ids", vocab_size
    write_pairs(tmp_path, "large", [(f"0 {largest}", "1")])
    made = tokenizer.prepare(config, tmp_path / "workdir")
    train = corpus.prepare(config, made, "train")
    assert train.source(0).tolist() == [4, vocab_size - 1] and train.source(0).dtype == np.int32
    assert (folders(tmp_path)[0] / "ids").stat().st_size == 3 * np.dtype(dtype).itemsize


def test_synthetic_and_real_text(multi30k, tmp_path, config):
    config.data.path, config.tokenizer.vocab_size = str(multi30k), 150
    made = tokenizer.prepare(config, tmp_path / "workdir")
    valid = corpus.prepare(config, made, "valid")
    expected = tuple(map(list, zip(*decoded(valid, made), strict=True)))
    texts = sources.read_pairs(config.data, "valid")
    assert [[" ".join(text.split()) for text in side] for side in texts] == [*expected]
    config.data.source, config.data.synthetic_examples = "synthetic", 1000
    assert len(corpus.prepare(config, made, "train")) == 1000
    assert len(corpus.prepare(config, made, "test")) == 200


def modules_loaded(_):
    return sorted(
        name for name in ("jax", "tensorflow", "tensorflow_datasets", "tests.conftest") if name in sys.modules
    )


def fail_on_seven(number):
    if number == 7:
        raise UserError("seven")
    if number == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    print("this is no result")
    return number * number


def test_workers_import_only_what_the_work_needs():
    for loaded in workers.map_ordered(modules_loaded, range(2), 2):
        assert "tensorflow" not in loaded and "tests.conftest" not in loaded
    code = "import sys, transformer.data.corpus; assert 'jax' not in sys.modules and 'flax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_results_keep_their_order_and_errors_arrive():
    assert list(workers.map_ordered(fail_on_seven, range(7), 3)) == [n * n for n in range(7)]
    with pytest.raises(UserError, match="seven"):
        list(workers.map_ordered(fail_on_seven, range(5, 8), 2))
    with pytest.raises(UserError, match=r"a worker process died \(exit code -9\)"):
        list(workers.map_ordered(fail_on_seven, [8], 2))


def test_arguments_are_taken_only_a_little_ahead():
    taken = []
    results = workers.map_ordered(fail_on_seven, (taken.append(n) or 1 for n in range(100)), 2)
    next(results)
    assert len(taken) <= 5
    results.close()


def test_a_small_corpus_starts_no_processes(config, prepared, monkeypatch):
    monkeypatch.setattr(workers.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    config.data.workers = 0
    assert len(prepared()) == 300
    began = time.perf_counter()
    prepared()
    assert time.perf_counter() - began < 1
    assert corpus_writer._SMALL >= 29_000  # Multi30k
