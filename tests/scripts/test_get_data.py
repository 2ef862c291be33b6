"""`scripts.get_data` for mtdata and Parquet: folders that appear whole, and their record in the
runs on them.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ml_collections
import pyarrow
import pytest
from pyarrow import parquet

from configs import base
from scripts import get_data
from tests.checkpoints.workdirs import run
from tests.scripts import fake_mtdata
from tests.scripts.sweeping.fakes import wait_until
from tests.training.tiny import tiny_config
from transformer.data.sources import source as sources
from transformer.data.sources.source import read_origin
from transformer.run.preparation import create_or_check
from transformer.workdir import Workdir


@pytest.fixture(scope="module")
def mtdata(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("mtdata") / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_mtdata.__file__} "$@"\n')
    path.chmod(0o755)
    return f"--mtdata={path}"


def result(capsys, *flags: str) -> dict:
    capsys.readouterr()
    assert run(get_data, *flags) == 0
    return json.loads(capsys.readouterr().out)


def error(capsys, *flags: str) -> str:
    """Returns the error line of a command that is expected to fail without writing anything."""
    capsys.readouterr()
    assert run(get_data, *flags) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert captured.out == ""
    return line


def text_data(path: Path, languages: tuple[str, str] = ("en", "de")) -> ml_collections.ConfigDict:
    """Returns `config.data` for the folder, with the base config's splits."""
    config = base.get_config()
    config.data.source, config.data.path = "text", str(path)
    config.data.source_language, config.data.target_language = languages
    return config.data


def test_a_recipe_becomes_a_folder_of_text(mtdata, tmp_path, capsys):
    output = tmp_path / "new" / "data"
    record = result(capsys, "--pair=en-de", "--recipe=tiny_ende", f"--output={output}", mtdata)
    data = text_data(output)
    assert next(iter(sources.open_source(data, "train"))) == (b"sentence 0", b"Satz 0")
    assert sources.read_pairs(data, "valid") == (["sentence"] * 4, ["Satz"] * 4)
    # The test sets have the order of the recipe, not of mtdata's links.
    assert sources.read_pairs(data, "test")[1] == ["Satz of Tiny-tests-1-eng-deu"] * 3
    assert (output / "test2.de").read_text() == "Satz of Tiny-tests-2-eng-deu\n" * 3
    assert record == json.loads((output / "data.json").read_text()) == read_origin(data)
    assert record["recipe"] == "tiny_ende" and record["datasets"]["train"] == ["Tiny-web-1-eng-deu"]
    assert record["signature"] == (output / "mtdata.signature.txt").read_text()
    assert record["files"]["train.de"]["lines"] == 30
    assert (
        record["files"]["train.de"]["sha256"]
        == hashlib.sha256((output / "train.de").read_bytes()).hexdigest()
    )
    assert not any(path.is_symlink() or path.is_dir() for path in output.iterdir())
    assert list(output.parent.iterdir()) == [output]


def test_languages_may_have_regions_that_mtdata_does_not_know(mtdata, tmp_path, capsys):
    record = result(
        capsys, "--pair=en-de-AT", "--recipe=tiny_ende", f"--output={tmp_path / 'data'}", mtdata
    )
    assert record["languages"] == ["en", "de-AT"] and record["files"]["train.de-AT"]["lines"] == 30


def test_datasets_are_named_one_by_one(mtdata, tmp_path, capsys):
    flags = (
        "--train=Tiny-web-1-eng-deu,Tiny-wiki-1-eng-deu",
        "--validation=Tiny-news-1-deu-eng",
        mtdata,
    )
    record = result(capsys, "--pair=de-en", *flags, f"--output={tmp_path / 'data'}")
    assert record["datasets"] == {
        "train": ["Tiny-web-1-eng-deu", "Tiny-wiki-1-eng-deu"],
        "validation": ["Tiny-news-1-deu-eng"],
    }
    assert record["signature"].startswith(
        "mtdata get -l deu-eng --merge --train Tiny-web-1-eng-deu Tiny-wiki-1-eng-deu "
        "--dev Tiny-news-1-deu-eng -o"
    )
    assert (
        sources.read_pairs(text_data(tmp_path / "data", ("de", "en")), "valid")[0] == ["Satz"] * 4
    )


