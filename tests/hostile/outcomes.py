"""The two outcomes that hostile input may have: a result, or an error of one line."""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from transformer.config import cli
from transformer.support.errors import UserError


class Refusal(NamedTuple):
    message: str


def outcome(function: Callable, *arguments: Any) -> Any:
    """Returns the function's result, or its UserError as a `Refusal`.

    Any other exception fails the test.
    """
    try:
        return function(*arguments)
    except UserError as error:
        assert str(error).strip()
        return Refusal(str(error))


class Ended(NamedTuple):
    code: int
    out: bytes
    log: str


@contextlib.contextmanager
def streams(stdin: object, stdout: object) -> Iterator[io.StringIO]:
    """Replaces the standard streams and yields the buffer of standard error."""
    log = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", log)):
            patch.setattr(sys, name, stream)
        yield log


def input_of(content: bytes) -> SimpleNamespace:
    return SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: False)


def run(module: ModuleType, *flags: str, stdin: bytes = b"") -> Ended:
    """Runs a command in this process and checks that it succeeds, or exits with 2 after one line of
    error.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with streams(input_of(stdin), out) as log:
        code = cli.execute(module.make_parser(), module.main, flags)
    ended = Ended(code, out.buffer.getvalue(), log.getvalue())
    check(ended)
    return ended


def check(ended: Ended) -> None:
    assert "Traceback" not in ended.log and ended.code in (0, 2), ended.log
    errors = [line for line in ended.log.split("\n") if line.startswith("error: ")]
    assert len(errors) == (ended.code == 2), ended.log
    # A message of several lines would continue after the error line.
    assert ended.code == 0 or ended.log.endswith(f"{errors[0]}\n"), ended.log
