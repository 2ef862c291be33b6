"""`scripts.get_data --tfds`: the builders of TFDS on small archives of WMT, without TensorFlow."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import tensorflow_datasets
import tensorflow_datasets.translate  # noqa: F401
from tensorflow_datasets.core import dataset_builder, shuffle
from tensorflow_datasets.core.download import checksums

from configs import base
from scripts import get_data
from scripts.datasets import tfds
from tests.checkpoints.workdirs import run
from tests.scripts.archives import TEST_SENTENCES, sentences, write_archives
from transformer.data.sources import source as sources
from transformer.support.errors import UserError

# The sum of the counts of the training corpora in tests/scripts/archives.py.
TRAIN = {
    "wmt14_translate/de-en": 40 + 30 + 20,
    "wmt14_translate/fr-en": 40 + 30 + 20 + 15 + 25,
    "wmt17_translate/de-en": 40 + 30 + 20 + 10,
    "wmt_t2t_translate/de-en": 40 + 30 + 20,
}


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> Path:
    return write_archives(tmp_path_factory.mktemp("archives"))


@pytest.fixture
def small_checksums(archives, monkeypatch):
    """Registers the checksums of the small archives instead of those of the real ones."""
    real = checksums.get_all_url_infos()
    small = {
        url: archives / (info.filename or "")
        for url, info in real.items()
        if "statmt.org/wmt" in url
    }
    infos = {url: checksums.compute_url_info(path) for url, path in small.items() if path.is_file()}
    monkeypatch.setattr(checksums, "get_all_url_infos", lambda: dict(infos))
    monkeypatch.setattr(dataset_builder.DatasetBuilder, "url_infos", None)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Refuses connections at once; TFDS tries for minutes."""

    def refuse(session, url, **_):
        raise requests.ConnectionError(f"{url}: refused")

    monkeypatch.setattr(requests.Session, "get", refuse)
    monkeypatch.setattr(tensorflow_datasets, "disable_progress_bar", lambda: None)


def flags(dataset: str, output: Path, archives: Path) -> tuple[str, ...]:
    return f"--tfds={dataset}", f"--output={output}", f"--archives={archives}"


def error(capsys, *arguments: str) -> str:
    capsys.readouterr()
    assert run(get_data, *arguments) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert captured.out == "" and "Traceback" not in captured.err
    return line


@pytest.mark.usefixtures("small_checksums")
@pytest.mark.parametrize("dataset", TRAIN)
def test_a_dataset_of_wmt_is_prepared_from_its_archives(dataset, archives, tmp_path, capsys):
    assert run(get_data, *flags(dataset, tmp_path / "data", archives)) == 0
    printed = json.loads(capsys.readouterr().out)
    is_wmt17 = "17" in dataset
    validation, test = (2016, 2017) if is_wmt17 else (2013, 2014)
    assert printed["examples"] == {
        "train": TRAIN[dataset],
        "validation": 5 if is_wmt17 else 6,
        "test": 5,
    }
    data = base.get_config().data
    data.name, data.path = dataset, str(tmp_path / "data")
    data.target_language = dataset[-5:-3]
    texts, references = sources.read_pairs(data, "test")
    assert sorted(references) == sorted(
        sentences(f"newstest{test}", data.target_language, TEST_SENTENCES)
    )
    # The two sides of a pair stay together.
    assert [text.replace(" en ", f" {data.target_language} ") for text in texts] == references
    assert all(
        text.startswith(f"newstest{validation} en ")
        for text in sources.read_pairs(data, "valid")[0]
    )
    assert "tensorflow" not in sys.modules
    assert not [path for path in (tmp_path / "data").iterdir() if path.name.startswith(".")]


@pytest.mark.usefixtures("small_checksums")
def test_a_split_that_is_shuffled_on_disk_is_the_same(archives, tmp_path, monkeypatch):
    data = base.get_config().data
    data.name, read = "wmt_t2t_translate/de-en", []
    for name, limit in (("memory", shuffle.MAX_MEM_BUFFER_SIZE), ("disk", 1000)):
        monkeypatch.setattr(shuffle, "MAX_MEM_BUFFER_SIZE", limit)
        assert run(get_data, *flags(data.name, tmp_path / name, archives)) == 0
        data.path = str(tmp_path / name)
        read.append(list(sources.open_source(data, "train")))
    assert read[0] == read[1] and len(read[0]) == TRAIN[data.name]


