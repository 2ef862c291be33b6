"""`scripts.benchmark`: its flags, and where its results go."""

from pathlib import Path

import pytest

from scripts import benchmark
from scripts.benchmarking import data, layers, measurement, tasks
from tests.checkpoints.saved_runs import refusal
from tests.checkpoints.workdirs import run
from tests.test_imports import imported_modules

MEASUREMENT = "| name | value |\n| --- | --- |\n| a | 1 |\n\nA note.\n"


@pytest.fixture
def measured(monkeypatch) -> list:
    """Replaces every measurement; the list gets the options that each was called with."""
    calls: list = []
    for module in (tasks, data, layers):
        monkeypatch.setattr(
            module, "measure", lambda options: calls.append(vars(options)) or MEASUREMENT
        )
    return calls


@pytest.mark.parametrize("name", benchmark.BENCHMARKS)
def test_every_benchmark_measures(name, measured):
    assert run(benchmark, name) == 0
    assert [options["what"] for options in measured] == [name]


def test_flags_reach_the_benchmark(measured):
    assert run(benchmark, "train", "--peers", "--threads=1") == 0
    assert run(benchmark, "data", "--pairs=3") == 0
    train, generated = measured
    assert (train["size"], train["peers"], train["threads"]) == (
        "base",
        ".venv-bench/bin/python",
        1,
    )
    assert generated["pairs"] == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["layers", "--peers"], "--peers=.venv-bench/bin/python: layers has no such flag"),
        (["train", "--pairs=7"], "--pairs=7: train has no such flag"),
        (["data", "--size=small"], "--size=small: data has no such flag"),
        (["train", "--size=big"], "--size"),
        (["train", "--threads=0"], "--threads: 0: must be at least 1"),
        (["decode", "--peers=no/python"], "--peers=no/python: no such interpreter"),
    ],
)
def test_a_flag_that_does_not_apply_is_refused(flags, message):
    assert message in refusal(lambda: benchmark.main(benchmark.make_parser().parse(flags)))


def test_results_are_a_table_and_go_between_the_marks_of_size_and_processor(
    measured, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(measurement, "processor_kind", lambda: "amx")
    assert run(benchmark, "layers") == 0
    assert capsys.readouterr().out == "| name | value |\n| --- | --- |\n| a | 1 |\n\nA note.\n"
    page, (begin, end) = (
        tmp_path / "page.md",
        (f"<!-- decode-small-amx: {mark} -->" for mark in ("begin", "end")),
    )
    page.write_text(f"before\n{begin}\n{end}\nafter\n")
    assert run(benchmark, "decode", "--size=small", f"--readme={page}") == 0
    assert f"| a | 1 |\n\nA note.\n{end}\nafter" in page.read_text()
    assert len(measured) == 2
    # without marks, nothing is measured
    assert run(benchmark, "train", f"--readme={page}") == 2 and len(measured) == 2


def test_the_flag_names_every_size():
    assert set(benchmark.SIZES) == set(tasks.SIZES)


@pytest.mark.parametrize("path", sorted(Path("scripts/benchmarking/peers").glob("*.py")), ids=str)
def test_peers_import_nothing_of_the_project_but_the_worker(path):
    project = ("transformer", "scripts", "configs", "jax", "flax")
    modules = {name for name in imported_modules(path) if name.split(".")[0] in project}
    assert all(
        name.startswith(("scripts.benchmarking.worker.", "scripts.benchmarking.peers."))
        for name in modules
    )
