"""Several processes become one run, and what stops one of them stops all."""

import argparse
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import jax
from absl import logging
from jax._src import distributed as jax_distributed  # the service's keys and values have no public name

from transformer.distributed import coordination as distributed
from transformer.errors import UserError

JOIN_SECONDS = 300  # for all processes to have started
LISTEN_SECONDS = 1.0  # between two looks at how the others are
STOP_SECONDS = 10  # for a process to stop by itself once another one has failed
INTERRUPTED = 130  # the exit code of a command that a signal has ended
SILENT_SECONDS = 60  # of a process, after which JAX takes it for dead and aborts the others
LEAVE_SECONDS = 60  # for all processes to have ended, once one has
FAILURE = "failure"  # the key under which a process says why it has stopped


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="of process 0, when several processes are one run")
    parser.add_argument("--num_processes", metavar="N", type=int, help="how many there are, with --coordinator")
    parser.add_argument("--process_id", metavar="I", type=int, help="which one this is, from 0, with --coordinator")
    parser.add_argument("--distributed", action="store_true", help="several, as the cluster says (Slurm, GKE, TPU pod)")


@contextlib.contextmanager
def joined(arguments: argparse.Namespace) -> Iterator[None]:
    """In the block this process is one of those that the flags speak of, and what stops one of them stops all.

    Raises UserError for flags that do not go together, or a cluster that JAX does not know.
    """
    several = _check_flags(arguments)
    if not several:
        yield
        return
    _join(arguments)
    left = threading.Event()
    threading.Thread(target=_listen, args=(left,), daemon=True).start()
    try:
        yield
    except BaseException as error:
        tell(error)
        if distributed.is_collective_failure(error):
            time.sleep(2 * LISTEN_SECONDS)  # if it had something to say, that is the reason
            reason = (distributed.failures or ["another process of this run has died"])[0]
            logging.error("%s; the same command, started in all of them, goes on", reason)
            os._exit(2)  # to leave in good order JAX would wait for the one that has died
        raise
    finally:
        left.set()


def _check_flags(arguments: argparse.Namespace) -> bool:
    """Whether there are to be several processes."""
    names = ("coordinator", "num_processes", "process_id")
    given = [f"--{name}={getattr(arguments, name)}" for name in names if getattr(arguments, name) is not None]
    if given and (arguments.distributed or len(given) < len(names)):
        received = " ".join(given + ["--distributed"] * arguments.distributed)
        raise UserError(f"{received}: give --coordinator, --num_processes and --process_id, or --distributed alone")
    if not given:
        return arguments.distributed
    host, _, port = arguments.coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--coordinator={arguments.coordinator}: must be HOST:PORT, a free port of process 0's host")
    if not 0 <= arguments.process_id < arguments.num_processes:
        raise UserError(
            f"--process_id={arguments.process_id} --num_processes={arguments.num_processes}: "
            "processes are numbered from 0 to one less than there are"
        )
    return True


def _join(arguments: argparse.Namespace) -> None:
    # Its service would take SIGTERM for itself, and `Agreement` does what it is for.
    jax.config.update("jax_enable_preemption_service", False)
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    patience = threading.Timer(JOIN_SECONDS, _give_up_joining, (arguments,))
    patience.daemon = True
    patience.start()
    try:
        jax.distributed.initialize(
            arguments.coordinator,
            arguments.num_processes,
            arguments.process_id,
            # JAX would abort the process without a word that helps: the timer comes first.
            initialization_timeout=2 * JOIN_SECONDS,
            heartbeat_timeout_seconds=SILENT_SECONDS,
            shutdown_timeout_seconds=LEAVE_SECONDS,
        )
        jax.devices()  # which takes all processes: from here on one may wait for another
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"{_named(arguments)}: the processes cannot join ({str(error).splitlines()[0]}); where JAX knows no "
            "cluster, give --coordinator, --num_processes and --process_id"
        ) from error
    finally:
        patience.cancel()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if jax.process_index() > 0:
        logging.set_verbosity(logging.WARNING)  # what goes well is told once
    logging.info("%d processes with %d device(s) have joined.", jax.process_count(), jax.device_count())


def _give_up_joining(arguments: argparse.Namespace) -> None:
    logging.error(
        "%s: not all processes have joined in %d s; are all of them started, and can they reach process 0 there?",
        *(_named(arguments), JOIN_SECONDS),
    )
    os._exit(2)  # the main thread is inside JAX, and will not come back


def _named(arguments: argparse.Namespace) -> str:
    return f"--coordinator={arguments.coordinator}" if arguments.coordinator else "--distributed"


def tell(error: BaseException) -> None:
    """Lets the other processes know what this one stops of, unless it has that from them."""
    if distributed.failures:
        return
    code = 2 if isinstance(error, UserError) else INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__} {error}".strip()
    message = f"process {jax.process_index()} on {socket.gethostname()} has stopped: {' '.join(reason.splitlines())}"
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was first, or the service went with process 0
        distributed.publish(FAILURE, json.dumps([jax.process_index(), code, message]))


def _listen(left: threading.Event) -> None:
    """Until this process has left its block: if another one fails, ends it too, by force where it is inside JAX."""
    client = jax_distributed.global_state.client
    while not left.wait(LISTEN_SECONDS):
        try:
            process, code, message = json.loads(client.key_value_try_get(FAILURE))
        except jax.errors.JaxRuntimeError:  # there is none
            continue
        if process == jax.process_index():
            return
        distributed.failures.append(message)
        # Interruptions are agreed on: all are on their way out, and one may still be writing a checkpoint.
        if code != INTERRUPTED and not left.wait(STOP_SECONDS):
            logging.error("%s", message)
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                client.shutdown()
            os._exit(code)
        return
