"""No trial is lost and none is done twice, whoever claims, dies or comes back."""

import collections
import contextlib
import dataclasses
import multiprocessing
import threading
import time

import optuna
import pytest
import sqlalchemy

from scripts.sweeping.description import choices, integers, listed, product, search, uniform
from scripts.sweeping.ledger import Ledger
from scripts.sweeping.storage import shown
from transformer.errors import UserError

GRID = listed(product({"x": [1, 2], "y": [0.5, 1.5]}), objective="nll", pruner=None)


def tpe(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=2)


SEARCH = search({"x": uniform(0, 1)}, trials=5, objective="nll", sampler=tpe, pruner=None)


@pytest.fixture
def name(request):
    """Of the study: one server serves all tests."""
    return request.node.name


@pytest.fixture
def opened(storage, name):
    """Opens ledgers on the test's study, each as another process would, and closes them all."""
    with contextlib.ExitStack() as stack:

        def open_(sweep, grace=60) -> Ledger:
            ledger = stack.enter_context(Ledger(storage, name, sweep, grace))
            ledger.mend()
            return ledger

        yield open_


@pytest.fixture
def ledger(opened):
    return opened(GRID)


def states(ledger: Ledger) -> list[str]:
    return [standing.state for standing in ledger.standings()]


def test_a_sweep_is_gone_through_in_order(ledger):
    for trial, values in enumerate(GRID.trials):
        attempt = ledger.claim()
        assert (attempt.trial, attempt.values) == (trial, values)
        ledger.complete(attempt, 1.0 + trial)
    assert ledger.claim() is None
    assert states(ledger) == ["complete"] * 4
    assert [standing.value for standing in ledger.standings()] == [1.0, 2.0, 3.0, 4.0]
    ledger.mend()
    assert ledger.claim() is None


def test_what_was_released_is_gone_on_with_and_what_failed_is_not(ledger):
    first, second = ledger.claim(), ledger.claim()
    ledger.release(first)
    ledger.fail(second, "no such file")
    assert states(ledger) == ["missing", "failed", "waiting", "waiting"]
    ledger.mend()
    assert states(ledger) == ["waiting", "failed", "waiting", "waiting"]
    assert ledger.standings()[1].error == "no such file"
    assert [ledger.claim().trial for _ in range(3)] == [0, 2, 3]
    assert ledger.retry_failed() == 1
    assert ledger.claim().trial == 1


def test_a_silent_process_is_taken_over(opened):
    dead = opened(GRID, grace=1)
    attempt = dead.claim()
    alive = opened(GRID, grace=1)
    assert states(alive)[0] == "running"
    time.sleep(3)  # the database's clock shows whole seconds
    alive.mend()
    assert states(alive)[0] == "running"
    alive.give_up_silent()
    alive.mend()
    assert states(alive)[0] == "waiting"
    assert dead.heartbeat(attempt, 5.0) is False
    dead.complete(attempt, 7.0)  # too late
    assert states(alive)[0] == "waiting"


def test_heartbeats_keep_others_away(opened):
    ledger = opened(GRID, grace=1)
    attempt = ledger.claim()
    for _ in range(4):
        time.sleep(0.7)
        assert ledger.heartbeat(attempt, 5.0) is True
        ledger.give_up_silent()
    assert states(ledger)[0] == "running"


def test_a_trial_that_is_added_twice_is_done_once(ledger, opened):
    other = opened(GRID)
    ledger.release(ledger.claim())
    assert states(other)[0] == states(ledger)[0] == "missing"
    # As two processes do that look at the same moment: each adds a row without having seen the other's.
    earlier = {"trial": 0, "earlier": 1}
    for each in (ledger, other):
        each.study.enqueue_trial(GRID.trials[0], user_attrs=earlier)
    assert [attempt.trial for attempt in iter(ledger.claim, None)] == [0, 1, 2, 3]
    assert states(other) == ["running"] * 4


