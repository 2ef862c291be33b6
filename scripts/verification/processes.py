"""Separate processes for groups of checks: a crash ends one group only."""

import multiprocessing
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from transformer.support.errors import UserError

EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}  # else GPUs round float32 operands to TF32
HOST = EXACT | {"JAX_PLATFORMS": "cpu"}
LIMIT = 900.0  # seconds without a result after which a process hangs
END_SECONDS = 10.0  # for a process to end after SIGTERM


def results_of(function: str, *arguments: Any, environment: dict[str, str]) -> Iterator[Any]:
    """Yields what a generator function yields in another process, with these environment variables.

    `function` is MODULE:NAME. Raises UserError with the reason if the process ends with an error or
    a signal, or hangs.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments, environment))
    process.start()
    sender.close()  # so that the end of the process ends `recv`
    try:
        while receiver.poll(LIMIT):
            result = receiver.recv()
            if isinstance(result, UserError):
                raise result
            yield result
        raise UserError(f"its process gave no result for {LIMIT:.0f} s")
    except (EOFError, OSError):  # OSError: the process ended in the middle of a result
        process.join(END_SECONDS)
        if process.exitcode != 0:
            raise UserError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join(END_SECONDS)
        process.kill()  # one that is stuck in a driver
        process.join()


def _send(
    connection: Connection, function: str, arguments: tuple, environment: dict[str, str]
) -> None:
    os.environ.update(environment)  # before the module imports JAX
    # The parent ends this process: an exit by SIGTERM ends its children and removes its files.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for result in pkgutil.resolve_name(function)(*arguments):
            connection.send(result)
    except UserError as error:
        connection.send(error)
    except Exception as error:
        traceback.print_exc()
        connection.send(
            UserError(" ".join([f"{type(error).__name__}:", *str(error).splitlines()[:1]]))
        )
