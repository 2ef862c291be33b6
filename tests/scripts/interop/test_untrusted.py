"""Files of others: the reader returns their contents, and damage or an attack is an error of one
line.
"""

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import strategies as st

from scripts.interop import untrusted
from scripts.interop.untrusted import Cursor
from tests.hostile import inputs
from tests.hostile.outcomes import Refusal, outcome
from transformer.support.errors import UserError

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "special:model.yml": np.frombuffer(b"x: 1\0", np.int8),
}


def npz(path: Path, **arrays: np.ndarray) -> Path:
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


def refusal(function: Callable, path: Path, content: bytes | str) -> str:
    """Returns the error of one line that reading this content ends with."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError) as error:
        function(path)
    message = str(error.value)
    assert (
        message.startswith(f"{path}: ")
        and len(message.splitlines()) == 1
        and len(message) < len(str(path)) + 200
    )
    return message


def test_a_cursor_reads_numbers_names_and_arrays(tmp_path):
    (tmp_path / "x.bin").write_bytes(struct.pack("<QI5sff", 7, 5, b"name\0", 1.5, -2.0))
    cursor = Cursor(tmp_path / "x.bin")
    assert cursor.unsigned(8) == 7
    assert cursor.name(cursor.unsigned(4)) == "name"
    np.testing.assert_array_equal(cursor.array(np.float32, (2, 1)), [[1.5], [-2.0]])
    assert cursor.position == len(cursor.content)


def within(read: Callable[[Cursor], object], path: Path) -> None:
    with untrusted.reading(path):
        read(Cursor(path))


@pytest.mark.parametrize("size", [1, 8, 2**31, 2**63, 2**64 - 1, -1])
def test_a_cursor_never_reads_beyond_the_end(tmp_path, size):
    for read in (
        lambda cursor: cursor.take(size),
        lambda cursor: cursor.name(size),
        lambda cursor: cursor.array(np.float64, (size, size)),
        lambda cursor: cursor.array(np.int8, (-1, size)),
    ):
        assert "damaged (" in refusal(
            lambda path, read=read: within(read, path), tmp_path / "x.bin", b""
        )


READERS = (
    untrusted.read_text,
    untrusted.read_json,
    untrusted.read_yaml,
    untrusted.read_npz,
    untrusted.read_safetensors,
    Cursor,
    untrusted.read_bytes,
)


@pytest.mark.parametrize("read", READERS)
def test_pipes_devices_folders_and_links_out_of_the_folder_are_not_opened(tmp_path, read):
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    (tmp_path / "secret").write_text("a: 1")
    (folder / "link").symlink_to("../secret")
    reasons = {"pipe": "is not a regular file", "folder": "is not a regular file"}
    for name in ("pipe", "zero", "folder", "link"):
        with pytest.raises(
            UserError, match=f"^{folder / name}: {reasons.get(name, 'is a link out of its folder')}"
        ):
            read(folder / name)


def test_links_in_the_folder_and_in_the_cache_of_the_hub_are_read(tmp_path):
    snapshot, blobs = (
        tmp_path / "models--a--b" / "snapshots" / "1f",
        tmp_path / "models--a--b" / "blobs",
    )
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    (blobs / "2e").write_text("text")
    (snapshot / "a.txt").symlink_to("../../blobs/2e")
    (snapshot / "b.txt").symlink_to("a.txt")
    assert untrusted.read_text(snapshot / "b.txt") == "text"


def test_files_have_a_limit_of_size_and_are_not_pointers(tmp_path):
    with (tmp_path / "model.bin").open("wb") as file:
        file.truncate(untrusted.MAX_MODEL + 1)  # takes no space on the disk
    with pytest.raises(
        UserError, match="model.bin: has 8,589,934,593 bytes, must have at most 8,589,934,592"
    ):
        Cursor(tmp_path / "model.bin")
    with pytest.raises(
        UserError, match="model.bin: has 8,589,934,593 bytes, must have at most 67,108,864"
    ):
        untrusted.read_bytes(tmp_path / "model.bin")  # as SentencePiece models are read
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    for read in READERS:
        assert "is a pointer of Git LFS; run git lfs pull" in refusal(
            read, tmp_path / "x.bin", pointer
        )


def test_pickles_are_refused_before_they_are_read(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("pytorch_model.bin", "model.pt"):
        (tmp_path / "folder" / name).write_bytes(b"")
        for path in (tmp_path / "folder", tmp_path / "folder" / name):
            with pytest.raises(UserError, match=f"{name}: is a pickle"):
                untrusted.refuse_pickles(path)
        (tmp_path / "folder" / name).unlink()
    untrusted.refuse_pickles(tmp_path / "folder")
    content = io.BytesIO()
    np.savez(content, objects=np.array([print, {}], dtype=object))
    assert "damaged (Object arrays cannot be loaded" in refusal(
        untrusted.read_npz, tmp_path / "x.npz", content.getvalue()
    )


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_archives_are_read(tmp_path, save):
    arrays = ARRAYS | {
        "fortran": np.asfortranarray(ARRAYS["a"]),
        "scalar": np.float64(2),
        "empty": np.zeros((0, 3)),
    }
    save(tmp_path / "x.npz", **arrays)
    read = untrusted.read_npz(tmp_path / "x.npz")
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype


def npz_with_header(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data)
    return content.getvalue()


@pytest.mark.parametrize(
    "shape",
    [
        "(2,)",
        "(1099511627776,)",
        "(1099511627776, 1099511627776)",
        "(-1,)",
        "(-1, -1)",
        "(1e3,)",
        "'x'",
        "()(",
    ],
)
def test_an_array_larger_than_its_file_takes_no_memory(tmp_path, shape):
    assert "damaged (" in refusal(
        untrusted.read_npz, tmp_path / "x.npz", npz_with_header(shape, bytes(4))
    )


def test_an_archive_that_would_inflate_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "MAX_TEXT", 1 << 16)
    content = io.BytesIO()
    np.savez_compressed(content, a=np.zeros(1 << 20))
    assert "an archive of 8,3" in refusal(
        untrusted.read_npz, tmp_path / "x.npz", content.getvalue()
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_name(tmp_path, value):
    arrays = ARRAYS | {"decoder_W": np.array([1, value], np.float32)}
    for path, save in ((tmp_path / "x.npz", npz), (tmp_path / "x.safetensors", None)):
        save(path, **arrays) if save else safetensors.numpy.save_file(arrays, path)
        read = untrusted.read_npz if save else untrusted.read_safetensors
        with pytest.raises(UserError, match="decoder_W has values that are NaN or infinite"):
            read(path)


def test_values_beyond_float32_are_refused_by_name(tmp_path):
    safetensors.numpy.save_file({"norm": np.array([1e300])}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="norm has values that are NaN or infinite"):
        untrusted.read_safetensors(tmp_path / "x.safetensors")


def test_safetensors_are_read(tmp_path):
    arrays = {
        "a": np.ones((2, 2), ml_dtypes.bfloat16),
        "b": np.ones(3, np.float16),
        "c": np.ones(1, np.float32),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "x.safetensors")
    read = untrusted.read_safetensors(tmp_path / "x.safetensors")
    assert {name: array.dtype for name, array in read.items()} == {
        "a": np.float32,
        "b": np.float16,
        "c": np.float32,
    }
    np.testing.assert_array_equal(read["a"], np.ones((2, 2)))


@pytest.mark.parametrize(
    "header", [{"a": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}}, [], {"a": 1}]
)
def test_damaged_safetensors_are_refused(tmp_path, header):
    text = json.dumps(header).encode()
    for length in (len(text), 0, 2**40, 2**64 - 1):
        content = struct.pack("<Q", length) + text
        assert "damaged (" in refusal(
            untrusted.read_safetensors, tmp_path / "x.safetensors", content
        )


def test_yaml_makes_plain_values_only(tmp_path):
    path = tmp_path / "x.yml"
    path.write_text('a: 1\n"\u2581the": 2\nlist: [x, 0.5]\n', encoding="utf-8")
    assert untrusted.read_yaml(path) == {"a": 1, "\u2581the": 2, "list": ["x", 0.5]}
    attacks = {
        "!!python/object/apply:os.system [echo]": "could not determine a constructor",
        "a: &a [1]\nb: [*a, *a]": "aliases",
        "[" * 10_000: "damaged",
        "- " * 10_000: "damaged",
        "a: [": "damaged",
        "- 1": "a list instead of a dict",
    }
    for text, reason in attacks.items():
        assert reason in refusal(untrusted.read_yaml, path, text)


def test_json_and_text_are_read_with_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text('["a"]')
    assert untrusted.read_json(path, list) == ["a"]
    for text in ("[]", "{", "[" * 100_000, b"\xff"):
        assert "damaged" in refusal(untrusted.read_json, path, text)
    monkeypatch.setattr(untrusted, "MAX_TEXT", 10)
    assert "has 11 bytes, must have at most 10" in refusal(untrusted.read_json, path, "{         }")
    with pytest.raises(UserError, match="nothing.json: No such file"):
        untrusted.read_json(tmp_path / "nothing.json")


@hypothesis.given(data=st.data())
def test_damaged_files_are_read_or_refused_in_one_line(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    npz(folder / "x.npz", **ARRAYS)
    safetensors.numpy.save_file({"a": ARRAYS["a"]}, folder / "x.safetensors")
    (folder / "x.yml").write_text("dim-emb: 8\nvocabs: [a, b]\n")
    (folder / "x.json").write_text('{"d_model": 8, "list": [1, null]}')
    readers = {"x.npz": untrusted.read_npz, "x.safetensors": untrusted.read_safetensors}
    readers |= {"x.yml": untrusted.read_yaml, "x.json": untrusted.read_json}
    for name, read in readers.items():
        path = folder / name
        path.write_bytes(data.draw(inputs.damaged(path.read_bytes())))
        result = outcome(read, path)
        if isinstance(result, Refusal):
            assert result.message.startswith(f"{path}: ") and len(result.message.splitlines()) == 1
