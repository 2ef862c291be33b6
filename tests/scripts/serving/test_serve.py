"""The command: its flags and files, its end, and many clients of which some leave."""

import itertools
import signal
import socket
import time

import pytest

import transformer
from scripts import serve
from tests.checkpoints.workdirs import run
from tests.scripts.serving.load import measure, started
from transformer.support.errors import UserError


def test_a_port_in_use_is_refused_before_a_model_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert run(serve, "--workdir=nowhere", f"--port={port}") == 2
    assert f"--host=127.0.0.1 --port={port}: Address already in use" in capsys.readouterr().err


def test_two_servers_that_start_at_once_do_not_share_a_port():
    with (
        serve.bind("127.0.0.1", 0) as first,
        pytest.raises(UserError, match="Address already in use"),
    ):
        serve.bind("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize("flag", ["--port=70000", "--host=no.such.host.invalid", "--host=.."])
def test_an_address_that_does_not_exist_is_refused(flag, capsys):
    assert run(serve, "--workdir=nowhere", flag) == 2
    assert "choose another one" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 20])
def test_a_file_without_good_keys_is_refused(content, tmp_path, capsys):
    path = tmp_path / "keys"
    path.write_bytes(content)
    assert run(serve, "--workdir=nowhere", f"--api_keys={path}") == 2
    assert str(path) in capsys.readouterr().err


def test_keys_are_the_lines_of_the_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("first-key-of-letters\n\n second-key-of-letters \n")
    assert serve.read_keys(path) == ["first-key-of-letters", "second-key-of-letters"]


def test_an_address_of_ipv6_is_in_brackets():
    assert [serve.authority(host, 80) for host in ("::1", "localhost")] == [
        "[::1]:80",
        "localhost:80",
    ]


def test_requests_are_not_reported_as_lines(workdirs, caplog):
    transformer.load(workdirs[0], batch_tokens=1).translate(["x y z"])
    records = [
        record for record in caplog.records if "its words are unknown" in record.getMessage()
    ]
    assert len(records) == 1 and not serve.is_not_about_a_line(records[0])


def test_a_workdir_is_needed(capsys):
    assert run(serve) == 2
    assert "the following arguments are required: --workdir" in capsys.readouterr().err


@pytest.mark.slow
def test_nothing_is_lost_or_mixed_up_in_ten_thousand_requests_of_clients_that_leave(workdirs):
    texts = [
        " ".join(words)
        for words in itertools.islice(itertools.product("1234567", repeat=5), 10_000)
    ]
    with started(f"--workdir={workdirs[0]}") as (_, port):
        answers, _, _ = measure(port, ("in", "out"), texts, clients=64, leaves=0.1)
    translations = transformer.load(workdirs[0]).translate(texts)
    assert answers == {
        text: best.text for text, (best, *_) in zip(texts, translations, strict=True)
    }


@pytest.mark.slow
def test_sigterm_finishes_what_was_accepted(workdirs):
    texts = [" ".join(words) for words in itertools.product("1234567", repeat=3)]
    with started(f"--workdir={workdirs[0]}", "--decoding.batch_tokens=1") as (process, port):
        body = f"q={'%0A'.join(texts).replace(' ', '+')}&source=in&target=out".encode()
        head = (
            b"POST /translate HTTP/1.0\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: %d\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head % len(body) + body)
            time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            received = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        assert process.wait(30) == 0
    assert " 200 " in received and len(received.partition("translatedText")[2].split("\\n")) == len(
        texts
    )
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