def test_a_row_that_was_added_since_the_look_is_seen(ledger, opened, monkeypatch):
    other = opened(GRID)
    ledger.release(ledger.claim())
    look = ledger.standings

    def look_and_be_overtaken():
        standings = look()
        other.mend()
        return standings

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "standings", look_and_be_overtaken)
        ledger.mend()
    assert [attempt.trial for attempt in iter(ledger.claim, None)] == [0, 1, 2, 3]


def test_a_second_row_is_not_claimed_once_the_first_has_failed(ledger):
    ledger.study.enqueue_trial(GRID.trials[0], user_attrs={"trial": 0, "earlier": 0})
    ledger.fail(ledger.claim(), "out of memory")
    assert [attempt.trial for attempt in iter(ledger.claim, None)] == [1, 2, 3]
    assert states(ledger)[0] == "failed"


def test_no_other_process_comes_between_the_look_and_the_claim(storage, opened):
    """The other one claims, in another thread, as soon as this one has read the state of the row."""
    ours, theirs = opened(GRID), opened(GRID)
    thread, claimed = threading.Thread(target=lambda: claimed.append(theirs.claim())), []

    @sqlalchemy.event.listens_for(ours.storage.engine, "after_cursor_execute")
    def look(connection, cursor, statement, *_) -> None:
        if (
            "trials.state" in statement
            and "trial_id = " in statement.replace("%(trial_id_1)s", "")
            and not thread.ident
        ):
            thread.start()
            thread.join(timeout=1)  # it cannot end before this transaction has

    mine = ours.claim()
    thread.join()
    theirs.storage.remove_session()
    assert thread.ident
    assert sorted([mine.trial, claimed[0].trial]) == [0, 1]


def test_the_seconds_of_a_trial_are_those_at_work(ledger):
    first = ledger.claim()
    ledger.heartbeat(first, 10.0)
    ledger.release(first)
    ledger.mend()
    again = next(attempt for attempt in iter(ledger.claim, None) if attempt.trial == 0)
    ledger.heartbeat(again, 2.5)
    ledger.complete(again, 1.0)
    assert ledger.standings()[0].seconds == 12.5


def test_a_search_that_is_made_longer_elsewhere_goes_on_here(opened):
    shorter, longer = opened(SEARCH), opened(dataclasses.replace(SEARCH, trials=({},) * 7))
    assert len(shorter.standings()) == 5 and len(longer.standings()) == 7
    assert len(list(iter(shorter.claim, None))) == 5
    assert [attempt.trial for attempt in iter(longer.claim, None)] == [5, 6]


def test_a_taken_over_trial_of_a_search_keeps_its_values(opened):
    ledger = opened(SEARCH)
    first = ledger.claim()
    ledger.release(first)
    ledger.mend()
    again = [attempt for attempt in iter(ledger.claim, None) if attempt.trial == 0]
    assert [attempt.values for attempt in again] == [first.values]


def test_a_process_that_dies_over_its_choice_leaves_what_was_chosen_before(opened):
    space = {"x": uniform(0, 1), "y": uniform(0, 1)}
    sweep = search(space, trials=1, objective="nll", sampler=tpe, pruner=None)
    ledger = opened(sweep)
    whole = ledger.claim()
    ledger.release(whole)
    ledger.mend()
    (row,) = ledger.study.get_trials(states=(optuna.trial.TrialState.WAITING,))
    row_id = ledger.storage.get_trial_id_from_study_id_trial_number(ledger.study_id, row.number)
    ledger.storage.set_trial_state_values(row_id, optuna.trial.TrialState.RUNNING)
    half = optuna.trial.Trial(ledger.study, row_id)
    half.suggest_float("x", 0, 1)
    ledger.study.tell(half, state=optuna.trial.TrialState.FAIL)
    ledger.mend()
    assert ledger.claim().values == whole.values


