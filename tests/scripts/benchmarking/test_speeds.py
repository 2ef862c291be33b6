"""Comparisons of systems: turns, medians, ratios, and systems that fail."""

import argparse
import sys

import pytest

from scripts.benchmarking import measurement, speeds, tasks
from scripts.benchmarking.measurement import processor_kind
from scripts.benchmarking.processes import BenchmarkWorker, Contender, find_interpreter
from scripts.benchmarking.speeds import SpeedComparison
from scripts.benchmarking.worker import WARM_UPS
from transformer.support import processor
from transformer.support.errors import UserError

FAKE = "tests.scripts.benchmarking.fake_system:prepare"


def fake(letter: str, is_peer: bool = False, **options) -> Contender:
    return Contender(letter, FAKE, {"letter": letter, **options}, is_peer)


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch):
    monkeypatch.setattr(speeds, "REPETITIONS", 3)


def compare(trace, contenders) -> SpeedComparison:
    return speeds.compare("2 x 5", {"threads": 1, "trace": str(trace)}, contenders, sys.executable)


def test_the_machine_is_described_without_git(monkeypatch, tmp_path):
    assert measurement.describe_machine(2).rpartition("commit ")[2] != "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert measurement.describe_machine(2).endswith("2 threads, commit unknown")


def test_systems_take_turns_after_their_warm_up(tmp_path):
    comparison = compare(tmp_path / "trace", [fake("a"), fake("b"), fake("c", True)])
    assert (tmp_path / "trace").read_text() == "".join(
        letter * WARM_UPS for letter in "abc"
    ) + "aabbcc" * 3
    assert [(worker.contender.name, worker.tokens) for worker in comparison.workers] == [
        ("a", 10),
        ("b", 10),
        ("c", 10),
    ]
    assert all(
        len(worker.seconds) == 3 and min(worker.seconds) >= 0.001 for worker in comparison.workers
    )
    # cores that the process may use
    assert {worker.version for worker in comparison.workers} == {"Fake 1"}


def test_a_peer_that_fails_is_left_out_with_its_reason_in_one_line(tmp_path):
    missing = Contender("d", "tests.scripts.benchmarking.no_such_module:prepare", is_peer=True)
    peers = [fake("b", True, fails=True), fake("c", True, tokens=11), missing]
    peers.append(fake("e", True, dies_after=WARM_UPS * 4 + 4))
    comparison = compare(tmp_path / "trace", [fake("a"), *peers])
    assert [worker.contender.name for worker in comparison.workers] == ["a"]
    assert comparison.left_out["b"] == "ValueError: cannot be"
    assert comparison.left_out["c"] == "counts 11 tokens, not 10"
    assert (
        comparison.left_out["d"].startswith("exit code 1: ")
        and "No module named" in comparison.left_out["d"]
    )
    assert comparison.left_out["e"] == "exit code 3: libraries print to standard output"
    lines = speeds.tabulate([comparison], 1).splitlines()
    assert "Left out of 2 x 5: b (ValueError: cannot be)." in lines
    assert len([line for line in lines if line.startswith("Left out of")]) == 4
    assert all(
        not line or line.startswith(("| ", "Medians", "Versions", "Left out of")) for line in lines
    )


def test_a_system_of_ours_that_fails_ends_the_comparison(tmp_path):
    with pytest.raises(UserError, match="^a: ValueError: cannot be$"):
        compare(tmp_path / "trace", [fake("a", fails=True), fake("b", True)])


def test_a_dtype_that_the_processor_emulates_is_left_out_with_the_reason(tmp_path, monkeypatch):
    contenders = [fake("a", dtype="float32"), fake("b", dtype="bfloat16")]
    contenders += [
        fake("c", True, dtype="bfloat16"),
        fake("d", True, dtype="int8"),
        fake("e", dtype="int8"),
    ]
    for is_computed, names in ((False, "ad"), (True, "abcde")):
        for name in ("computes_bfloat16", "computes_int8"):
            monkeypatch.setattr(speeds, name, lambda is_computed=is_computed: is_computed)
        comparison = compare(tmp_path / "trace", contenders)
        assert [worker.contender.name for worker in comparison.workers] == list(names)
        assert comparison.left_out == {name: speeds.EMULATED for name in "bce" if name not in names}
        note = "Left out of 2 x 5: b; c; e (this processor has no instructions for its dtype)."
        assert (note in speeds.tabulate([comparison], 1).splitlines()) is not is_computed


def measured_worker(contender: Contender, version: str, *seconds: float) -> BenchmarkWorker:
    """Returns the worker of a process that has ended, with 100 tokens a repetition."""
    worker = object.__new__(BenchmarkWorker)
    worker.contender, worker.version, worker.seconds, worker.tokens = (
        contender,
        version,
        list(seconds),
        100,
    )
    return worker


def test_speeds_are_medians_and_relative_to_the_fastest_peer_of_the_batch():
    measured = [
        measured_worker(Contender("ours", FAKE), "JAX 1", 4.0, 1.0, 2.0),
        measured_worker(Contender("inexact", FAKE, is_exact=False), "JAX 1", 1.0, 1.0, 1.0),
        measured_worker(Contender("slow", FAKE, is_peer=True), "P 2", 5.0, 5.0, 9.0),
        measured_worker(Contender("fast", FAKE, is_peer=True), "P 2", 4.0, 4.0, 4.0),
    ]
    report = speeds.tabulate(
        [
            SpeedComparison("2 x 50", measured, {"e": "why", "f": speeds.EMULATED}),
            SpeedComparison("1 x 50", measured[:1], {}),
        ],
        2,
    )
    rows = [
        tuple(line.strip("|").split("|")) for line in report.splitlines() if line.startswith("| ")
    ]
    assert [tuple(map(str.strip, row)) for row in rows[2:]] == [
        ("2 x 50", "ours", "50", "25", "100", "2.00", ""),
        ("2 x 50", "inexact", "100", "100", "100", "4.00", ""),
        ("2 x 50", "slow", "20", "11", "20", "0.80", "2.50"),
        ("2 x 50", "fast", "25", "25", "25", "1.00", "2.00"),
        ("1 x 50", "ours", "50", "25", "100", "-", ""),
    ]
    assert "JAX 1, P 2" in report


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("avx512_bf16 amx_bf16", "amx"),
        ("avx2 avx512_bf16", "bfloat16"),
        ("bf16 i8mm", "bfloat16"),
        ("avx2", "no-bfloat16"),
    ],
)
def test_a_processor_is_of_the_kind_that_its_flags_say(flags, kind, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr(processor, "DESCRIPTION", tmp_path / "cpuinfo")
    processor.processor_features.cache_clear()
    assert processor_kind() == kind
    processor.processor_features.cache_clear()


@pytest.mark.parametrize("path", ["no/such/python", "tests"])
def test_an_interpreter_that_is_missing_is_refused(path):
    with pytest.raises(UserError, match=f"--peers={path}: no such interpreter"):
        find_interpreter(path)


@pytest.mark.parametrize(("given", "threads"), [(None, 3), (2, 2), (8, 3)])
def test_threads_are_cores_that_the_process_may_use(given, threads, monkeypatch):
    monkeypatch.setattr(tasks, "num_workers", lambda wanted: 3)
    monkeypatch.setattr(speeds, "compare", lambda batch, task, *_: task["threads"])
    monkeypatch.setattr(speeds, "tabulate", lambda comparisons, threads: [*comparisons, threads])
    arguments = argparse.Namespace(what="train", size="small", peers=None, threads=given)
    assert tasks.measure(arguments) == [threads, threads]
