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
# JAX aborts all processes if one is silent for this time, or ends this much later than the first.
HEARTBEAT_SECONDS = 60
INTERRUPTED = 130  # the exit code after a signal


@contextlib.contextmanager
def distributed_run(arguments: argparse.Namespace) -> Iterator[None]:
    """Connects the processes that the flags describe.

    The failure of a process ends all processes. Raises UserError for wrong flags.
    """
    address = (arguments.coordinator, arguments.num_processes, arguments.process_id)
    if arguments.distributed:
        flag = "--distributed"
    elif address != (None, None, None):
        flag = f"--coordinator={arguments.coordinator}"
    else:
        yield
        return
    _connect(flag, address)
    # A thread, because the main thread may hang in a collective with the failed process.
    done = threading.Event()
    threading.Thread(target=_watch_failures, args=(done,), daemon=True).start()
    try:
        with locks.progress_reported_to(coordination.publish_progress):
            yield
    except BaseException as error:
        _publish_failure(error)
        if coordination.is_collective_failure(error):
            # The process that stopped may have published its reason.
            time.sleep(2 * POLL_SECONDS)
            reason = (coordination.failures or ["another process of this run has died"])[0]
            logging.error("%s; start the same command in all processes to resume", reason)
            # At a normal exit, JAX would wait for the process that died.
            os._exit(2)
        raise
    finally:
        done.set()


def _connect(flag: str, address: tuple[str | None, int | None, int | None]) -> None:
    """Connects this process to the address (coordinator, number of processes, this process)."""
    # The preemption service would take SIGTERM for itself; `AnyProcess` does its work.
    jax.config.update("jax_enable_preemption_service", False)
    # Until the processes are connected, the main thread cannot handle signals in Python.
    handlers = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)
    }

    def abort() -> None:
        logging.error(
            "%s: not all processes have connected within %d s; "
            "check that all are started and can reach process 0",
            flag,
            START_SECONDS,
        )
        # The main thread is inside JAX and cannot be interrupted.
        os._exit(2)

    # The timer is a daemon, so that it does not delay the exit.
    deadline = threading.Timer(START_SECONDS, abort)
    deadline.daemon = True
    deadline.start()
    try:
        jax.distributed.initialize(
            *address,
            # In a Slurm step JAX would otherwise give this process one GPU of its host.
            cluster_detection_method=None if None in address else "deactivate",
            # At this deadline JAX aborts with a stack trace. Our own deadline is earlier.
            initialization_timeout=2 * START_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
        jax.devices()  # waits until all processes have connected
    except (ValueError, RuntimeError, IndexError) as error:
        # IndexError: the address has no port.
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{flag}: the processes cannot connect ({reason}); if JAX detects no cluster, "
            "give --coordinator=HOST:PORT, --num_processes and --process_id"
        ) from error
    finally:
        deadline.cancel()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    # Process 0 logs for all processes.
    if jax.process_index() > 0:
        logging.set_verbosity(logging.WARNING)
    logging.info(
        "%d processes with %d devices are connected.", jax.process_count(), jax.device_count()
    )


def _publish_failure(error: BaseException) -> None:
    """Publishes this process's failure, unless another process failed first."""
    if coordination.failures:
        return
    code = 1
    reason = f"{type(error).__name__} {error}".strip()
    if isinstance(error, UserError):
        code = 2
        reason = str(error)
    elif isinstance(error, KeyboardInterrupt):
        code = INTERRUPTED
    process = jax.process_index()
    reason = " ".join(reason.splitlines())
    message = f"process {process} on {socket.gethostname()} has stopped: {reason}"
    # The key exists if another process failed at the same time. The service has ended if process 0
    # has.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        coordination.client().key_value_set("failure", json.dumps([process, code, message]))


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
        # After a signal, all processes stop at the same step, and this one may still be saving.
        if code != INTERRUPTED and not done.wait(STOP_SECONDS):
            logging.error("%s", message)
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                client.shutdown()
            os._exit(code)
        return
