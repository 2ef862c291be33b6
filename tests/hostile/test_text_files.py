"""Text files: any bytes are read exactly, or give a one-line error that names the file."""

import gzip
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.data.files import pair_tokens, text_config
from tests.hostile.inputs import contents, damaged
from tests.hostile.outcomes import Refusal, outcome
from transformer import evaluate
from transformer.data.corpus import corpus
from transformer.data.sources import lines
from transformer.data.sources import source as sources
from transformer.data.sources.lines import read_lines
from transformer.data.tokenizers import tokenizer
from transformer.decoding import bleu, metrics
from transformer.evaluate import read_texts
from transformer.workdir import Workdir

BOM = "\ufeff".encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("files")


def expected_lines(content: bytes) -> list[bytes]:
    split = content.removeprefix(BOM).split(b"\n")
    ended = split if split[-1] else split[:-1]
    texts = [line.removesuffix(b"\r") for line in ended]
    return texts or [b""] * bool(content)  # a byte order mark is a line even if nothing follows


@given(contents, st.booleans())
@example(BOM, False)
@example(b"\r\n\r\r\n\n", True)
def test_lines_equal_the_content_split_at_newlines(folder, content, packed):
    path = folder / ("lines.gz" if packed else "lines")
    path.write_bytes(gzip.compress(content) if packed else content)
    expected = expected_lines(content)
    read = outcome(lambda: list(read_lines(path)))
    if isinstance(read, Refusal):
        assert str(path) in read.message and (
            b"\0" in content or b"\r" in content or content[:1] in b"\xff\xfe"
        )
        return
    assert read == expected
    texts = outcome(lines.read_text_file, path)
    if isinstance(texts, Refusal):
        assert str(path) in texts.message and "not UTF-8" in texts.message
    else:
        assert [text.encode() for text in texts] == expected


@given(contents, st.data())
def test_a_damaged_gzip_file_is_refused_or_read_whole(folder, content, data):
    path = folder / "damaged.gz"
    path.write_bytes(damaged_content := data.draw(damaged(gzip.compress(content, mtime=0))))
    read = outcome(lambda: list(read_lines(path)))
    if isinstance(read, Refusal):
        assert str(path) in read.message
    elif read != expected_lines(content):
        # The damage made another valid file: an empty one, one padded with zeros, or several
        # concatenated.
        assert read == expected_lines(gzip.decompress(damaged_content))


pairs = st.tuples(contents, contents) | st.lists(st.tuples(contents, contents), max_size=6).map(
    lambda rows: tuple(
        b"".join(row[side].replace(b"\n", b"") + b"\n" for row in rows) for side in (0, 1)
    )
)


def write_split(folder: Path, split: str, sides: tuple[bytes, bytes]) -> None:
    for language, side in zip(("en", "de"), sides, strict=True):
        (folder / f"{split}.{language}").write_bytes(side)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with data, its config, and a tokenizer with byte fallback, which can encode any
    text.
    """
    folder = tmp_path_factory.mktemp("corpus")
    config = text_config(folder, folder / "cache")
    config.tokenizer.update({"vocab_size": 280, "byte_fallback": True})
    config.data.update({"deduplicate": True, "max_length": 40, "max_length_ratio": 9.0})
    write_split(folder, "train", (b"the cat sat\nthe hat\n", b"die Katze\nder Hut\n"))
    return folder, config, tokenizer.prepare(config, folder)


@given(pairs, st.sampled_from(("train", "valid")))
def test_a_corpus_keeps_or_counts_every_pair(prepared, sides, split):
    folder, config, trained = prepared
    shutil.rmtree(folder / "cache", ignore_errors=True)
    write_split(folder, split, sides)
    made = outcome(corpus.prepare, config, trained, split)
    left, right = (expected_lines(side) for side in sides)
    if isinstance(made, Refusal):
        assert str(folder) in made.message
        reasons = ("no pair is left", "no sentences", "not UTF-8", "must be UTF-8")
        assert len(left) != len(right) or any(reason in made.message for reason in reasons)
        return
    assert len(left) == len(right) == made.report["kept"] + sum(made.report["dropped"].values())
    for pair in range(len(made)):
        for tokens in pair_tokens(made, pair):
            assert tokens and min(tokens) > 0 and max(tokens) < trained.source.size


@given(pairs)
def test_any_pair_of_files_is_scored_or_refused(prepared, sides):
    folder, config, _ = prepared
    names = folder / "given.en", folder / "given.de"
    write_split(folder, "given", sides)
    flags = evaluate.make_parser().parse(
        [f"--workdir={folder}", f"--source={names[0]}", f"--reference={names[1]}"]
    )
    texts = outcome(read_texts, flags, Workdir(folder), config.data)
    if isinstance(texts, Refusal):
        assert str(folder) in texts.message
    else:
        scores = metrics.compute_metrics(*texts, bleu.Language("de", "13a"), metrics.METRICS)
        assert (
            all(
                0 <= scores[name] < 100 + 1e-9
                for name in metrics.applicable(metrics.METRICS, "text")
            )
            and scores["exact_match"] <= 1
        )


numbers = st.lists(
    st.lists(st.integers(0, 10**20)).map(lambda line: " ".join(map(str, line))), max_size=4
)


@given(pairs | st.tuples(*[numbers.map(lambda rows: "\n".join(rows).encode())] * 2))
@example((b"9" * 5000, b"1"))
@example(("\xb2".encode(), b"1"))
def test_integers_are_counted_or_the_invalid_line_is_named(prepared, sides):
    folder, config, _ = prepared
    config = config.copy_and_resolve_references()
    config.data.source, config.tokenizer.kind, config.data.train_split = "ids", "ids", "numbers"
    write_split(folder, "numbers", sides)
    vocabularies = outcome(
        tokenizer.train, config.tokenizer, sources.open_source(config.data, "train")
    )
    if isinstance(vocabularies, Refusal):
        assert str(folder) in vocabularies.message
    else:
        assert 4 <= vocabularies[0].size <= config.tokenizer.vocab_size
