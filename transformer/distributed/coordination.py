"""Several processes as one run: what each does alone, what they do in turn, and what they make sure to agree on.

They talk through JAX's coordination service rather than through devices, so that every wait says what for and has an
end. With one process nothing here costs anything: what is to be agreed on is agreed.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import distributed as jax_distributed  # the service's keys and values have no public name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.errors import UserError
from transformer.locks import poll_until

failures: list[str] = []  # of other processes, as far as this one has heard
_calls = itertools.count()  # every process makes the same calls in the same order


def on_process_zero(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function in process 0 alone; the others get a stand-in for its result, which does nothing."""
    return function(*arguments) if jax.process_index() == 0 else _Nothing()


@contextlib.contextmanager
def process_zero_first(what: str, seconds: int) -> Iterator[None]:
    """The block is run by process 0, and when that is done by the others, who find what it has made.

    Where they share no file system each makes it for itself. Raises UserError after so many seconds of waiting.
    """
    key = f"{next(_calls)}/done"
    if jax.process_index() > 0:
        await_value(key, f"process 0 to prepare {what}", seconds)
    yield
    if jax.process_index() == 0:
        publish(key, "done")


def broadcast(value: Any, seconds: int) -> Any:
    """Process 0's value, of JSON's types, in all processes."""
    key = f"{next(_calls)}/value"
    if jax.process_count() == 1:
        return value
    if jax.process_index() == 0:
        publish(key, json.dumps(value))
    return json.loads(await_value(key, "process 0", seconds))


def require_same(what: str, facts: Callable[[], Mapping[str, Any]], seconds: int) -> None:
    """Raises the same UserError in all processes, naming what differs, unless they all have the same facts.

    `facts` gives this process's, and is not called where there is no other: gathering them may take its time.
    """
    call = next(_calls)
    if jax.process_count() == 1:
        return
    publish(f"{call}/{jax.process_index()}", json.dumps(facts()))
    if jax.process_index() == 0:
        waiting = [f"process {i} to get as far as the check of {what}" for i in range(jax.process_count())]
        everyone = [json.loads(await_value(f"{call}/{i}", each, seconds)) for i, each in enumerate(waiting)]
        publish(f"{call}/verdict", json.dumps(difference(everyone)))
    # Process 0 itself may be waiting for another.
    verdict = json.loads(await_value(f"{call}/verdict", f"process 0 to compare {what}", 2 * seconds))
    if verdict is not None:
        raise UserError(verdict)


class Agreement:
    """Whether any process has raised its flag: `agreed(flag)`, once a step in all of them, is the same in all of them.

    With several processes it says what was so a step ago. That is known by then, so that no step waits for it.
    """

    def __init__(self) -> None:
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        mesh = Mesh(np.reshape(devices, (jax.process_count(), -1)), ("process", "device"))
        self._one_each = NamedSharding(mesh, P("process"))
        self._any = jax.jit(lambda flags: flags.any(), out_shardings=NamedSharding(mesh, P()))
        self._before: jax.Array | None = None

    def __call__(self, flag: bool) -> bool:
        if jax.process_count() == 1:
            return flag
        flags = jax.make_array_from_callback((jax.process_count(),), self._one_each, lambda _: np.array([flag]))
        before, self._before = self._before, self._any(flags)
        return before is not None and bool(before)


def publish(key: str, value: str) -> None:
    """Makes a value known to all processes, once."""
    if jax.process_count() > 1:
        jax_distributed.global_state.client.key_value_set(key, value)


def await_value(key: str, what: str, seconds: int) -> str:
    """The value of the key once another process has set it. UserError after so many seconds, or if one has failed."""
    client = jax_distributed.global_state.client
    for _ in poll_until(what, "see its log", seconds):
        try:
            return client.blocking_key_value_get(key, 1000)  # milliseconds: between them signals are handled
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if failures:
            raise UserError(failures[0])


def is_collective_failure(error: BaseException | None) -> bool:
    """Whether a collective operation has failed, as it does on hosts without accelerators when a process dies."""
    return "Gloo" in str(error)  # of several types, depending on who was waiting for the result


class _Nothing:
    """Takes any call, and the place of a context manager, and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def difference(everyone: Sequence[dict[str, Any]]) -> str | None:
    """What the first process that is unlike process 0 has otherwise."""
    first = everyone[0]
    for index, facts in enumerate(everyone):
        names = [name for name in first | facts if first.get(name) != facts.get(name)]
        if names:
            values = [f"{name} ({facts.get(name)}, not {first.get(name)})" for name in names[:5]]
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            return f"process {index} differs from process 0 in {', '.join(values)}{more}; all must be started alike"
    return None
