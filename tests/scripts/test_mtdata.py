"""`scripts.get_data` with the real mtdata, on a local index, recipe and archives.

It needs `make mtdata`.
"""

import functools
import gzip
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import get_data
from scripts.datasets import mtdata
from tests.checkpoints.workdirs import run

INDEX = """
from mtdata.entry import DatasetId
from mtdata.index import Entry

def load_all(index):
    for name, url, languages, options in (
        ("web", "{url}/web.tsv.gz", ("eng", "deu"), {{}}),
        (
            "news",
            "{url}/news.tgz",
            ("deu", "eng"),
            {{"in_paths": ["dev/news.de", "dev/news.en"], "in_ext": "txt"}},
        ),
        ("tests", "{url}/tests.tsv.gz", ("eng", "deu"), {{}}),
    ):
        index.add_entry(Entry(DatasetId("Local", name, "1", languages), url=url, **options))
"""
RECIPE = """
- id: local_ende
  langs: eng-deu
  train: Local-web-1-eng-deu
  dev: Local-news-1-deu-eng
  test: Local-tests-1-eng-deu
"""

pytestmark = [
    pytest.mark.slow,  # the first start of mtdata indexes 300,000 datasets
    pytest.mark.skipif(not mtdata.PYTHON.exists(), reason="make mtdata installs it"),
]


class Server(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def served(tmp_path, monkeypatch) -> Iterator[Path]:
    """Yields a folder that a local server serves; the current folder has the index and the recipe
    of its files.
    """
    folder = tmp_path / "served"
    folder.mkdir()
    for name, count in (("web", 50), ("tests", 5)):
        lines = "".join(f"{name} {number}\t{name} Nummer {number}\n" for number in range(count))
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    with tarfile.open(folder / "news.tgz", "w:gz") as archive:
        for language, text in (("de", "Satz\n" * 7), ("en", "sentence\n" * 7)):
            member = tarfile.TarInfo(f"dev/news.{language}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Server, directory=folder)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "mtdata_local.py").write_text(
            INDEX.format(url=f"http://127.0.0.1:{server.server_port}")
        )
        (tmp_path / "mtdata.recipes.local.yml").write_text(RECIPE)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MTDATA", str(tmp_path / "cache"))
        yield folder
        server.shutdown()


def test_recipes_and_datasets_with_the_real_mtdata(served, tmp_path, capfd):
    assert run(get_data, "--pair=en-de", "--recipe=local_ende", "--output=recipe") == 0
    record = json.loads(capfd.readouterr().out)
    assert {name: facts["lines"] for name, facts in record["files"].items()} == {
        **{
            "train.en": 50,
            "train.de": 50,
            "validation.en": 7,
            "validation.de": 7,
            "test.en": 5,
            "test.de": 5,
        }
    }
    assert Path("recipe/train.de").read_text().startswith("web Nummer 0\n")
    assert Path("recipe/validation.en").read_text() == "sentence\n" * 7
    assert "--train Local-web-1-eng-deu" in record["signature"]

    flags = (
        "--train=Local-web-1-eng-deu",
        "--test=Local-tests-1-eng-deu,Local-news-1-deu-eng",
        "--output=datasets",
    )
    assert run(get_data, "--pair=de-en", *flags) == 0
    assert Path("datasets/test.en").read_text().startswith("tests 0\n")
    assert Path("datasets/test2.de").read_text() == "Satz\n" * 7

    archive = served / "web.tsv.gz"
    archive.write_bytes(archive.read_bytes()[:-40])
    for cached in (tmp_path / "cache").rglob("web.tsv.gz*"):
        cached.unlink()
    assert run(get_data, "--pair=en-de", "--recipe=local_ende", "--output=damaged") == 2
    assert "Unable to add Local-web-1-eng-deu: Compressed file ended" in " ".join(
        capfd.readouterr().err.split()
    )
    assert not [path.name for path in tmp_path.iterdir() if "damaged" in path.name]
