"""Coordination of the processes of a run: work of process 0, broadcasts, and comparisons.

Values pass through JAX's coordination service. Collectives on devices, as in
`jax.experimental.multihost_utils`, have no deadline, and block signals while they wait. With one
process, no function here communicates.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax._src import distributed as jax_distributed  # its key-value store has no public API
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.support.errors import UserError, first_of
from transformer.support.locks import poll_until

# Messages about the failures of other processes, which `launch` receives.
failures: list[str] = []
# Numbers for the keys of values: all processes make the same calls in the same order.
_calls = itertools.count()
# At most one key: the one that this process published in the last `gather`.
_gathered: list[str] = []


def on_process_zero(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function in process 0. The other processes get a context that does nothing."""
    return function(*arguments) if jax.process_index() == 0 else contextlib.nullcontext()


@contextlib.contextmanager
def process_zero_first(what: str, seconds: int) -> Iterator[None]:
    """Runs the block in process 0 first.

    Raises UserError in other processes if process 0 makes no progress for `seconds`.
    """
    if jax.process_index() > 0:
        broadcast(None, seconds, f"process 0 to prepare {what}")
    yield
    if jax.process_index() == 0:
        broadcast(None, seconds)


def broadcast(value: Any, seconds: int, awaited: str = "process 0") -> Any:
    """Returns process 0's value, a JSON value, in all processes. `awaited` is for messages."""
    if jax.process_count() == 1:
        return value
    # The counter gives all processes the same key.
    key = f"{next(_calls)}/value"
    if jax.process_index() == 0:
        client().key_value_set(key, json.dumps(value))
    return json.loads(await_value(key, 0, awaited, seconds))


def require_same(what: str, facts: Callable[[], Mapping[str, Any]], seconds: int) -> None:
    """Raises UserError if `facts()` differs between the processes.

    The message names the first process that differs from process 0.
    """
    if jax.process_count() == 1:
        return
    # Each process compares all values, so that all raise the same error.
    expected, *rest = gather(f"reach the check of {what}", facts(), seconds)
    for index, values in enumerate(rest, start=1):
        differing = [
            f"{name} ({values.get(name)}, not {expected.get(name)})"
            for name in expected | values
            if values.get(name) != expected.get(name)
        ]
        if differing:
            raise UserError(
                f"process {index} differs from process 0 in {first_of(differing, 5, ', ')}; "
                "start all processes with the same code, config and data"
            )


def gather(purpose: str, value: Any, seconds: int) -> list[Any]:
    """Returns the JSON values of all processes in their order.

    Messages say that a process is awaited "to `purpose`".
    """
    if jax.process_count() == 1:
        return [value]
    # Each process publishes its value under its own key, and reads all keys.
    call = next(_calls)
    keys = [f"{call}/{i}" for i in range(jax.process_count())]
    client().key_value_set(keys[jax.process_index()], json.dumps(value))
    values = [
        json.loads(await_value(key, i, f"process {i} to {purpose}", seconds))
        for i, key in enumerate(keys)
    ]
    # All processes have published a new value, so all have received the previous one.
    while _gathered:
        client().key_value_delete(_gathered.pop())
    _gathered.append(keys[jax.process_index()])
    return values


class AnyProcess:
    """Logical OR of a flag over all processes, called once per step in each.

    With several processes, it returns the result of the previous call, so that no step waits for a
    collective.
    """

    def __init__(self) -> None:
        # An array with an element for each device, and its replicated logical OR.
        mesh = Mesh(np.array(jax.devices()), ("device",), axis_types=(AxisType.Auto,))
        self._one_per_device = NamedSharding(mesh, P("device"))
        self._any = jax.jit(lambda flags: flags.any(), out_shardings=NamedSharding(mesh, P()))
        self._previous: jax.Array | bool = False

    def __call__(self, flag: bool) -> bool:
        if jax.process_count() == 1:
            return flag
        # Each process contributes the flag of its devices. The reduction runs asynchronously.
        flags = jax.make_array_from_callback(
            (jax.device_count(),), self._one_per_device, lambda _: np.array([flag])
        )
        previous = self._previous
        self._previous = self._any(flags)
        return bool(previous)


def client() -> Any:
    """Returns the client of JAX's coordination service."""
    return jax_distributed.global_state.client


def publish_progress() -> None:
    """Tells the processes that wait for this one that it makes progress."""
    # The service may have ended; then no process waits.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        client().key_value_increment(f"progress/{jax.process_index()}", 1)


def await_value(key: str, process: int, what: str, seconds: int) -> str:
    """Returns the value of a key.

    Raises UserError if its process makes no progress for `seconds`, or another process fails.
    """
    advice = f"see its log, or raise config.data.wait_seconds={seconds}"
    for _ in poll_until(
        what, advice, seconds, lambda: client().key_value_increment(f"progress/{process}", 0)
    ):
        try:
            # Python handles signals between two calls of 1000 milliseconds.
            return client().blocking_key_value_get(key, 1000)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if failures:
            break
    # `poll_until` does not end by itself, so another process has failed.
    raise UserError(failures[0])


def is_collective_failure(error: BaseException | None) -> bool:
    """True if a collective failed because a process died.

    Only CPUs report this. On other devices JAX aborts.
    """
    # The type is JaxRuntimeError or ValueError, depending on where the error is raised.
    return "Gloo" in str(error)
