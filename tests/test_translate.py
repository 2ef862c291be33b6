"""The command `transformer.translate`: one line out for each line in, and its errors."""

import dataclasses
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from absl import logging

from tests.checkpoints.workdirs import SOURCES, make_workdir, run
from tests.conftest import REPOSITORY
from transformer import translate
from transformer.data.sources import lines as input_lines
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.translation import EMPTY
from transformer.support.errors import UserError


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    return make_workdir(tmp_path_factory.mktemp("runs") / "reverse")


@pytest.fixture
def translated(workdir, monkeypatch, capsysbinary):
    """Runs the command on bytes and returns (exit code, output lines, log)."""

    def run_on(text: bytes, *flags: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(
            sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text), isatty=lambda: False)
        )
        code = run(translate, f"--workdir={workdir}", *flags)
        captured = capsysbinary.readouterr()
        return code, captured.out.decode().split("\n")[:-1], captured.err.decode()

    return run_on


INPUT = "".join(f"{line}\n" for line in SOURCES).encode()


def test_one_line_out_for_each_line_in_and_in_order(translated):
    code, lines, _ = translated(INPUT + b"\n \n1 2 3")
    assert code == 0 and len(lines) == len(SOURCES) + 3
    assert lines[5:7] == ["", ""] and lines[7] == lines[0]


def test_chunk_size_does_not_change_the_output(translated, monkeypatch):
    _, whole, _ = translated(INPUT)
    monkeypatch.setattr(translate, "CHUNK_LINES", 2)
    assert translated(INPUT)[1] == whole


def test_n_best_as_text_and_as_json(translated):
    _, best, _ = translated(INPUT)
    _, lines, _ = translated(INPUT, "--n_best=2")
    numbers, scores, texts = zip(*(line.split("\t") for line in lines), strict=True)
    assert numbers == ("1", "2") * len(SOURCES) and list(texts[::2]) == best
    _, objects, _ = translated(INPUT, "--n_best=2", "--format=jsonl")
    for text, line, pair in zip(
        SOURCES, objects, zip(texts[::2], texts[1::2], strict=True), strict=True
    ):
        written = json.loads(line)
        assert written["source"] == text
        assert [translation["text"] for translation in written["translations"]] == list(pair)
        assert written["translations"][0]["score"] >= written["translations"][1]["score"]
        assert f"{written['translations'][0]['score']:.3f}" in {
            f"{float(score):.3f}" for score in scores
        }
        first = written["translations"][0]
        fields = ("tokens", "pieces", "token_log_probabilities")
        assert {"text", "log_probability", "score", "score_kind", *fields} == set(first)
        assert len({len(first[field]) for field in fields}) == 1


def test_a_column_of_prefixes_begins_the_outputs(translated):
    code, lines, _ = translated(b"1 2 3\t7 7\n4 5\n6\t\n\t5\n", "--prefix_column")
    assert code == 0 and len(lines) == 4
    assert lines[0].startswith("7 7") and lines[1:] == translated(b"4 5\n6\n\n")[1]
    code, others, log = translated(b"4 5\n1 2 3\t" + b"7 " * 9 + b"\n6", "--prefix_column")
    assert (code, others) == (0, [lines[1], "", lines[2]])
    message = (
        "Not translated: line 2: prefix and required phrases have 9 tokens, an output "
        "may have 6; shorten them"
    )
    assert message in log


