"""Downloads, mostly from file URLs, for which the code is the same as for http."""

import contextlib
import errno
import hashlib
import shutil
import socket
import threading

import pytest

from configs import base
from transformer.data.sources import source as sources
from transformer.data.sources.text import download
from transformer.support.errors import UserError


@pytest.fixture
def data(tmp_path):
    """A config that downloads a train.en and a train.de of one line each."""
    served = tmp_path / "served"
    served.mkdir()
    triples = []
    for name, text in {"train.en": "a dog\n", "train.de": "ein Hund\n"}.items():
        (served / f"x-{name}").write_text(text)
        triples.append(
            (name, (served / f"x-{name}").as_uri(), hashlib.sha256(text.encode()).hexdigest())
        )
    data = base.get_config().data
    data.source = "text"
    data.name = "dogs"
    data.downloads = tuple(triples)
    data.cache_dir = str(tmp_path / "cache")
    return data


def test_files_are_fetched_once_and_read_as_a_source(data, tmp_path):
    assert sources.read_pairs(data, "train") == (["a dog"], ["ein Hund"])
    for path in (tmp_path / "served").iterdir():
        path.unlink()
    assert sources.read_pairs(data, "train") == (["a dog"], ["ein Hund"])


def test_a_changed_file_is_refused_and_not_kept(data, tmp_path):
    (tmp_path / "served" / "x-train.de").write_text("eine Katze\n")
    with pytest.raises(UserError, match="sha256 is .*, data.downloads has"):
        download(data)
    assert not list((tmp_path / "cache").rglob("*train.de*"))
    (tmp_path / "served" / "x-train.de").write_text("ein Hund\n")
    assert (download(data) / "train.de").read_text() == "ein Hund\n"


def test_without_a_network_the_error_names_the_files_to_provide(data, monkeypatch):
    def unreachable(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    name, _, sha256 = data.downloads[0]
    data.downloads = (
        (f"{name}.gz", "http://example.invalid/train.en.gz", sha256),
        data.downloads[1],
    )
    with pytest.raises(UserError) as raised:
        download(data)
    message = str(raised.value)
    assert "http://example.invalid/train.en.gz: download failed" in message
    assert "put train.en, train.de" in message and "--config.data.path=FOLDER" in message
    assert "\n" not in message


def answer_nonsense(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1024)
        connection.sendall(b"no HTTP\r\n")


def test_an_invalid_url_or_server_is_an_error_of_one_line(data):
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_nonsense, args=(server,), daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        for url, reason in (
            (f"{address}/train.en", "no HTTP"),
            (f"{address}/train en", "control characters"),
        ):
            data.downloads = (("train.en", url, data.downloads[0][2]),)
            with pytest.raises(UserError, match=f"{url}: download failed .*{reason}") as raised:
                download(data)
            assert "\n" not in str(raised.value)


def test_a_full_disk_is_not_reported_as_a_failed_download(data, tmp_path, monkeypatch):
    copy = shutil.copyfileobj

    def copy_to_full_disk(source, file):
        with (
            open("/dev/full", "wb")
            if file.name.endswith("train.de")
            else contextlib.nullcontext(file) as target
        ):
            copy(source, target)

    monkeypatch.setattr(shutil, "copyfileobj", copy_to_full_disk)
    with pytest.raises(OSError) as raised:
        download(data)
    assert raised.value.errno == errno.ENOSPC
    assert [path.suffix for path in (tmp_path / "cache" / "downloads").iterdir()] == [".lock"]


def test_neither_a_path_nor_downloads_is_refused(data):
    data.downloads = ()
    with pytest.raises(UserError, match="data.path is empty"):
        download(data)


def test_a_cache_folder_that_cannot_be_created_is_named(data, tmp_path):
    (tmp_path / "file").write_text("")
    data.cache_dir = str(tmp_path / "file" / "cache")
    with pytest.raises(
        UserError, match=r"data\.cache_dir=.*cannot be made .*; name another folder"
    ):
        download(data)
