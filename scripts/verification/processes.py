"""A process for each group of checks, so that a crash ends only one group."""

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

# By default GPUs round float32 to TF32.
EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
HOST = EXACT | {"JAX_PLATFORMS": "cpu"}
# Seconds without a result after which a process counts as hung.
LIMIT = 900.0
# The time for a process to end after SIGTERM.
END_SECONDS = 10.0


def results_of(function: str, *arguments: Any, environment: dict[str, str]) -> Iterator[Any]:
    """Runs a generator function in another process, and yields its results.

    `function` is MODULE:NAME. The process gets the variables of `environment`. Raises UserError
    with the reason if the process ends with an error or a signal, or hangs.
    """
    # A new interpreter, which imports JAX with the variables of `environment`.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments, environment))
    process.start()
    sender.close()  # so that `recv` raises EOFError at the end of the process

    try:
        while receiver.poll(LIMIT):
            result = receiver.recv()
            if isinstance(result, UserError):
                raise result
            yield result
        raise UserError(f"its process gave no result for {LIMIT:.0f} s")
    except (EOFError, OSError):
        # EOFError: all results are there. OSError: the process ended in the middle of a result.
        process.join(END_SECONDS)
        if process.exitcode != 0:
            raise UserError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join(END_SECONDS)
        process.kill()  # without effect unless the process is stuck in a driver
        process.join()


def _send(
    connection: Connection, function: str, arguments: tuple, environment: dict[str, str]
) -> None:
    os.environ.update(environment)  # before the module imports JAX
    # The parent ends this process. An exit on SIGTERM ends its children and removes its files.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    try:
        for result in pkgutil.resolve_name(function)(*arguments):
            connection.send(result)
    except UserError as error:
        connection.send(error)
    except Exception as error:
        traceback.print_exc()
        first_line = str(error).splitlines()[:1]
        connection.send(UserError(" ".join([f"{type(error).__name__}:", *first_line])))