def test_columns_of_phrases_and_a_glossary_control_the_outputs(translated, tmp_path, monkeypatch):
    (tmp_path / "terms").write_text("4 5\t6 6\t2 2\n7\t1 1\n")
    columns = ("--required_column", "--banned_column", "--prefix_column")
    text = b'1 2 3\t["7 7", ["3 3", "4"]]\t\t5\n4 5 6\t\t["6 6"]\t3\n2 2 7\n6 5 4\t[]\n'
    code, lines, log = translated(text, *columns)
    assert code == 0, log
    assert lines[0].startswith("5") and "7 7" in lines[0] and ("3 3" in lines[0] or "4" in lines[0])
    assert lines[1].startswith("3") and "6 6" not in lines[1]
    assert lines[2:] == translated(b"2 2 7\n6 5 4\n")[1]
    flag, plain = f"--glossary={tmp_path / 'terms'}", translated(b"4 5 6\n1 2\n2 2 7\n")[1]
    _, lines, _ = translated(b"4 5 6\n1 2\n2 2 7\n", flag)
    assert ("6 6" in lines[0] or "2 2" in lines[0]) and lines[1] == plain[1] and "1 1" in lines[2]
    assert not ("6 6" in plain[0] or "2 2" in plain[0]) and "1 1" not in plain[2]
    for cell, message in (
        (b"7 7", "line 2: required='7 7': must be a list of phrases in JSON, such as"),
        (b"3", "line 2: required=3: must be a list of phrases; put"),
        (b"[3]", "line 2: required[0]=3: must be a list of strings; put"),
    ):
        code, lines, log = translated(b"1 2\n2\t" + cell, columns[0])
        assert (code, lines) == (0, [plain[1], ""]) and f"Not translated: {message}" in log
    code, lines, log = translated(b'7\t["1 1"]\n1 2\n', "--banned_column", flag)
    assert (code, lines) == (0, ["", plain[1]])
    assert "line 1: '1 1' is required, but '1 1' is banned; remove one" in log
    monkeypatch.setattr(translate, "CHUNK_LINES", 1)
    assert "line 2: required='x'" in translated(b"1\n2\tx", columns[0])[2]
    (tmp_path / "terms").write_text("7\t1\n7\t2\n")
    assert "line 2: '7' has other translations already, '1'; list all" in translated(b"", flag)[2]


def test_lines_that_cannot_be_translated_leave_the_others_as_they_are(translated, monkeypatch):
    """One line has no integers, one an unreadable column, and one a phrase that is too long."""
    monkeypatch.setattr(translate, "CHUNK_LINES", 4)
    text = b'1 2 3\nx\n4 5\t7\n6 5 4\t["' + b"7 " * 40 + b'"]\n2 2 7\t["6"]\n'
    code, lines, log = translated(text, "--required_column", "--format=jsonl")
    assert code == 0
    objects = [json.loads(line) for line in lines]
    assert [each["source"] for each in objects] == ["1 2 3", "x", "4 5", "6 5 4", "2 2 7"]
    outputs = [each["translations"][0]["text"] for each in objects]
    assert outputs[1:4] == [""] * 3 and outputs[0] and "6" in outputs[4]
    reported = [
        line.split("Not translated: ")[1] for line in log.splitlines() if "Not translated: " in line
    ]
    starts = (
        "line 2: 'x': tokenizer.kind=ids reads",
        "line 3: required=7: must be",
        "line 4: prefix and required",
    )
    assert all(line.startswith(start) for line, start in zip(reported, starts, strict=True))


def test_a_strategy_without_controls_is_no_error_of_lines(translated, monkeypatch):
    strategies = {"beam": STRATEGIES["beam"]._replace(takes_steps=False)}
    monkeypatch.setattr("transformer.decoding.control.control.STRATEGIES", strategies)
    code, lines, log = translated(b"1\n2\t7\n", "--prefix_column")
    assert (code, lines) == (2, []) and "Not translated" not in log
    assert "error: prefixes, phrases and glossaries need a search by steps" in log


def test_missing_hypotheses_become_lines_with_a_number():
    translation = dataclasses.replace(EMPTY, text="y", score=-1.23456)
    assert translate.as_text([translation], 3) == "1\t-1.2346\ty\n2\t\t\n3\t\t\n"


def test_numbers_in_json_have_six_digits():
    translation = dataclasses.replace(
        EMPTY, score=-1.23456789, token_log_probabilities=(-0.000123456789,)
    )
    (written,) = json.loads(translate.as_jsonl("x", [translation]))["translations"]
    assert (written["score"], written["token_log_probabilities"]) == (-1.23457, [-0.000123457])


def test_bytes_that_are_not_utf8_are_replaced_with_a_warning():
    logged = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, "warning", lambda message, *values: logged.append(message % values))
        text = "gut\r\nschl\xe4cht\n\u2028ende".encode("latin-1", "ignore")
        lines = list(input_lines.decode_lines(io.BytesIO(text)))
    assert lines == ["gut", "schl\ufffdcht", "ende"]
    assert len(logged) == 1 and logged[0].startswith("Line 2 is not UTF-8 (byte 5)")


def test_only_newlines_end_lines():
    assert list(input_lines.decode_lines(io.BytesIO("a\u2028b\x0bc\x85d\n".encode()))) == [
        "a\u2028b\x0bc\x85d"
    ]


