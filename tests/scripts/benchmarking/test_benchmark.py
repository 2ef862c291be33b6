"""`scripts.benchmark`: its flags, and where its results go."""

import json
import pkgutil
from pathlib import Path

import pytest

from scripts import benchmark
from scripts.benchmarking import tasks
from scripts.benchmarking.measurement import Measurement
from tests.checkpoints.saved_runs import refusal
from tests.checkpoints.workdirs import run
from tests.test_imports import imported_modules

MEASUREMENT = Measurement([("name", "value"), ("a", "1")], ["A note."], {"a": 1}, {"small, 1 x 2": "1.50 (P)"}, "amx")


@pytest.fixture
def measured(monkeypatch) -> list:
    """Replaces every measurement; the list gets the options that each was called with."""
    calls: list = []
    monkeypatch.setattr(
        pkgutil, "resolve_name", lambda name: lambda options: calls.append(vars(options)) or MEASUREMENT
    )
    return calls


@pytest.mark.parametrize("name", benchmark.BENCHMARKS)
def test_every_benchmark_exists(name):
    assert callable(pkgutil.resolve_name(benchmark.BENCHMARKS[name][0]))


def test_defaults_are_those_of_the_benchmark(measured):
    assert run(benchmark, "train", "--peers", "--threads=1") == 0
    assert run(benchmark, "startup") == 0
    peers = {"peers": ".venv-bench/bin/python"}
    assert measured == [{"size": "base", **peers, "threads": 1, "repetitions": 9}, {"repetitions": 5}]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["startup", "--peers"], "--peers=.venv-bench/bin/python: startup has no such flag; it has --repetitions"),
        (["train", "--pairs=7"], "--pairs=7: train has no such flag; it has --size, --peers, --threads, --repetitions"),
        (["data", "--size=base"], "--size=base: data has no such flag; it has --pairs, --tokens, --folder"),
        (["layers", "--repetitions=0"], "--repetitions=0: must be at least 1"),
        (["decode", "--format=json", "--readme=README.md"], "--readme=README.md: takes the table"),
        (["startup", "--summary=README.md"], "--summary=README.md: needs train or decode with --peers"),
        (["train", "--summary=README.md"], "--summary=README.md: needs train or decode with --peers"),
        (["train", "--size=big"], "--size"),
        (["decode", "--peers=no/python"], "--peers=no/python: no such interpreter"),
    ],
)
def test_a_flag_that_does_not_apply_is_refused(flags, message):
    assert message in refusal(lambda: benchmark.main(benchmark.make_parser().parse(flags)))


def test_results_are_a_table_or_json_and_go_between_the_marks_of_size_and_processor(measured, capsys, tmp_path):
    assert run(benchmark, "layers") == 0
    assert capsys.readouterr().out == "| name | value |\n| --- | --- |\n| a | 1 |\n\nA note.\n"
    assert run(benchmark, "layers", "--format=json") == 0
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    page, (begin, end) = tmp_path / "page.md", (f"<!-- decode-small-amx: {mark} -->" for mark in ("begin", "end"))
    page.write_text(f"before\n{begin}\n{end}\nafter\n")
    assert run(benchmark, "decode", "--size=small", f"--readme={page}") == 0
    assert f"| a | 1 |\n\nA note.\n{end}\nafter" in page.read_text()


def test_a_summary_sets_the_cells_of_its_batches_in_the_row_of_the_processor(measured, tmp_path):
    page, flags = tmp_path / "page.md", ("decode", "--size=small", "--peers", f"--summary={tmp_path}/page.md")
    header = "| two cores | decode small, 1 x 2 | train |\n| --- | --- | --- |\n"
    table = f"<!-- speed: begin -->\n{header}{{}}<!-- speed: end -->\n"
    page.write_text(table.format("| no-bfloat16 | 1 | 2 |\n| amx |  | 3 |\n"))
    assert run(benchmark, *flags) == 0
    assert page.read_text() == table.format("| no-bfloat16 | 1 | 2 |\n| amx | 1.50 (P) | 3 |\n")
    page.write_text(table.format("| bfloat16 | 1 | 2 |\n"))
    assert "has no row 'amx'" in refusal(lambda: benchmark.main(benchmark.make_parser().parse(flags)))
    page.write_text(page.read_text().replace("1 x 2", "1 x 3"))
    assert "has no column 'decode small, 1 x 2'" in refusal(
        lambda: benchmark.main(benchmark.make_parser().parse(flags))
    )


def test_the_flag_names_every_size():
    assert set(benchmark.SIZES) == set(tasks.SIZES)


@pytest.mark.parametrize("path", sorted(Path("scripts/benchmarking/peers").glob("*.py")), ids=str)
def test_peers_import_nothing_of_the_project_but_the_worker(path):
    project = ("transformer", "scripts", "configs", "jax", "flax")
    modules = {name for name in imported_modules(path) if name.split(".")[0] in project}
    assert all(name.startswith(("scripts.benchmarking.worker.", "scripts.benchmarking.peers.")) for name in modules)
