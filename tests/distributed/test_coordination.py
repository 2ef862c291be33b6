"""Agreement among processes, with a fake of JAX's coordination service."""

import json
from collections import Counter

import jax
import pytest

from transformer.distributed import coordination
from transformer.support.errors import UserError

NOT_SET = "DEADLINE_EXCEEDED: no process has set the key"


class Client:
    """A coordination service that holds these values.

    It fails a test that reads a missing key too often.
    """

    def __init__(self, **values: str) -> None:
        self.values, self.error, self.reads = values, NOT_SET, 0
        self.counts = Counter()

    def key_value_set(self, key: str, value: str) -> None:
        self.values[key] = value

    def key_value_delete(self, key: str) -> None:
        del self.values[key]

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        if key in self.values:
            return self.values[key]
        self.reads += 1
        self.on_read(self.reads)
        assert self.reads < 5, "waits without end"
        raise jax.errors.JaxRuntimeError(self.error)

    def on_read(self, number: int) -> None:
        """Is called with the number of the read that finds no value."""

    def key_value_increment(self, key: str, amount: int) -> int:
        self.counts[key] += amount
        return self.counts[key]


@pytest.fixture
def client(monkeypatch) -> Client:
    """Makes this process number 1 of two, with an empty coordination service."""
    client = Client()
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("jax.process_index", lambda: 1)
    monkeypatch.setattr(coordination, "client", lambda: client)
    monkeypatch.setattr(coordination, "_calls", iter(range(10)))
    monkeypatch.setattr(coordination, "_gathered", [])
    return client


def test_one_process_waits_for_nothing():
    with coordination.process_zero_first("nothing", 0):
        pass
    coordination.require_same("nothing", lambda: pytest.fail("facts are collected for nothing"), 0)
    assert coordination.broadcast([1], 0) == [1]
    assert coordination.on_process_zero(max, 1, 2) == 2
    any_process = coordination.AnyProcess()
    assert [any_process(flag) for flag in (False, True, False)] == [False, True, False]


def test_waiting_for_another_process_has_a_deadline(client):
    with pytest.raises(
        UserError, match="^waited 0 s for process 0 to prepare the corpus; .*data.wait_seconds=0$"
    ):
        coordination.process_zero_first("the corpus", 0).__enter__()
    with pytest.raises(UserError, match="^waited 0 s for process 0;"):
        coordination.broadcast(None, 0)


def test_the_failure_of_another_process_ends_the_wait(client, monkeypatch):
    monkeypatch.setattr(coordination, "failures", ["process 0 has stopped: no data"])
    with pytest.raises(UserError, match="^process 0 has stopped: no data$"):
        coordination.await_value("key", 0, "process 0", 1000)


def test_progress_of_the_process_extends_the_wait(client, monkeypatch):
    def progress(number: int) -> None:
        if number == 3:
            client.values["key"] = "done"
        coordination.publish_progress()

    client.on_read = progress
    with pytest.raises(UserError, match="^waited 0 s for process 0;"):
        coordination.await_value("key", 0, "process 0", 0)  # the progress is of this process, 1
    client.reads = 0
    client.values.clear()
    assert coordination.await_value("key", 1, "process 1", 0) == "done"


def test_a_service_that_has_ended_is_an_error(client):
    client.error = "UNAVAILABLE: no connection"
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"):
        coordination.await_value("key", 0, "process 0", 1000)


def test_process_zero_broadcasts_its_value(client):
    client.values["0/value"] = json.dumps({"step": 3})
    assert coordination.broadcast({"step": 4}, 0) == {"step": 3}


def test_processes_gather_their_values_and_keep_only_the_last(client):
    for call, value in enumerate(("first", "second")):
        client.values[f"{call}/0"] = json.dumps(["of process 0", call])
        assert coordination.gather("say something", value, 0) == [["of process 0", call], value]
    assert [key for key in client.values if key.endswith("/1")] == ["1/1"]
    with pytest.raises(UserError, match="^waited 0 s for process 0 to say something;"):
        coordination.gather("say something", "third", 0)


def test_facts_that_differ_are_an_error_in_every_process(client):
    client.values["0/0"] = client.values["1/0"] = json.dumps({"a": 1, "b": 2})
    coordination.require_same("config", lambda: {"a": 1, "b": 2}, 0)
    message = (
        r"^process 1 differs from process 0 in b \(3, not 2\); start all .* same code, "
        r"config and data$"
    )
    with pytest.raises(UserError, match=message):
        coordination.require_same("config", lambda: {"a": 1, "b": 3}, 0)
    with pytest.raises(
        UserError, match="^waited 0 s for process 0 to reach the check of the data;"
    ):
        coordination.require_same("the data", dict, 0)


def test_differences_are_listed_up_to_five(client):
    facts = {f"key {number}": number for number in range(8)}
    client.values["0/0"] = json.dumps(facts)
    with pytest.raises(
        UserError, match=r"in key 0 \(-1, not 0\), key 1 \(-1, not 1\), .* and 3 more;"
    ) as caught:
        coordination.require_same("config", lambda: dict.fromkeys(facts, -1), 0)
    assert "key 5" not in str(caught.value)
    client.values["1/0"] = json.dumps({"a": 1})
    with pytest.raises(UserError, match=r"b \(2, not None\)"):
        coordination.require_same("config", lambda: {"a": 1, "b": 2}, 0)


def test_other_processes_do_not_call_the_function_and_get_a_context_instead(monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    with coordination.on_process_zero(json.loads, "no JSON"):
        pass
