"""The stream of `transformer.translate`: any bytes give one line of output a line, or a one-line
error.
"""

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.checkpoints.workdirs import make_workdir
from tests.hostile.inputs import contents
from tests.hostile.outcomes import Ended, input_of, run, streams
from transformer import translate
from transformer.checkpoints import loaded_models
from transformer.config import cli

# At this temperature samples are almost uniform over the vocabulary, bytes included: outputs are as
# hostile as inputs.
ANY_OUTPUT = {"decoding.strategy": "sample", "decoding.temperature": "1000.0"}
TEXT = {
    "data.source": "text",
    "tokenizer.kind": "bpe",
    "tokenizer.byte_fallback": "true",
    "tokenizer.vocab_size": "270",
}
N_BEST = 2
MEGABYTE = 1 << 20
BOM = "\ufeff".encode()


class Ready:
    """A model that is loaded and compiled once and shared by many runs of the command."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.workdir = make_workdir(folder / "run", **ANY_OUTPUT | settings)
        self.models = loaded_models.load([str(self.workdir)], "last", 1, [])
        self.decoder, _ = self.models.decoder()
        self.flags = (f"--workdir={self.workdir}", f"--n_best={N_BEST}")

    def translate(self, content: bytes, chunk_lines: int, *flags: str) -> Ended:
        with self.used(chunk_lines):
            return run(translate, *self.flags, *flags, stdin=content)

    @contextlib.contextmanager
    def used(self, chunk_lines: int) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loaded_models, "load", lambda *_: self.models)
            patch.setattr(loaded_models, "make_decoder", lambda *_, **options: self.decoder)
            patch.setattr(translate, "CHUNK_LINES", chunk_lines)
            yield


@pytest.fixture(scope="module")
def text_model(tmp_path_factory) -> Ready:
    return Ready(tmp_path_factory.mktemp("text"), **TEXT)


@pytest.fixture(scope="module")
def ids_model(tmp_path_factory) -> Ready:
    return Ready(tmp_path_factory.mktemp("ids"))


def lines_of(content: bytes) -> list[bytes]:
    """Splits the content at newlines; an empty last line is none."""
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def is_taken_for_utf_16(content: bytes, ended: Ended) -> bool:
    """Tells whether the content was refused as UTF-16.

    Text without its mark and zeros at newlines never is.
    """
    if "is UTF-16 or UTF-32" not in ended.log:
        return False
    assert ended.code == 2 and not ended.out
    assert (
        content.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))
        or b"\0\n" in content
        or b"\n\0" in content
    )
    return True


@pytest.mark.slow
@given(contents, st.integers(1, 4))
@example(b"", 1)
@example(b"\n\n\n", 2)
@example(b"one\r\ntwo\r\n", 1)
@example(b"one\rtwo\r", 1)
@example(b"one\0two\n\0\0\n\0", 2)
@example(b"one\0two\nthree\nfour\0\n", 2)
@example("one\u2028two\u0085three\x0bfour\x0cfive\u2029six".encode(), 4)
@example(BOM + b"one\ntwo", 4)
@example(BOM, 4)
def test_each_line_gives_n_best_lines(text_model, content, chunk_lines):
    ended = text_model.translate(content, chunk_lines)
    if is_taken_for_utf_16(content, ended):
        return
    assert ended.code == 0
    output = ended.out.decode()
    assert output.count("\n") == N_BEST * len(lines_of(content)) and output.endswith(
        "\n" if content else ""
    )
    # Translations have no other characters that a program might take for a line end.
    assert len(output.splitlines()) == output.count("\n")


@pytest.mark.slow
@given(contents, st.integers(1, 4))
@example(BOM + b"one\r\n" + BOM + b"two\r\r", 1)
def test_each_line_gives_one_json_object_on_one_line(text_model, content, chunk_lines):
    ended = text_model.translate(content, chunk_lines, "--format=jsonl")
    if is_taken_for_utf_16(content, ended):
        return
    objects = [json.loads(line) for line in ended.out.decode().split("\n")[:-1]]
    # Only a byte order mark at the beginning and a carriage return before the newline are removed.
    expected = [
        line.removesuffix(b"\r").decode(errors="replace")
        for line in lines_of(content.removeprefix(BOM))
    ]
    assert [written["source"] for written in objects] == (expected or [""] * bool(content))
    assert all(len(written["translations"]) == N_BEST for written in objects)


@pytest.mark.slow
@given(contents | st.text("0123456789 \r\n", max_size=20).map(str.encode), st.integers(1, 4))
@example(b"1 2\n3 x\n", 1)
@example(b"9" * 5000, 1)
@example("1 \xb2".encode(), 1)
def test_integers_are_translated_and_bad_lines_are_reported(ids_model, content, chunk_lines):
    lines = lines_of(content)
    ended = ids_model.translate(content, chunk_lines)
    if is_taken_for_utf_16(content, ended):
        return
    assert ended.code == 0 and ended.out.count(b"\n") == N_BEST * len(lines)
    translated = ended.out.split(b"\n")
    for number in range(1, len(lines) + 1):
        if f"Not translated: line {number}: " in ended.log:
            assert translated[N_BEST * (number - 1)] == b"1\t0.0000\t"


@pytest.mark.first_case
@pytest.mark.parametrize(
    "line",
    [
        b"a",
        b"1 2 ",
        b"a\0",
        b"\xff",
        b"\r",
        BOM,
        "\u0301".encode(),
        "\ufdfa".encode(),
        "\u4e2d".encode(),
        b"\xe2\x96\x81",
    ],
)
def test_a_line_of_a_megabyte_is_translated(text_model, line):
    long = line * (MEGABYTE // len(line))
    ended = text_model.translate(b"1\n" + long + b"\n2\n", 4096)
    assert ended.code == 0 and ended.out.count(b"\n") == 3 * N_BEST


@pytest.mark.first_case
def test_a_megabyte_of_zeros_is_refused(text_model):
    content = b"1\n" + b"\0" * MEGABYTE + b"\n2\n"
    assert is_taken_for_utf_16(content, text_model.translate(content, 4096))


class Pipe(io.RawIOBase):
    """Standard output whose reader closes it after `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.descriptor = limit, os.open(os.devnull, os.O_WRONLY)

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        if self.limit <= 0:
            raise BrokenPipeError
        taken = min(len(data), self.limit)
        self.limit -= taken
        return taken

    def fileno(self) -> int:
        return self.descriptor

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self.descriptor)


@given(st.integers(0, 200), st.integers(1, 4))
def test_a_closed_pipe_ends_the_command_quietly(text_model, limit, chunk_lines):
    content = b"1 2 3\n" * 40
    with (
        Pipe(limit) as pipe,
        io.TextIOWrapper(io.BufferedWriter(pipe)) as out,
        text_model.used(chunk_lines),
    ):
        with streams(input_of(content), out) as log:
            code = cli.execute(translate.make_parser(), translate.main, text_model.flags)
        pipe.limit = 1 << 30  # so that closing it raises nothing
    assert code == 141 and "rror" not in log.getvalue()