def run_search(storage: str, name: str, interrupted: bool) -> list[dict]:
    """The values of all trials, whose objective is (x - 0.3)^2."""
    while True:
        with Ledger(storage, name, SEARCH) as ledger:
            ledger.mend()
            attempt = ledger.claim()
            if attempt is None:
                return [standing.values for standing in ledger.standings()]
            if interrupted and attempt.row.number == 3:
                ledger.release(attempt)
            else:
                ledger.complete(attempt, (attempt.values["x"] - 0.3) ** 2)


def test_what_a_search_tries_does_not_depend_on_interruptions(storage, name):
    whole, cut = run_search(storage, f"{name}-whole", False), run_search(storage, f"{name}-cut", True)
    assert len({values["x"] for values in whole}) == 5
    assert whole == cut


SAMPLERS = [
    lambda seed: optuna.samplers.RandomSampler(seed=seed),
    lambda seed: optuna.samplers.QMCSampler(seed=seed),
    lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=2),
]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("sampler", SAMPLERS, ids=["random", "QMC", "NSGA-II"])
def test_other_samplers_choose_too(opened, sampler):
    space = {"x": uniform(0, 1), "y": integers(1, 1000, step=1), "z": choices("a", "b")}
    ledger = opened(search(space, trials=6, objective="nll", sampler=sampler, pruner=None))
    for attempt in iter(ledger.claim, None):
        ledger.complete(attempt, attempt.values["x"])
    assert len({standing.values["x"] for standing in ledger.standings()}) > 3  # NSGA-II may choose one again


def test_a_pruner_compares_with_the_other_trials(opened):
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    sweep = listed(product({"x": [1, 2]}), objective="nll", pruner=pruner)
    ledger = opened(sweep)
    good, bad = ledger.claim(), ledger.claim()
    ledger.report(good, 10, 1.0)
    ledger.complete(good, 1.0)
    ledger.report(bad, 10, 2.0)
    assert ledger.is_hopeless(bad)
    ledger.prune(bad)
    assert states(ledger) == ["complete", "pruned"]
    assert ledger.standings()[1].value == 2.0


MANY = listed(product({"x": list(range(20))}), objective="nll", pruner=None)


def work(storage: str, name: str, results) -> None:
    """Claims until nothing is left; lets go of every fifth."""
    done, idle = 0, 0
    with Ledger(storage, name, MANY) as ledger:
        while idle < 3:
            ledger.mend()
            if (attempt := ledger.claim()) is None:
                idle += 1
                time.sleep(0.1)
                continue
            done, idle = done + 1, 0
            if done % 5 == 0:
                ledger.release(attempt)
            else:
                results.put(attempt.trial)
                ledger.complete(attempt, 0.0)


def test_processes_that_share_a_sweep_do_each_trial_once(storage, name):
    context = multiprocessing.get_context("spawn")
    with Ledger(storage, name, MANY):
        pass  # in use, the folder's lock sees to it that one process makes the tables
    results = context.Queue()
    workers = [context.Process(target=work, args=(storage, name, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert worker.exitcode == 0
    done = collections.Counter(results.get(timeout=5) for _ in range(20))
    assert results.empty()
    assert done == dict.fromkeys(range(20), 1)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "must be a URL"),
        ("postgresql://someone@host:port/db", "must be a URL"),
        ("sqlite:////no/such/{folder}/study.db", "folder.*unable to open"),
        ("nosuch://host/db", "nosuch"),
        ("sqlite:////no/such/folder/study.db", "unable to open database file"),
        ("postgresql://someone:secret@127.0.0.1:1/db", "postgresql://someone:\\*\\*\\*@127.0.0.1:1/db.*refused"),
    ],
)
def test_an_unreachable_storage_is_named_without_its_password(url, message):
    with pytest.raises(UserError, match=message) as raised:
        shown(url)
        Ledger(url, "study", GRID)
    assert "secret" not in str(raised.value)
