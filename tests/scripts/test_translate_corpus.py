"""The command `scripts.translate_corpus`: the same bytes from any number of processes, and no line
lost.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyarrow import parquet

from scripts import translate_corpus
from scripts.corpora import translator
from scripts.corpora.shards import read_shards
from tests.checkpoints.workdirs import SOURCES, make_workdir, run
from tests.conftest import REPOSITORY

RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: requirements/ray.txt"
)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    return make_workdir(tmp_path_factory.mktemp("runs") / "reverse")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("source") / "mono.in"
    path.write_text("".join(f"{line}\n" for line in [*SOURCES, "", *SOURCES[::-1]] * 3))
    return path


@pytest.fixture
def flags(workdir, source, tmp_path) -> list[str]:
    return [f"--workdir={workdir}", f"--source={source}", "--shards=6"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def whole(flags, tmp_path) -> dict[str, bytes]:
    """Returns the files that one process writes."""
    assert run(translate_corpus, *flags, f"--output={tmp_path / 'whole'}", "--shard=1/1") == 0
    return contents(tmp_path / "whole")


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["text", "parquet"])
def test_parts_write_the_bytes_of_one_process(flags, tmp_path, kind, capsys):
    flags.append(f"--format={kind}")
    assert run(translate_corpus, *flags, f"--output={tmp_path / 'whole'}", "--shard=1/1") == 0
    totals = json.loads(capsys.readouterr().out)
    assert (totals["shards"], totals["lines"], totals["untranslated"]) == (6, 33, 0)
    for part in ("2/3", "3/3", "1/3"):
        assert (
            run(translate_corpus, *flags, f"--output={tmp_path / 'parts'}", f"--shard={part}") == 0
        )
        assert json.loads(capsys.readouterr().out)["shards"] == 2
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_translations_are_those_of_the_command_translate(whole, workdir, source, tmp_path):
    command = [sys.executable, "-m", "transformer.translate", f"--workdir={workdir}"]
    with source.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, cwd=REPOSITORY, check=True)
    tables = [
        parquet.read_table(tmp_path / "whole" / name)
        for name in sorted(whole)
        if name.startswith("shard")
    ]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["line"] for row in rows] == list(range(1, 34))
    assert [row["source"] for row in rows] == source.read_text().splitlines()
    assert [row["translation"] for row in rows] == done.stdout.decode().splitlines()
    assert {row["file"] for row in rows} == {str(source)} and {row["error"] for row in rows} == {
        None
    }
    request = json.loads(tables[0].schema.metadata[b"request"])
    assert request["model"]["steps"] == [[20]] and request["model"]["decoding"]["beam_size"] == 2


def test_only_missing_shards_are_translated_again(whole, flags, tmp_path, capsys):
    output = tmp_path / "whole"
    lost = output / "shard-000003-of-000006.parquet"
    lost.unlink()
    kept = {path: path.stat().st_mtime_ns for path in output.iterdir()}
    capsys.readouterr()
    assert run(translate_corpus, *flags, f"--output={output}", "--shard=1/1") == 0
    assert json.loads(capsys.readouterr().out)["shards"] == 1
    assert contents(output) == whole
    assert all(path.stat().st_mtime_ns == changed for path, changed in kept.items())


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--checkpoint=30", "its shards were made with model.parameters="),
        ("--decoding.beam_size=1", "its shards were made with model.decoding.beam_size=2;"),
        ("--format=text", "its shards were made with format=parquet;"),
    ],
)
def test_shards_of_other_settings_are_not_mixed(whole, flags, tmp_path, change, message, capsys):
    assert (
        run(translate_corpus, *flags, f"--output={tmp_path / 'whole'}", "--shard=1/1", change) == 2
    )
    assert message in capsys.readouterr().err
    assert contents(tmp_path / "whole") == whole


def test_more_translations_than_the_search_has_are_refused_before_there_is_a_plan(
    flags, tmp_path, capsys
):
    assert (
        run(translate_corpus, *flags, f"--output={tmp_path / 'new'}", "--shard=1/1", "--n_best=3")
        == 2
    )
    assert "n_best=3: must be at most decoding.beam_size=2" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_another_model_of_the_same_step_is_refused(whole, flags, tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    other = make_workdir(tmp_path / "runs" / "other", seed=1)
    assert (
        run(
            translate_corpus,
            f"--workdir={other}",
            *flags[1:],
            f"--output={tmp_path / 'whole'}",
            "--shard=1/1",
        )
        == 2
    )
    assert "its shards were made with model.parameters=" in capsys.readouterr().err


def test_a_line_that_cannot_be_translated_is_reported(workdir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(translator, "CHUNK_LINES", 4)
    source, output = tmp_path / "bad", tmp_path / "out"
    source.write_bytes(b"1 2 3\n4 x\n\xff\n6\n\n7 7 7 1\ny\n" + b"1 " * 20 + b"\n")
    flags = [
        f"--workdir={workdir}",
        f"--source={source}",
        f"--output={output}",
        "--shard=1/1",
        "--format=text",
    ]
    assert run(translate_corpus, *flags) == 0
    captured = capsys.readouterr()
    totals = json.loads(captured.out)
    assert (totals["untranslated"], totals["cut"]) == (3, 1)
    assert (
        f"{source}, line 2 cannot be encoded" in captured.err
        and f"{source}, line 3 is not UTF-8" in captured.err
    )
    lines = (output / "shard-000001-of-000001.tsv").read_text().splitlines()
    assert [lines[n] for n in (1, 2, 4, 6)] == ["2\t\t", "3\t\t", "5\t0.0000\t", "7\t\t"]
    assert all(len(lines[n].split("\t")[1]) > 4 for n in (0, 3, 5))


def test_a_line_that_was_cut_is_marked(workdir, tmp_path):
    source, output = tmp_path / "long", tmp_path / "out"
    # max_source_length=16, with the end
    source.write_text("1 2 3\n" + "1 " * 15 + "\n" + "1 " * 16 + "\n\nx\n")
    flags = [
        f"--workdir={workdir}",
        f"--source={source}",
        f"--output={output}",
        "--shard=1/1",
        "--n_best=2",
    ]
    assert run(translate_corpus, *flags) == 0
    rows = parquet.read_table(output / "shard-000001-of-000001.parquet").to_pylist()
    assert {row["line"] for row in rows if row["cut"]} == {3}
    translations = read_shards(output).translations()
    assert [bool(best) for _, (best, *_) in translations] == [True, True, False, False, False]


def test_a_damaged_shard_is_translated_again(whole, flags, tmp_path, capsys):
    path = tmp_path / "whole" / "shard-000003-of-000006.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    capsys.readouterr()
    assert run(translate_corpus, *flags, f"--output={tmp_path / 'whole'}", "--shard=1/1") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["shards"] == 1
    assert f"{path}: is damaged" in captured.err
    assert contents(tmp_path / "whole") == whole


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "-1/2"])
def test_a_part_must_exist(flags, tmp_path, part, capsys):
    assert run(translate_corpus, *flags, f"--output={tmp_path / 'out'}", f"--shard={part}") == 2
    assert f"{part}: must be I/N with I from 1 to N" in capsys.readouterr().err


def test_a_part_is_translated_without_ray(flags, tmp_path, capsys):
    assert (
        run(translate_corpus, *flags, f"--output={tmp_path / 'out'}", "--shard=1/2", "--ray=auto")
        == 2
    )
    assert "argument --ray: not allowed with argument --shard" in capsys.readouterr().err


@pytest.mark.skipif(RAY.args[0] is False, reason="Ray is installed")
def test_without_ray_the_message_names_what_to_do(flags, tmp_path, capsys):
    assert run(translate_corpus, *flags, f"--output={tmp_path / 'out'}") == 2
    assert (
        "pip install -r requirements/ray.txt, or use --shard=1/1 without it"
        in capsys.readouterr().err
    )


@RAY
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_actors_of_ray_write_the_bytes_of_one_process(whole, flags, tmp_path, workers):
    assert ray_job(flags, tmp_path / "ray", workers).wait(timeout=120) == 0
    assert contents(tmp_path / "ray") == whole


@RAY
@pytest.mark.slow
def test_a_killed_actor_starts_again_and_a_killed_job_continues(flags, whole, tmp_path):
    flags = [*flags[:2], "--shards=33"]
    assert run(translate_corpus, *flags, f"--output={tmp_path / 'one'}", "--shard=1/1") == 0
    job = ray_job(flags, tmp_path / "ray", 2)
    wait_for(lambda: len(list((tmp_path / "ray").glob("shard*"))) > 2)
    os.kill(actors(job.pid)[0], signal.SIGKILL)
    assert job.wait(timeout=120) == 0
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")

    job = ray_job(flags, tmp_path / "again", 1)
    wait_for(lambda: len(list((tmp_path / "again").glob("shard*"))) > 2)
    job.terminate()
    assert job.wait(timeout=60) == 130
    assert 2 < len(list((tmp_path / "again").glob("shard*"))) < 33
    assert ray_job(flags, tmp_path / "again", 2).wait(timeout=120) == 0
    assert contents(tmp_path / "again") == contents(tmp_path / "one")


def ray_job(flags: list[str], output: Path, workers: int) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "scripts.translate_corpus",
        *flags,
        f"--output={output}",
        f"--workers={workers}",
    ]
    return subprocess.Popen(
        command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


def actors(pid: int) -> list[int]:
    """Returns the processes of Ray's actors that descend from the process."""
    table = subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(maxsplit=2) for line in table.splitlines()[1:]]
    family = {pid}
    for _ in range(4):  # driver, raylet, actor
        family |= {int(child) for child, parent, _ in rows if int(parent) in family}
    return [
        int(child)
        for child, _, name in rows
        if int(child) in family and name.startswith("ray::MapWorker")
    ]


def wait_for(condition) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
