"""Worker processes and streams that threads read: order, bounded memory, errors, and their end."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future

import numpy as np
import pytest

from transformer.support import workers
from transformer.support.errors import UserError


def loaded_modules(_):
    return [name for name in ("jax", "tensorflow", "tests.conftest") if name in sys.modules]


def square(number):
    if number == 7:
        raise UserError("seven")
    if number == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    print("not a result")
    return number * number


def process_id(_):
    return os.getpid()


def session_id(_):
    return os.getsid(0)


def test_results_are_in_order():
    assert list(workers.map_ordered(square, range(7), 3)) == [number**2 for number in range(7)]
    assert list(workers.map_ordered(square, range(2), 3)) == [0, 1]
    assert list(workers.map_ordered(square, [], 2)) == []


def test_errors_of_the_function_and_of_the_arguments_are_raised():
    with pytest.raises(UserError, match="seven"):
        list(workers.map_ordered(square, range(5, 8), 2))
    with pytest.raises(ZeroDivisionError):
        list(workers.map_ordered(square, (1 // number for number in (1, 1, 1, 0)), 2))


@pytest.mark.parametrize("arguments", [[8], [1, 8, 2, 3]])
def test_a_dead_worker_is_an_error_of_one_line(arguments):
    with pytest.raises(
        UserError, match=r"^data\.workers: one of [12] worker processes died; [^\n]*$"
    ):
        list(workers.map_ordered(square, arguments, 2))


def test_arguments_are_taken_only_as_workers_become_free():
    taken = []
    results = workers.map_ordered(square, (taken.append(number) or 1 for number in range(100)), 2)
    next(results)
    assert len(taken) == 3
    results.close()


def test_workers_import_only_what_the_work_needs():
    assert list(workers.map_ordered(loaded_modules, range(2), 2)) == [[], []]
    code = (
        "import sys, transformer.data.corpus.corpus; assert 'jax' not in sys.modules and "
        "'flax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_have_sessions_of_their_own_and_so_their_part_of_a_busy_machine():
    assert os.getsid(0) not in workers.map_ordered(session_id, range(4), 2)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_closing_the_results_ends_the_workers():
    results = workers.map_ordered(process_id, range(9), 2)
    processes = {next(results), next(results)}
    results.close()
    assert not any(map(is_running, processes))


@pytest.fixture
def open_pool():
    pools = []
    yield lambda *arguments: pools.append(workers.Pool(*arguments)) or pools[-1]
    for pool in pools:
        pool.close()


def slow_process_id(seconds):
    time.sleep(seconds)
    return os.getpid()


def in_thread(function, argument) -> Future:
    """Calls the function in a thread that does not delay the exit if it hangs."""
    future = Future()

    def run() -> None:
        try:
            future.set_result(function(argument))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_a_pool_has_at_most_as_many_processes_as_workers(open_pool):
    pool = open_pool(slow_process_id, 2)
    assert len({call.result(20) for call in [in_thread(pool, 0.1) for _ in range(6)]}) == 2


def test_an_exception_reaches_only_its_caller_and_the_worker_stays_usable(open_pool):
    pool = open_pool(square, 1)
    calls = {number: in_thread(pool, number) for number in (5, 7, 3, 6)}
    with pytest.raises(UserError, match="seven"):
        calls.pop(7).result(20)
    assert all(call.result(20) == number**2 for number, call in calls.items())


def test_a_dead_worker_of_a_pool_is_an_error_of_one_line(open_pool):
    pool = open_pool(square, 1)
    for argument in (8, 2):
        with pytest.raises(
            UserError, match=r"^data\.workers: one of [12] worker processes died; [^\n]*$"
        ):
            pool(argument)


def test_closing_a_pool_ends_its_processes_and_wakes_waiting_calls(open_pool):
    pool = open_pool(slow_process_id, 1)
    process = pool(0)
    calls = [in_thread(pool, 0.5) for _ in range(4)]
    time.sleep(0.3)  # one computes, and at most two are on their way to the process
    pool.close()
    assert not is_running(process)
    results = [call.exception(20) or call.result() for call in calls]
    assert sum(isinstance(result, CancelledError) for result in results) >= 1
    assert {result for result in results if isinstance(result, int)} == {process}


@pytest.mark.parametrize("used", [False, True])
def test_a_closed_pool_raises(open_pool, used):
    pool = open_pool(square, 2)
    if used:
        pool(2)
    for _ in range(2):
        pool.close()
        with pytest.raises(RuntimeError, match="shutdown"):
            in_thread(pool, 3).result(20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_worker_computes_on_after_a_termination(open_pool, number):
    """Slurm signals all processes of a job, and the run needs its next batches to save."""
    pool = open_pool(process_id, 1)
    os.kill(pool(0), number)
    assert pool(1) == pool(2)


PARENT = """
import os, signal, sys
from tests.support.test_workers import process_id
from transformer.support import workers
signal.signal(signal.SIGINT, signal.default_int_handler)
results = workers.map_ordered(process_id, range(9), 2)
print(next(results), next(results), flush=True)
signal.pause()
"""


@pytest.mark.first_case
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent(signal_):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    processes = [int(word) for word in parent.stdout.readline().split()]
    assert len(processes) == 2
    os.killpg(parent.pid, signal_)
    errors = parent.communicate(timeout=60)[1]
    assert "BrokenPipe" not in errors and errors.count("Traceback") == (signal_ == signal.SIGINT)
    deadline = time.monotonic() + 60
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_slow_stream_delays_no_other():
    slow_may_end = threading.Event()

    def slow():
        assert slow_may_end.wait(60)
        yield "slow"

    merged = workers.merge([slow(), iter(range(20))])
    assert [next(merged) for _ in range(20)] == list(range(20))
    slow_may_end.set()
    assert list(merged) == ["slow"]


def test_an_error_in_one_stream_ends_the_others():
    taken = []

    def endless():
        for number in iter(int, 1):
            time.sleep(0.001)
            taken.append(number)
            yield number

    def broken():
        yield "item"
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(workers.merge([endless(), broken(), endless()]))
    count = len(taken)
    time.sleep(0.05)
    assert len(taken) == count


def test_closing_ends_all_streams():
    threads = threading.active_count()
    merged = workers.merge([iter(np.arange(1000)) for _ in range(3)])
    next(merged)
    merged.close()
    assert threading.active_count() == threads
