"""Launching a run on several processes, and stopping all of them when one fails."""

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

from transformer.distributed import coordination
from transformer.support import locks
from transformer.support.errors import UserError

START_SECONDS = 300  # for all processes to connect
POLL_SECONDS = 1.0  # between two looks for failures of other processes
STOP_SECONDS = 10  # for a process to stop by itself after another one's failure
# JAX aborts all processes if one is silent for so long, or ends so much later than the first
HEARTBEAT_SECONDS = 60
INTERRUPTED = 130  # the exit code after a signal


@contextlib.contextmanager
def distributed_run(arguments: argparse.Namespace) -> Iterator[None]:
    """Connects the processes that the flags describe; a failure of one ends all.

    Raises UserError for wrong flags.
    """
    given = arguments.coordinator, arguments.num_processes, arguments.process_id
    if not arguments.distributed and given == (None, None, None):
        yield
        return
    _connect(
        "--distributed" if arguments.distributed else f"--coordinator={arguments.coordinator}",
        given,
    )
    done = threading.Event()
    threading.Thread(target=_watch_failures, args=(done,), daemon=True).start()
    try:
        with locks.progress_reported_to(coordination.publish_progress):
            yield
    except BaseException as error:
        _publish_failure(error)
        if coordination.is_collective_failure(error):
            time.sleep(2 * POLL_SECONDS)  # the process that stopped may have published why
            reason = (coordination.failures or ["another process of this run has died"])[0]
            logging.error("%s; start the same command in all processes to resume", reason)
            os._exit(2)  # at a normal exit JAX would wait for the process that died
        raise
    finally:
        done.set()


def _connect(flag: str, given: tuple[str | None, int | None, int | None]) -> None:
    # The preemption service would take SIGTERM for itself; `AnyProcess` does its work.
    jax.config.update("jax_enable_preemption_service", False)
    handlers = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)
    }

    def abort() -> None:
        logging.error(
            "%s: not all processes have connected within %d s; check that all are started and can reach process 0",
            flag,
            START_SECONDS,
        )
        os._exit(2)  # the main thread is inside JAX and cannot be interrupted

    deadline = threading.Timer(START_SECONDS, abort)
    deadline.daemon = True
    deadline.start()
    try:
        jax.distributed.initialize(
            *given,
            # In a Slurm step JAX would otherwise give this process one GPU of its host.
            cluster_detection_method=None if None in given else "deactivate",
            # At this deadline JAX aborts with a stack trace: ours comes first.
            initialization_timeout=2 * START_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
        jax.devices()  # waits until all processes have connected
    except (ValueError, RuntimeError, IndexError) as error:  # the last if the address has no port
        raise UserError(
            f"{flag}: the processes cannot connect ({str(error).splitlines()[0]}); if JAX detects no cluster, give "
            "--coordinator=HOST:PORT, --num_processes and --process_id"
        ) from error
    finally:
        deadline.cancel()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if jax.process_index() > 0:
        logging.set_verbosity(logging.WARNING)  # process 0 logs for all
    logging.info(
        "%d processes with %d devices are connected.", jax.process_count(), jax.device_count()
    )


def _publish_failure(error: BaseException) -> None:
    """Publishes this process's failure, unless another process failed first."""
    if coordination.failures:
        return
    code = (
        2
        if isinstance(error, UserError)
        else INTERRUPTED
        if isinstance(error, KeyboardInterrupt)
        else 1
    )
    reason = (
        str(error) if isinstance(error, UserError) else f"{type(error).__name__} {error}".strip()
    )
    message = f"process {jax.process_index()} on {socket.gethostname()} has stopped: {' '.join(reason.splitlines())}"
    # The key is set already if another process failed at the same time; the service is gone if
    # process 0 is.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        coordination.client().key_value_set(
            "failure", json.dumps([jax.process_index(), code, message])
        )


def _watch_failures(done: threading.Event) -> None:
    """Ends this process if another one fails, by force if it is inside JAX."""
    client = coordination.client()
    while not done.wait(POLL_SECONDS):
        try:
            process, code, message = json.loads(client.key_value_try_get("failure"))
        except jax.errors.JaxRuntimeError:  # the key is not set
            continue
        if process == jax.process_index():
            return
        coordination.failures.append(message)
        # After a signal all processes stop at the same step, and one may still be saving a
        # checkpoint.
        if code != INTERRUPTED and not done.wait(STOP_SECONDS):
            logging.error("%s", message)
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                client.shutdown()
            os._exit(code)
        return
