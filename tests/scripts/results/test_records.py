"""Records of runs: their content, the tables that they print, and records that are refused."""

import hashlib
import json
import platform
import shutil
from pathlib import Path

import pytest

from scripts import compare, record, report
from scripts.results.records import name_runs, published_config, write_record
from scripts.results.runs import RecordedRun
from tests.checkpoints.workdirs import run
from tests.scripts.evaluated import SENTENCES, add_evaluation, make_sweep
from tests.scripts.recorded import PAIRS, complete_run
from tests.scripts.tiny_sweep import error
from transformer.config import loading
from transformer.workdir import open_existing


def write(folder: Path, *workdirs: Path) -> int:
    return run(record, *map(str, workdirs), f"--output={folder}")


@pytest.fixture
def workdirs(tmp_path) -> list[Path]:
    """Returns two seeds of one system, and another system."""
    saved = {"decoding": {"beam_size": 7}, "seconds": 1 / 3}
    return [
        complete_run(tmp_path / "a", 20.0, saved=saved),
        complete_run(tmp_path / "b", 22.0, saved=saved, seed="1"),
        complete_run(tmp_path / "c", 25.0, saved=saved, model__dropout="0.3"),
    ]


@pytest.fixture
def records(workdirs, tmp_path) -> Path:
    folder = tmp_path / "records"
    assert write(folder, *workdirs) == 0
    return folder


def test_the_table_is_the_same_as_from_the_workdirs(workdirs, records, capsys):
    assert run(report, *map(str, workdirs)) == 0
    expected = capsys.readouterr().out
    assert expected.count("| tiny, model.dropout=0.") == 2 and "beam 7" in expected
    single = [str(records / f"{name}.json") for name in ("seed0", "seed1", "dropout=0.3-seed0")]
    for paths in ([str(records)], single):
        assert run(report, *paths) == 0
        # The systems of a folder come in the order of its files.
        assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected.splitlines())


def test_a_record_has_the_facts_and_nothing_of_the_machine(records, tmp_path):
    path = records / "seed1.json"
    text = path.read_text()
    content = json.loads(text)
    assert len(text.encode()) < 10_000
    assert str(tmp_path) not in text and platform.node() not in text
    assert text == json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert (content["name"], content["seed"], content["config"]["seed"]) == ("seed1", 1, 1)
    assert content["config"]["data.path"] == "data"
    assert (content["seconds"], content["validation_seconds"]) == (130.0, 10.0)
    # The sha256 of the texts, whatever the vocabulary.
    lines = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    assert content["data"]["train"] == hashlib.sha256(lines.encode()).hexdigest()
    first, second = content["validations"]
    assert (first["step"], second["step"], first["accuracy"]) == (5, 9, 0.333333)
    assert "gradient_norm/encoder" not in first
    (evaluation,) = content["evaluations"]
    assert evaluation["decoding"] == {"beam_size": 7} and evaluation["bleu_signature"]
    assert evaluation["seconds"] == 0.333333
    lines = "".join(
        f"{pair[0]}\t{pair[1]}\n" for pair in zip(SENTENCES[::-1], SENTENCES, strict=True)
    )
    assert evaluation["texts"] == hashlib.sha256(lines.encode()).hexdigest()


def test_paths_lose_their_folders(tmp_path):
    settings = {
        "training__init_from": "/home/me/runs/parent:7",
        "decoding__rerank": "/r/one:0.5,/r/two:1",
        "data__mixture": """(
            "label=a path=/home/me/x train_split=train",
            "label=b path='/home/me/my data/x' train_split=train",
            'label=c "path=/home/me/my data/y" train_split=train',
        )""",
        "data__source_tag": ">>a/b<<",
        "data__path": "folder with spaces/and, commas",
    }
    path = complete_run(tmp_path / "a")
    overrides = [(key.replace("__", "."), value) for key, value in settings.items()]
    values = published_config(loading.override(loading.load(path), overrides))
    assert [values[key.replace("__", ".")] for key in settings] == [
        "parent:7",
        "one:0.5,two:1",
        [
            "label=a path=x train_split=train",
            "label=b path='x' train_split=train",
            'label=c "path=y" train_split=train',
        ],
        ">>a/b<<",
        "and, commas",
    ]


def test_writing_again_changes_nothing_or_adds_evaluations(workdirs, records, tmp_path):
    before = {path.name: path.read_bytes() for path in records.iterdir()}
    assert sorted(before) == ["dropout=0.3-seed0.json", "seed0.json", "seed1.json"]
    assert write(records, *workdirs) == 0
    assert {path.name: path.read_bytes() for path in records.iterdir()} == before
    add_evaluation(workdirs[0], "test-step9", SENTENCES, SENTENCES, split="test")
    assert write(records, *workdirs) == 0
    assert len(json.loads((records / "seed0.json").read_text())["evaluations"]) == 2
    assert (records / "seed1.json").read_bytes() == before["seed1.json"]


def test_writing_again_after_the_project_has_got_a_key_changes_nothing_else(workdirs, records):
    path = records / "seed0.json"
    content = json.loads(path.read_text())
    del content["config"]["decoding.scorer"], content["digest"]
    path.unlink()
    write_record(records, content)
    assert "decoding.scorer" not in path.read_text()
    assert write(records, *workdirs) == 0
    assert json.loads(path.read_text())["config"]["decoding.scorer"] == ""