def test_mistakes_and_damage_are_errors_of_one_line_and_leave_nothing(
    mtdata, tmp_path, capsys, monkeypatch
):
    output = f"--output={tmp_path / 'data'}"
    recipe = ("--recipe=tiny_ende", output, mtdata)
    line = error(capsys, "--pair=en-de", "--recipe=tiny_end", output, mtdata)
    assert "--recipe=tiny_end: mtdata has no such recipe; did you mean tiny_ende?" in line
    assert "--pair=en-fr: the recipe tiny_ende is of eng-deu, not of eng-fra" in error(
        capsys, "--pair=en-fr", *recipe
    )
    assert "--pair=en-qq must be codes of ISO 639" in error(capsys, "--pair=en-qq", *recipe)
    for pair in ("en", "en-en", "en-de-fr", "-de", "../x-de", "pt-BR", "en-pt-BR/x"):
        assert f"--pair={pair}: must be the codes of two languages" in error(
            capsys, f"--pair={pair}", *recipe
        )
    for python, reason in (
        ("/nowhere/python", "No such file"),
        (sys.executable, "if there is no mtdata"),
    ):
        line = error(capsys, "--pair=en-de", "--recipe=tiny_ende", output, f"--mtdata={python}")
        assert reason in line and "run make mtdata" in line
    for variable, value, message in (
        ("DAMAGED", "1", "mtdata failed, as its message above explains; its downloads stay in"),
        ("SHORT", "eng", "test: has 2 sentences of en and 3 of de"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert message in error(capsys, "--pair=en-de", *recipe)
    assert not list(tmp_path.iterdir())
    (tmp_path / "data").mkdir()
    assert f"{output}: exists; delete it" in error(capsys, "--pair=en-de", *recipe)


def test_an_interruption_ends_mtdata_and_leaves_nothing(mtdata, tmp_path, capsys, monkeypatch):
    def interrupt() -> None:
        # the last command, and not the quick ones before
        wait_until(lambda: any(tmp_path.glob("*/mtdata")), 60)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setenv("SLOW", "1")
    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    assert (
        run(get_data, "--pair=en-de", "--recipe=tiny_ende", f"--output={tmp_path / 'data'}", mtdata)
        == 130
    )
    assert time.monotonic() - began < 30
    assert not list(tmp_path.iterdir())


def test_flags_that_exclude_each_other_are_refused(tmp_path, capsys):
    output = f"--output={tmp_path / 'data'}"
    assert (
        "one of the arguments --recipe --train --hf --gettext --trees --perturb --tfds is required"
        in error(capsys, "--pair=en-de", output)
    )
    assert "--hf: not allowed with argument --recipe" in error(
        capsys, "--pair=en-de", "--recipe=a", "--hf=b", output
    )
    for flag in ("--validation=c", "--test=c"):
        assert f"{flag}: is for --train" in error(capsys, "--pair=en-de", "--hf=b", flag, output)
    assert "--pair=SOURCE-TARGET: is missing" in error(capsys, "--recipe=a", output)


def write_parquet(path: Path, **columns: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.fixture
def dataset(tmp_path) -> Path:
    """Returns a folder with the files of several pairs, as a dataset of the hub has."""
    folder = tmp_path / "wmt"
    for part, first in enumerate((0, 20)):
        pairs = [
            {"de": f"Satz {n}", "en": f"sentence\n {n}\u2028x"} for n in range(first, first + 20)
        ]
        write_parquet(folder / "de-en" / f"train-0000{part}-of-00002.parquet", translation=pairs)
    rows = [{"de": "Eins", "en": "one"}, {"de": None, "en": "two"}, None]
    write_parquet(folder / "de-en" / "validation" / "0000.parquet", translation=rows)
    write_parquet(
        folder / "fr-en" / "train-00000-of-00001.parquet", translation=[{"fr": "un", "en": "one"}]
    )
    return folder


def test_parquet_files_become_a_folder_of_text(dataset, tmp_path, capsys):
    output = tmp_path / "data"
    assert run(get_data, "--pair=en-de", f"--hf={dataset}", f"--output={output}") == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    data = text_data(output)
    pairs = list(sources.open_source(data, "train"))
    assert pairs == [(f"sentence  {n}\u2028x".encode(), f"Satz {n}".encode()) for n in range(40)]
    assert sources.read_pairs(data, "valid") == (["one"], ["Eins"])
    assert record["dropped"] == {"train": 0, "validation": 2}
    assert "validation: 2 pairs with a missing side dropped." in captured.err
    assert [Path(path).name for path in record["read"]["train"]] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]
    assert read_origin(data) == record


def test_columns_may_be_languages(tmp_path, capsys):
    write_parquet(tmp_path / "set" / "test.parquet", en=["one"], fr=["un"], id=[1])
    result(capsys, "--pair=fr-en", f"--hf={tmp_path / 'set'}", f"--output={tmp_path / 'data'}")
    assert sources.read_pairs(text_data(tmp_path / "data", ("fr", "en")), "test") == (
        ["un"],
        ["one"],
    )


@pytest.mark.parametrize("kind", [pyarrow.string_view(), pyarrow.large_string(), "dictionary"])
def test_text_of_all_layouts_is_read(tmp_path, kind, capsys):
    texts = pyarrow.array(["um", "dois", "um"])
    column = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind)
    write_parquet(
        tmp_path / "set" / "en-pt-BR" / "train.parquet",
        **{"en": ["one", "two", "one"], "pt-BR": column},
    )
    record = result(
        capsys, "--pair=en-pt-BR", f"--hf={tmp_path / 'set'}", f"--output={tmp_path / 'data'}"
    )
    assert record["languages"] == ["en", "pt-BR"]
    languages = ("en", "pt-BR")
    assert sources.read_pairs(text_data(tmp_path / "data", languages), "train")[1] == [
        "um",
        "dois",
        "um",
    ]


def test_splits_without_pairs_are_left_out(dataset, tmp_path, capsys):
    write_parquet(
        dataset / "de-en" / "test.parquet", translation=[{"de": None, "en": "hidden"}] * 2
    )
    (dataset / "de-en" / "validation" / "0000.parquet").unlink()
    write_parquet(
        dataset / "de-en" / "validation.parquet",
        translation=pyarrow.table({"de": [""], "en": [""]})[:0].to_struct_array(),
    )
    assert run(get_data, "--pair=en-de", f"--hf={dataset}", f"--output={tmp_path / 'data'}") == 0
    captured = capsys.readouterr()
    assert "test: has no pair with both sides, and is left out" in captured.err
    assert "validation: has no pair with both sides, and is left out" in captured.err
    assert [*json.loads(captured.out)["files"]] == ["train.en", "train.de"]
    for path in (dataset / "de-en").glob("train*"):
        path.unlink()
    line = error(capsys, "--pair=en-de", f"--hf={dataset}", f"--output={tmp_path / 'none'}")
    assert "no pair has both sides; name a folder that has some" in line
    assert not (tmp_path / "none").exists()


def test_files_of_other_splits_and_of_several_configurations_are_named(tmp_path, capsys):
    for folder in ("news-de-en", "news-en-de"):
        write_parquet(tmp_path / "set" / folder / "test" / "0000.parquet", en=["one"], de=["eins"])
    write_parquet(
        tmp_path / "set" / "news-de-en" / "partial-train" / "0000.parquet", en=["one"], de=["eins"]
    )
    output = f"--output={tmp_path / 'data'}"
    line = error(capsys, "--pair=en-de", f"--hf={tmp_path / 'set'}", output)
    assert "test is in several folders (news-de-en, news-en-de); name one of them" in line
    assert run(get_data, "--pair=en-de", f"--hf={tmp_path / 'set' / 'news-de-en'}", output) == 0
    assert (
        "partial-train/0000.parquet: is of no split that is known, and is left out"
        in capsys.readouterr().err
    )


def test_parquet_that_cannot_be_used_leaves_nothing(dataset, tmp_path, capsys):
    output = f"--output={tmp_path / 'data'}"
    assert "has no text of cs; it has " in error(
        capsys, "--pair=cs-en", f"--hf={dataset / 'de-en'}", output
    )
    assert "no such folder; download the dataset first: hf download" in error(
        capsys, "--pair=en-de", "--hf=owner/name", output
    )
    (tmp_path / "empty").mkdir()
    assert "no Parquet file of a split" in error(
        capsys, "--pair=en-de", f"--hf={tmp_path / 'empty'}", output
    )
    second = dataset / "de-en" / "train-00001-of-00002.parquet"
    second.write_bytes(second.read_bytes()[:-20])
    line = error(capsys, "--pair=en-de", f"--hf={dataset}", output)
    assert f"{second}: cannot be read" in line and "download it again" in line
    second.unlink()
    assert "has 1 of 2 files of train; download the others" in error(
        capsys, "--pair=en-de", f"--hf={dataset}", output
    )
    undecodable = pyarrow.array([b"\xff"], pyarrow.binary()).cast(pyarrow.string(), safe=False)
    path = write_parquet(tmp_path / "empty" / "test.parquet", en=undecodable, de=["x"])
    assert f"{path}: cannot be read" in error(
        capsys, "--pair=en-de", f"--hf={tmp_path / 'empty'}", output
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "wmt"]


def test_a_run_copies_the_record_of_its_data(mtdata, tmp_path, capsys):
    record = result(
        capsys, "--pair=en-de", "--recipe=tiny_ende", f"--output={tmp_path / 'data'}", mtdata
    )
    config = tiny_config(data__source="text", data__path=str(tmp_path / "data"))
    config = ml_collections.FrozenConfigDict(config)
    create_or_check(Workdir(tmp_path / "run"), config, None)
    assert json.loads((tmp_path / "run" / "data.json").read_text()) == record
    # The workdir of a start that failed is made again; the record does not survive its data.
    (tmp_path / "data" / "data.json").unlink()
    create_or_check(Workdir(tmp_path / "run"), config, None)
    assert not (tmp_path / "run" / "data.json").exists()
