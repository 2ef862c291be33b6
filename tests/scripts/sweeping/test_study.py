"""No trial is lost and none is done twice, however many processes claim trials, die or resume."""

from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial, TrialState

from scripts.sweeping.description import listed, product, search
from scripts.sweeping.results import summary
from scripts.sweeping.study import GRACE_PERIOD, SweepStudy, hide_password, storage_errors, values
from tests.scripts.sweeping.fakes import make_study, pass_time, states
from transformer.support.errors import UserError

GRID = listed(product({"x": [1, 2], "y": [0.5, 1.5]}), objective="nll", pruner=None)


def tpe(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=2)


SEARCH = search({"x": FloatDistribution(0, 1)}, trials=5, objective="nll", sampler=tpe, pruner=None)


@pytest.fixture
def open_study(storage, tmp_path, request):
    """Opens the test's study, as each process of a sweep does.

    All tests share one database server.
    """
    return lambda sweep: make_study(tmp_path, sweep, storage, request.node.name)


def claim(study: SweepStudy, count: int) -> list[int]:
    """Claims so many trials and returns their numbers."""
    return [study.claim().user_attrs["trial"] for _ in range(count)]


def complete(trial: Trial, value: float) -> None:
    trial.study.tell(trial, value)


def fail(trial: Trial) -> None:
    trial.set_user_attr("error", "out of memory")
    trial.study.tell(trial, state=TrialState.FAIL)


@pytest.mark.first_case
def test_trials_are_claimed_in_order_and_keep_their_values(open_study):
    study = open_study(GRID)
    for number, listed_values in enumerate(GRID.trials):
        trial = study.claim()
        assert (trial.user_attrs["trial"], trial.params) == (number, listed_values)
        complete(trial, 1.0 + number)
    assert study.claim() is None
    assert [trial.value for trial in study.trials()] == [1.0, 2.0, 3.0, 4.0]
    assert open_study(GRID).claim() is None  # opening it again enqueues nothing


@pytest.mark.first_case
def test_an_interrupted_trial_is_enqueued_and_a_failed_one_on_request(open_study):
    study = open_study(GRID)
    interrupted, failed = study.claim(), study.claim()
    study.requeue(interrupted)
    fail(failed)
    assert "0 running, 0 pruned, 1 failed" in summary(study.trials(), GRID)
    assert states(study) == ["waiting", "fail", "waiting", "waiting"]
    assert claim(study, 3) == [2, 3, 0]
    study.retry_failed()
    assert states(study)[1] == "waiting"
    again = study.claim()
    assert (again.user_attrs["trial"], again.params) == (1, GRID.trials[1])
    study.requeue(again)
    assert states(study)[1] == "waiting"


@pytest.mark.first_case
def test_a_trial_that_cannot_be_enqueued_again_is_not_recorded_as_failed(open_study, monkeypatch):
    study = open_study(GRID)
    trial = study.claim()

    def full(*arguments, **settings):
        raise optuna.exceptions.StorageInternalError("disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "add_trial", full)
        with pytest.raises(optuna.exceptions.StorageInternalError):
            study.requeue(trial)
    assert states(study)[0] == "running"


@pytest.mark.first_case
def test_another_process_takes_a_trial_without_heartbeats(open_study):
    dead, alive = open_study(GRID), open_study(GRID)
    trial = dead.claim()
    pass_time(alive, GRACE_PERIOD + 5)
    assert states(alive)[0] == "running"  # only a claim takes it
    assert claim(alive, 4) == [1, 2, 3, 0]
    with pytest.raises(UpdateFinishedTrialError):
        dead.update(trial, {})
    dead.requeue(trial)  # too late
    assert states(alive)[0] == "running"


@pytest.mark.first_case
def test_a_process_that_dies_while_it_claims_does_not_keep_the_trial(open_study, monkeypatch):
    def die(*arguments, **options):
        raise KeyboardInterrupt

    dead, alive = open_study(SEARCH), open_study(SEARCH)
    with monkeypatch.context() as patch:
        patch.setattr(Trial, "_suggest", die)
        with pytest.raises(KeyboardInterrupt):
            dead.claim()
    pass_time(alive, GRACE_PERIOD + 5)
    assert claim(alive, 5) == [1, 2, 3, 4, 0]


@pytest.mark.first_case
def test_heartbeats_keep_a_trial(open_study):
    study = open_study(listed([{"x": 1}], objective="nll", pruner=None))
    trial = study.claim()
    for _ in range(3):
        pass_time(study, GRACE_PERIOD - 20)
        study.update(trial, {})
        assert study.claim() is None
    assert states(study) == ["running"]


@pytest.mark.first_case
def test_workers_that_share_a_study_do_each_trial_once(open_study):
    sweep = listed(product({"x": list(range(12))}), objective="nll", pruner=None)

    def work(study: SweepStudy) -> list[int]:
        done = []
        while trial := study.claim():
            if len(done) % 3 == 1:
                study.requeue(trial)
                trial = study.claim()
            if trial is None:  # another worker has claimed the requeued trial, the last one
                break
            done.append(trial.user_attrs["trial"])
            complete(trial, 0.0)
        return done

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(work, [open_study(sweep) for _ in range(4)]))
    assert sorted(sum(done, [])) == list(range(12))
    assert states(open_study(sweep)) == ["complete"] * 12


