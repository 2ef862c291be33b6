"""Serves trained models: a page at /, and the API of LibreTranslate, whose clients work unchanged.

python -m scripts.serve --workdir=DIR [--workdir=DIR ...] [--host=ADDRESS] [--port=PORT]
    [--api_keys=FILE] [--languages=SOURCE:TARGET,...] [--keep] [--decoding.KEY=VALUE ...]

Each workdir translates one pair of languages. With --languages, the only workdir translates
several. The server answers once the programs of plain translations are compiled. SIGTERM and Ctrl-C
end it after the requests that it has accepted. docs/serving.md explains routes, limits and metrics.
"""

import argparse
import contextlib
import gc
import resource
import socket
from logging import LogRecord
from pathlib import Path

from absl import logging

from transformer.config import cli
from transformer.data.sources.lines import read_text_file
from transformer.support.errors import UserError

SHORTEST_KEY = 16  # characters
LAST_PORT = 65535
OPEN_FILES = 1 << 16
GRACE = 10  # seconds for a client to read the answer of a request at the time limit


def main(arguments: argparse.Namespace) -> None:
    keys = [] if arguments.api_keys is None else read_keys(Path(arguments.api_keys))
    with bind(arguments.host, arguments.port) as listener:
        # These imports take seconds, which --help should not.
        from scripts.serving.app import make_app
        from scripts.serving.middleware import Metrics, make_server
        from scripts.serving.models import load_models
        from scripts.serving.requests import Limits
        from transformer.support.cache import enable_compilation_cache

        enable_compilation_cache()
        logging.get_absl_logger().addFilter(is_not_about_a_line)
        # --decoding.KEY replaces the keys of all runs.
        decoding = {key.removeprefix("decoding."): value for key, value in arguments.overrides}
        metrics = Metrics()
        models = load_models(
            arguments.workdir,
            arguments.checkpoint,
            arguments.average,
            decoding,
            arguments.wait_ms / 1000,
            arguments.max_queue,
            metrics,
            arguments.max_shapes,
            arguments.keep,
            pairs=read_pairs(arguments),
        )
        limits = Limits(*(getattr(arguments, f"max_{name}") for name in Limits._fields))
        server = make_server(make_app(models, limits, keys, metrics), limits.seconds + GRACE)

        # Each connection is an open file.
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft_limit = OPEN_FILES if hard_limit < 0 else min(hard_limit, OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))
        # Models and programs are never freed, so the garbage collector need not visit them.
        gc.freeze()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(server.config.backlog)  # so that who reads the next line can connect
        logging.info("Listens on http://%s.", authority(arguments.host, listener.getsockname()[1]))
        # uvicorn raises the signal again after its orderly end.
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
        logging.info("Ended after the requests that were accepted.")


def authority(host: str, port: int) -> str:
    """Returns host and port as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_not_about_a_line(record: LogRecord) -> bool:
    """Returns False for warnings about lines of a file. Requests have no lines."""
    return record.module != "text_decoder"


def read_pairs(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Returns the pairs of --languages.

    Raises UserError if a pair is not SOURCE:TARGET, or several models are served.
    """
    # An empty flag, or a comma at the end, names no pair.
    names = filter(None, arguments.languages.split(","))
    pairs = [tuple(name.strip().split(":")) for name in names]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise UserError(
            f"--languages={arguments.languages}: must be SOURCE:TARGET,SOURCE:TARGET,... "
            "such as en:de"
        )
    if pairs and len(arguments.workdir) > 1:
        raise UserError(f"--languages={arguments.languages}: is for one model; give one --workdir")
    return pairs


def read_keys(path: Path) -> list[str]:
    """Returns the keys in a file, which has one key per line.

    Raises UserError if there is no key, or a short one, which is easily guessed.
    """
    keys = [line.strip() for line in read_text_file(path) if line.strip()]
    if not keys or min(map(len, keys)) < SHORTEST_KEY:
        raise UserError(
            f"--api_keys={path}: must have a key a line, each of at least {SHORTEST_KEY} characters"
        )
    return keys


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to the address and does not listen yet.

    The socket has no SO_REUSEADDR until it listens, so that a second server cannot bind to the same
    port. Raises UserError if the address cannot be used.
    """
    if port > LAST_PORT:
        raise UserError(f"--port={port}: must be at most {LAST_PORT}; choose another one")
    listener = None
    try:
        # The first address of a host name with several.
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a name of a host
        if listener is not None:
            listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--host={host} --port={port}: {reason}; choose another one") from None
    return listener


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.serve", __doc__, overrides="decoding")
    parser.add_model_flags(several=True)
    parser.add_argument("--languages", default="", help="SOURCE:TARGET,... of the only model")
    parser.add_argument(
        "--keep", action="store_true", help="keep URLs, e-mail addresses, placeholders and emoji"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_number("--port", 5000, "port to listen on; 0: any free one", least=0)
    parser.add_argument("--api_keys", help="a key a line; requests must have one as api_key")
    parser.add_number("--max_characters", 5000, "characters of a request")
    parser.add_number("--max_items", 100, "texts of a request")
    parser.add_number("--max_body_bytes", 200_000, "bytes of a request")
    parser.add_number("--max_requests", 256, "requests at a time")
    parser.add_number("--max_seconds", 60, "seconds of a request")
    parser.add_number("--max_queue", 2000, "sentences that wait for one model")
    parser.add_number(
        "--max_shapes", 16, "shapes of controls that stay compiled; 0: no controls", least=0
    )
    parser.add_number("--wait_ms", 20, "wait of a busy queue", least=0)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