def test_names_have_no_folders(tmp_path):
    runs = [complete_run(tmp_path / "a")]
    runs.append(complete_run(tmp_path / "b", training__init_from="/home/me/runs/parent:7"))
    named = name_runs([RecordedRun(path.name, *open_existing(path)) for path in runs])
    assert list(named) == ["seed0", "init_from=parent_7-seed0"]


def test_writing_again_loses_no_evaluation(workdirs, records, capsys):
    path = records / "seed0.json"
    before = path.read_bytes()
    add_evaluation(workdirs[0], "test-step9", SENTENCES, SENTENCES, split="test")
    for file in (workdirs[0] / "evaluations").glob("valid-*"):
        file.unlink()
    assert write(records, *workdirs) == 2
    assert f"{path}: has 1 evaluations that the workdir lacks" in error(capsys)
    assert path.read_bytes() == before
    # The same evaluation may be made again, in another time.
    add_evaluation(
        workdirs[0], "valid-step9", SENTENCES, SENTENCES, decoding={"beam_size": 7}, seconds=5.0
    )
    assert write(records, *workdirs) == 0
    evaluations = json.loads(path.read_text())["evaluations"]
    assert [each["split"] for each in evaluations] == ["test", "valid"]


def test_another_run_under_the_same_name_is_refused(records, tmp_path, capsys):
    before = (records / "seed0.json").read_bytes()
    assert write(records, complete_run(tmp_path / "d", 20.0, model__d_model="64")) == 2
    assert "seed0.json: is the record of another run (config" in error(capsys)
    assert (records / "seed0.json").read_bytes() == before


def test_equal_runs_and_runs_without_results_are_refused(workdirs, tmp_path, capsys):
    new = tmp_path / "new"
    assert write(new, workdirs[0], complete_run(tmp_path / "e")) == 2
    assert f"e: has the settings and the seed of {workdirs[0]}" in error(capsys)
    assert write(new, complete_run(tmp_path / "f", evaluate=False)) == 2
    assert "f: has no evaluation; run python -m transformer.evaluate" in error(capsys)
    (workdirs[1] / "complete.json").unlink()
    assert write(new, *workdirs) == 2
    assert "b: this run is not complete" in error(capsys)
    shutil.rmtree(tmp_path / "data")
    assert write(new, workdirs[0]) == 2
    assert "data.path" in error(capsys)
    assert not new.exists()


def test_the_trials_of_a_sweep_need_no_evaluation(tmp_path):
    sweep = make_sweep(tmp_path / "sweep", 2)
    for seed in (0, 1):
        complete_run(sweep / "trials" / f"{seed:04}", evaluate=False, seed=str(seed))
    assert write(tmp_path / "records", sweep) == 0
    names = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert names == ["seed0.json", "seed1.json"]


def test_the_trials_of_a_sweep_keep_their_evaluations(tmp_path):
    sweep = make_sweep(tmp_path / "sweep", 2)
    for seed in (0, 1):
        complete_run(sweep / "trials" / f"{seed:04}", evaluate=bool(seed), seed=str(seed))
    assert write(tmp_path / "records", sweep) == 0
    contents = [json.loads(path.read_text()) for path in (tmp_path / "records").iterdir()]
    assert {each["seed"]: len(each["evaluations"]) for each in contents} == {0: 0, 1: 1}


def test_long_names_that_are_cut_differ(tmp_path):
    # The names differ only after more than MAX_NAME characters.
    runs = [complete_run(tmp_path / "a")]
    for name in "bc":
        rerank = f"/r/{'x' * 120}{name}:1"
        runs.append(complete_run(tmp_path / name, decoding__rerank=rerank))
    assert write(tmp_path / "records", *runs) == 0
    names = sorted(path.stem for path in (tmp_path / "records").iterdir())
    assert len(names) == 3 and max(map(len, names)) == 100 + len("-01234567-seed0")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"seconds": 130.0', '"seconds": 13.0', "edited by hand: its digest differs"),
        ('"bleu": 20.0', '"bleu": 41.0', "edited by hand: its digest differs"),
        ('"schema_version": 1', '"schema_version": 2', "schema_version=2: must be at most 1"),
        ('"name": "seed0"', '"name": "seed3"', "edited by hand"),
        ("{", "<", "damaged (JSONDecodeError"),
        ('"digest"', '"digits"', "damaged (KeyError: 'digest')"),
    ],
)
def test_a_changed_record_is_refused_by_name(records, old, new, message, capsys):
    path = records / "seed0.json"
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    assert old in text and run(report, str(records)) == 2
    assert f"error: {path}: {message}" in error(capsys)


def test_a_copy_is_no_second_seed(records, capsys):
    shutil.copy(records / "seed0.json", records / "seed5.json")
    assert run(report, str(records)) == 2
    assert "seed5.json: has the name seed0; rename the file" in error(capsys)


def test_a_record_has_no_translations_to_compare(records, capsys):
    assert run(compare, str(records / "seed0.json")) == 2
    assert "seed0.json: is the record of a run, which has no translations" in error(capsys)