@pytest.mark.usefixtures("small_checksums")
def test_preparing_again_changes_nothing(archives, tmp_path, capsys):
    assert run(get_data, *flags("wmt_t2t_translate/de-en", tmp_path, archives)) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert run(get_data, "--tfds=wmt_t2t_translate/de-en", f"--output={tmp_path}") == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


class Response:
    """A download that may end early, as a proxy's or a full server's does."""

    def __init__(self, content: bytes, url: str, share: float) -> None:
        self.url, self.status_code, self.raw = url, 200, None
        self.headers = {"Content-length": str(len(content))}
        self.content = content[: int(share * len(content))]

    def raise_for_status(self) -> None:
        pass

    def iter_content(self, chunk_size: int) -> Iterator[bytes]:
        yield self.content

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *_) -> None:
        pass


@pytest.mark.usefixtures("small_checksums")
def test_archives_are_downloaded_and_kept_only_if_they_are_whole(
    archives, tmp_path, capsys, monkeypatch
):
    shares = {"training-parallel-nc-v13.tgz": 0.5}

    def get(session, url, **_):
        name = url.rpartition("/")[2]
        return Response((archives / name).read_bytes(), url, shares.get(name, 1))

    monkeypatch.setattr(requests.Session, "get", get)
    command = ("--tfds=wmt_t2t_translate/de-en", f"--output={tmp_path}")
    line = error(capsys, *command)
    assert "NonMatchingChecksumError" in line and "training-parallel-nc-v13.tgz" in line
    kept = [
        path.name
        for path in (tmp_path / "downloads").rglob("*")
        if path.is_file() and path.suffix == ".tgz"
    ]
    assert kept and not any("nc-v13" in name for name in kept)
    assert [path.name for path in tmp_path.iterdir()] == ["downloads"]
    assert not list(tmp_path.rglob("*.tmp.*"))
    shares.clear()
    assert run(get_data, *command) == 0
    assert (
        json.loads(capsys.readouterr().out)["examples"]["train"] == TRAIN["wmt_t2t_translate/de-en"]
    )


@pytest.mark.usefixtures("small_checksums")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            truncate,
            "NonMatchingChecksumError: Artifact "
            "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
        ),
        (
            Path.unlink,
            "ConnectionError: "
            "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz: refused",
        ),
    ],
)
def test_a_damaged_or_missing_archive_leaves_nothing(archives, tmp_path, capsys, damage, message):
    copied = shutil.copytree(archives, tmp_path / "archives")
    damage(copied / "training-parallel-europarl-v7.tgz")
    line = error(capsys, *flags("wmt14_translate/de-en", tmp_path / "data", copied))
    assert message in line and "give its folder with --archives=DIR" in line
    assert not [path for path in (tmp_path / "data").rglob("*") if path.name != "downloads"]


def test_an_archive_without_a_known_checksum_may_be_damaged_too(
    archives, tmp_path, capsys, monkeypatch
):
    copied = shutil.copytree(archives, tmp_path / "archives")
    truncate(copied / "dev.tgz")
    real = checksums.get_all_url_infos()
    small = {
        url: copied / (info.filename or "") for url, info in real.items() if "statmt.org/wmt" in url
    }
    infos = {url: checksums.compute_url_info(path) for url, path in small.items() if path.is_file()}
    monkeypatch.setattr(checksums, "get_all_url_infos", lambda: dict(infos))
    monkeypatch.setattr(dataset_builder.DatasetBuilder, "url_infos", None)
    line = error(capsys, *flags("wmt14_translate/de-en", tmp_path / "data", copied))
    assert "ExtractError: Error while extracting" in line and "dev.tgz" in line
    assert not [path for path in (tmp_path / "data").rglob("*") if path.name != "downloads"]


def test_mistakes_are_errors_of_one_line(archives, tmp_path, capsys):
    assert "--tfds=wmt14_translate/xx-en: " in error(
        capsys, *flags("wmt14_translate/xx-en", tmp_path, archives)
    )
    assert "--tfds=wmt99: DatasetNotFoundError" in error(
        capsys, *flags("wmt99", tmp_path, archives)
    )
    nowhere = tmp_path / "nowhere"
    assert f"--archives={nowhere}: no such folder" in error(
        capsys, *flags("wmt_t2t_translate", tmp_path, nowhere)
    )
    with pytest.raises(UserError, match="cannot be made"):
        (tmp_path / "file").touch()
        tfds.prepare("wmt_t2t_translate", tmp_path / "file" / "data", None)
