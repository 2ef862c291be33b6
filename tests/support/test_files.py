"""Errors of folders that cannot be made, and rounding of numbers."""

import os
from pathlib import Path

import numpy as np
import pytest

from transformer.config import cli
from transformer.support import files
from transformer.support.errors import UserError


@pytest.mark.parametrize("number", files.FULL_DISK)
def test_a_folder_on_a_full_disk_is_reported_as_a_full_disk(tmp_path, monkeypatch, capsys, number):
    def fail(path, **_):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", fail)
    parser = cli.Parser("scripts.plain", "Does nothing.")
    assert cli.execute(parser, lambda _: files.make_folder(tmp_path / "new", "--workdir"), []) == 2
    assert cli.DISK_IS_FULL in capsys.readouterr().err


def test_a_folder_inside_a_file_is_an_error_that_names_the_flag(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        UserError, match=f"^--workdir={tmp_path}/file/new: cannot be made .Not a directory"
    ):
        files.make_folder(tmp_path / "file" / "new", "--workdir")


def test_a_new_folder_has_one_writer_and_no_remains(tmp_path):
    with files.new_folder(tmp_path / "new") as folder:
        (folder / "weights").touch()
        refused = pytest.raises(UserError, match="new: another process is writing it")
        with refused, files.new_folder(tmp_path / "new"):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new" / "weights").exists()


def test_a_link_to_a_missing_folder_exists(tmp_path):
    (tmp_path / "new").symlink_to(tmp_path / "missing")
    with pytest.raises(UserError, match="new: exists"), files.new_folder(tmp_path / "new"):
        pass


def test_only_floats_are_rounded():
    assert files.six_digits({1: [1.23456789, "1.23456789"], "a": (np.float64(2e9 / 3), None)}) == {
        1: [1.23457, "1.23456789"],
        "a": [666667000.0, None],
    }
    assert files.six_digits({"count": np.int64(1234567)}) == {"count": 1234567}