def test_a_search_can_be_made_longer(tmp_path):
    shorter, longer = (
        make_study(tmp_path, SEARCH),
        make_study(tmp_path, SEARCH._replace(trials=({},) * 7)),
    )
    assert len(shorter.trials()) == 5 and len(longer.trials()) == 7
    assert claim(shorter, 7) == [0, 1, 2, 3, 4, 5, 6]


def test_listed_trials_that_another_process_has_added_are_refused(tmp_path):
    shorter, longer = (
        listed(product({"x": list(range(count))}), objective="nll", pruner=None) for count in (2, 3)
    )
    study = make_study(tmp_path, shorter)
    make_study(tmp_path, longer)
    assert claim(study, 2) == [0, 1]
    with pytest.raises(UserError, match="extended by trial 2; run the command of the longer sweep"):
        study.claim()
    assert states(make_study(tmp_path, longer)) == ["running", "running", "waiting"]


@pytest.mark.first_case
def test_the_values_of_a_search_do_not_depend_on_restarts(storage, tmp_path, request):
    runs = []
    for restarts in (False, True):
        study = make_study(tmp_path, SEARCH, storage, f"{request.node.name}-{restarts}")
        while trial := study.claim():
            complete(trial, (trial.params["x"] - 0.3) ** 2)
            if restarts:
                study = make_study(tmp_path, SEARCH, storage, study.name)
        runs.append([values(trial)["x"] for trial in study.trials()])
    assert len(set(runs[0])) == 5 and runs[0] == runs[1]


@pytest.mark.first_case
def test_an_interrupted_trial_of_a_search_keeps_its_values(tmp_path):
    study = make_study(tmp_path, SEARCH)
    interrupted = study.claim()
    study.requeue(interrupted)
    claimed = [study.claim() for _ in range(5)]
    assert (claimed[4].user_attrs["trial"], claimed[4].params) == (0, interrupted.params)


SAMPLERS = [
    lambda seed: optuna.samplers.RandomSampler(seed=seed),
    lambda seed: optuna.samplers.QMCSampler(seed=seed),
    lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=2),
]


@pytest.mark.first_case
@pytest.mark.parametrize("sampler", SAMPLERS, ids=["random", "QMC", "NSGA-II"])
def test_other_samplers_draw_values_too(tmp_path, sampler):
    space = {
        "x": FloatDistribution(0, 1),
        "y": IntDistribution(1, 1000),
        "z": CategoricalDistribution(["a", "b"]),
    }
    study = make_study(
        tmp_path, search(space, trials=6, objective="nll", sampler=sampler, pruner=None)
    )
    for trial in iter(study.claim, None):
        complete(trial, trial.params["x"])
    assert len({values(trial)["x"] for trial in study.trials()}) > 3  # NSGA-II may draw one again


def test_a_pruner_compares_a_trial_with_the_others(tmp_path):
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    study = make_study(tmp_path, listed(product({"x": [1, 2]}), objective="nll", pruner=pruner))
    good, bad = study.claim(), study.claim()
    assert study.update(good, {5: 3.0, 10: 1.0}) is False
    complete(good, 1.0)
    assert study.update(bad, {5: 2.0}) is False
    assert study.update(bad, {5: 2.0, 10: 2.0}) is True
    assert study.update(bad, {5: 2.0, 10: 2.0}) is False  # nothing new


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "must be a URL"),
        ("postgresql://someone@host:port/db", "must be a URL"),
        ("nosuch://host/db", "nosuch"),
        ("sqlite:////no/such/{folder}/study.db", "folder.*unable to open"),
        (
            "postgresql://someone:secret@127.0.0.1:1/db",
            "postgresql://someone:\\*\\*\\*@127.0.0.1:1/db.*refused",
        ),
    ],
)
def test_an_unreachable_storage_is_named_without_its_password(tmp_path, url, message):
    with pytest.raises(UserError, match=message) as raised, storage_errors(url):
        hide_password(url)
        make_study(tmp_path, GRID, url)
    assert "secret" not in str(raised.value)