def test_lines_are_translated_when_no_more_input_is_ready():
    """A co-process writes a line and waits.

    Lines may come in parts, and the last one may have no newline.
    """
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as writer:
        chunks = input_lines.read_chunks(stream, 3)
        for written, expected in (
            (b"a\n", [[b"a"]]),
            (b"b\n\nhal", [[b"b", b""]]),
            (b"f\nc\nd\n1\n2\n3\n4\n", [[b"half", b"c", b"d"], [b"1", b"2", b"3"], [b"4"]]),
        ):
            writer.write(written)
            assert [next(chunks) for _ in expected] == expected
        writer.write(b"end")
        writer.close()
        assert list(chunks) == [[b"end"]]


def test_a_file_gives_full_chunks_and_a_fast_writer_loses_no_line(tmp_path):
    (tmp_path / "file").write_bytes(b"".join(b"%d\n" % number for number in range(1, 100_001)))
    with (tmp_path / "file").open("rb") as stream:
        expected = list(input_lines.read_chunks(stream, 30_000))
    assert list(map(len, expected)) == [30_000, 30_000, 30_000, 10_000]
    # several times what a pipe holds
    with subprocess.Popen(["seq", "100000"], stdout=subprocess.PIPE) as writer:
        assert sum(input_lines.read_chunks(writer.stdout, 30_000), []) == sum(expected, [])


def test_input_in_another_encoding_is_refused():
    with pytest.raises(UserError, match="^standard input: is UTF-16 or UTF-32, must be UTF-8"):
        list(input_lines.read_chunks(io.BytesIO("a man\n".encode("utf-16")), 10))


def test_a_slow_writer_waits_for_a_moment_only(monkeypatch):
    """Not until a chunk is full, although a line is always ready soon after the last."""
    monkeypatch.setattr(input_lines, "_is_ready", lambda _, seconds: seconds is None or seconds > 0)
    monkeypatch.setattr(
        input_lines.time, "monotonic", itertools.count(0.0, input_lines.PATIENCE / 4).__next__
    )
    monkeypatch.setattr(input_lines, "BLOCK_BYTES", 2)
    assert max(map(len, input_lines.read_chunks(io.BytesIO(b"1\n" * 20), 4096))) < 6


def test_sampling_is_repeatable_and_changes_with_its_seed(translated):
    flags = ("--decoding.strategy=sample", "--decoding.temperature=3.0")
    first, again = translated(INPUT, *flags), translated(INPUT, *flags)
    assert first[1] == again[1]
    assert translated(INPUT, *flags, "--decoding.seed=1")[1] != first[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--n_best=3"], "n_best=3: must be at most decoding.beam_size=2"),
        (["--n_best=0"], "--n_best: 0: must be at least 1"),
        (["--format=xml"], "--format"),
        (["--decoding.beam=3"], "no key decoding.beam"),
    ],
)
def test_bad_flags_are_refused(translated, flags, message):
    code, lines, log = translated(b"1\n", *flags)
    assert (code, lines) == (2, []) and message in log and "Traceback" not in log


def test_documents_are_divided_only_at_blank_lines():
    lines = [b"1", b"2", b"", b"3", b" ", b"", b"4", b"5"]
    for size in range(1, 9):
        chunks = [lines[first : first + size] for first in range(0, 8, size)]
        documents = list(input_lines.whole_documents(chunks))
        assert sum(documents, []) == lines
        assert all(not document[-1].strip() for document in documents[:-1])
    assert list(input_lines.whole_documents([[b"1", b"2"], [b"3"]])) == [[b"1", b"2", b"3"]]


def test_no_input_gives_no_output(translated):
    assert translated(b"")[:2] == (0, [])


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_a_terminal_gets_each_line_at_once_and_a_closed_pipe_ends_quietly(workdir):
    ours, theirs = os.openpty()
    flags = [sys.executable, "-m", "transformer.translate", f"--workdir={workdir}"]
    process = subprocess.Popen(
        flags,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
    )
    os.close(theirs)
    os.write(ours, b"1 2 3\n")
    assert process.stdout.readline().endswith("\n")
    process.stdout.close()
    os.write(ours, b"4 5\n")
    _, log = process.communicate(timeout=60)
    os.close(ours)
    assert "Traceback" not in log and "BrokenPipe" not in log
    assert process.returncode == 141
