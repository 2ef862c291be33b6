"""Separate processes for groups of checks: a crash ends one group only."""

import multiprocessing
import os
import pkgutil
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from transformer.errors import UserError

EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}  # else GPUs round float32 operands to TF32
HOST = EXACT | {"JAX_PLATFORMS": "cpu"}


def results_of(function: str, *arguments: Any, environment: dict[str, str]) -> Iterator[Any]:
    """Yields what a generator function yields in another process, with these environment variables.

    `function` is MODULE:NAME. Raises UserError with the reason if the process ends with an error or a signal.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments, environment))
    process.start()
    sender.close()  # so that the end of the process ends `recv`
    try:
        while True:
            result = receiver.recv()
            if isinstance(result, UserError):
                raise result
            yield result
    except EOFError:
        process.join()
        if process.exitcode != 0:
            raise UserError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()


def _send(connection: Connection, function: str, arguments: tuple, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # before the module imports JAX
    try:
        for result in pkgutil.resolve_name(function)(*arguments):
            connection.send(result)
    except Exception as error:
        connection.send(UserError(" ".join([f"{type(error).__name__}:", *str(error).splitlines()[:1]])))
        raise  # prints the traceback
