"""The choice of the evaluations that `scripts.compare` compares, and the making of missing ones."""

import json

import pytest

from scripts import compare
from tests.checkpoints.workdirs import make_workdir, run
from tests.scripts.evaluated import error, file, make_run, result
from transformer import evaluate

AVERAGED, GREEDY, WIDE = "valid-step9-average5", "valid-step9-beam_size1", "valid-step9-beam_size8"


def compared(comparison: dict) -> list[str]:
    return [
        evaluated_run["evaluation"]
        for system in comparison["systems"]
        for evaluated_run in system["runs"]
    ]


def test_flags_choose_among_several_evaluations(evaluated, capsys):
    for name in ("a", "b"):
        path = evaluated(name, model__dropout="0.3" if name == "b" else "0.1")
        evaluated(name, evaluation=AVERAGED, saved={"averaged": 5})
        evaluated(name, evaluation=GREEDY, saved={"decoding": {"beam_size": 1}})
        evaluated(
            name,
            evaluation=f"{AVERAGED}-beam_size1",
            saved={"averaged": 5, "decoding": {"beam_size": 1}},
        )
        evaluated(name, evaluation="test-step9", saved={"split": "test"})
    a, b = path.with_name("a"), path
    evaluated("a", evaluation=WIDE, saved={"decoding": {"beam_size": 8}})
    # If several agree with the flags, the one that transformer.evaluate makes with them is used.
    assert compared(result(capsys, a, b)) == ["valid-step9"] * 2
    assert compared(result(capsys, a, b, "--average=5")) == [AVERAGED] * 2
    assert compared(result(capsys, a, b, "--decoding.beam_size=1")) == [GREEDY] * 2
    assert compared(result(capsys, a, b, "--split=test")) == ["test-step9"] * 2
    # The only one is used whatever its settings, and the difference is shown.
    wide = evaluated("c", evaluation=WIDE, saved={"decoding": {"beam_size": 8}})
    comparison = result(capsys, a, wide)
    assert compared(comparison) == ["valid-step9", WIDE]
    assert comparison["settings"] == {"decoding.beam_size": {"A": 4, "B": 8}}
    assert compared(result(capsys, a, wide, "--decoding.beam_size=8")) == [WIDE] * 2


def test_the_direction_and_the_average_are_those_of_the_run(evaluated, capsys):
    back = {"source_language": "de", "target_language": "en"}
    for name in ("a", "b"):
        path = evaluated(name, model__dropout="0.3" if name == "b" else "0.1")
        evaluated(name, evaluation="valid-source_languagede-step9", saved=back)
    assert compared(result(capsys, path.with_name("a"), path)) == ["valid-step9"] * 2
    for name in ("c", "d"):  # the mean of five checkpoints is the only one of these
        dropout = "0.3" if name == "d" else "0.1"
        path = evaluated(name, evaluation=AVERAGED, model__dropout=dropout, saved={"averaged": 5})
        evaluated(
            name,
            evaluation=f"{AVERAGED}-beam_size1",
            saved={"averaged": 5, "decoding": {"beam_size": 1}},
        )
        (path / "averaged.json").write_text("{}")
    assert compared(result(capsys, path.with_name("c"), path)) == [AVERAGED] * 2


def test_a_language_model_is_refused_with_the_reason(evaluated, tmp_path, capsys):
    keys = {
        "training__objective": "causal_lm",
        "data__source_language": "",
        "checkpoint__best_metric": "loss",
    }
    model = make_run(tmp_path / "lm", **keys, training__eval_bleu="false")
    line = error(capsys, evaluated("a"), model)
    message = (
        f"{model}: a language model has no scores of translations; "
        "transformer.evaluate prints its own"
    )
    assert message in line


def test_the_data_of_another_run_are_another_text(evaluated, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, data in (("a", "lo"), ("b", tmp_path / "lo")):
        path = evaluated(name, model__dropout="0.3" if name == "b" else "0.1")
        evaluated(
            name, evaluation="test-of-lo-step9", saved={"split": None, "data": f"test of {data}"}
        )
    flags = ["--split=test", "--data=lo"]
    comparison = result(capsys, "a", "b", *flags)
    assert (
        compared(comparison) == ["test-of-lo-step9"] * 2
        and compared(result(capsys, "a", "b")) == ["valid-step9"] * 2
    )
    assert comparison["text"] == "test of lo" and list(comparison["settings"]) == ["model.dropout"]
    line = error(capsys, "a", "b", "--split=test", "--data=other")
    assert (
        "a: has no evaluation with --split=test --data=other (it has test-of-lo-step9, valid-step9)"
        in line
    )
    # The name of a file is in the first line.
    for name in ("a", "b"):
        evaluated(
            name, evaluation="set", saved={"split": None, "data": None, "source": "texts/set.en"}
        )
    assert (
        run(compare, str(file(path, "set")), str(file(path.with_name("a"), "set")), "--samples=40")
        == 0
    )
    assert capsys.readouterr().out.startswith("texts/set.en, 20 sentences; ")


def test_a_file_names_its_evaluation(evaluated, capsys):
    path = evaluated("a")
    evaluated("a", evaluation=GREEDY, saved={"decoding": {"beam_size": 1}})
    comparison = result(capsys, file(path, GREEDY), path)
    assert compared(comparison) == [GREEDY, "valid-step9"]
    assert comparison["settings"] == {"decoding.beam_size": {"A": 1, "B": 4}}
    # Flags choose among the evaluations of a workdir.
    assert compared(result(capsys, file(path, GREEDY), path, "--decoding.beam_size=4")) == [
        GREEDY,
        "valid-step9",
    ]


def test_an_evaluation_outside_the_workdirs_names_its_run(evaluated, tmp_path, capsys):
    folder = tmp_path / "kept"
    folder.mkdir()
    for name, dropout in (("a", "0.1"), ("bb", "0.3")):
        path = evaluated(name, model__dropout=dropout)
        for written in (path / "evaluations").iterdir():
            written.rename(folder / f"{name}.{written.name.partition('.')[2]}")
    comparison = result(capsys, *sorted(folder.glob("*.json")))
    assert compared(comparison) == ["a", "bb"]
    assert comparison["settings"] == {"model.dropout": {"A": 0.1, "B": 0.3}}
    assert [run["workdir"] for system in comparison["systems"] for run in system["runs"]] == [
        str(tmp_path / "a"),
        str(tmp_path / "bb"),
    ]
    assert compared(result(capsys, folder / "bb.json")) == ["bb"]
    saved = json.loads((folder / "a.json").read_text())
    (folder / "a.json").write_text(
        json.dumps(saved | {"models": [{"workdir": str(tmp_path / "moved")}]})
    )
    assert f"{folder / 'a.json'}: its run={tmp_path / 'moved'}: no such folder" in error(
        capsys, folder / "a.json"
    )
    (folder / "a.json").write_text(json.dumps(saved | {"models": [{}]}))
    assert "a.json: is in no workdir, and names none" in error(capsys, folder / "a.json")


def test_missing_and_ambiguous_evaluations_are_refused(evaluated, capsys):
    path, other = evaluated("a", model__dropout="0.3"), evaluated("b")
    evaluated("a", evaluation="valid-step20", saved={"step": 20})
    line = error(capsys, path, other)
    assert "has 2 evaluations" in line and "valid-step20, valid-step9" in line
    assert "--checkpoint=STEP" in line and ".json" in line
    assert error(capsys, path, other, "--average=5").endswith(
        f"--workdir={path} --split=valid --average=5"
    )
    line = error(capsys, path, other, "--average=5", "--decoding.beam_size=2")
    assert line.endswith(
        f"add --evaluate, or run python -m transformer.evaluate --workdir={path} --split=valid "
        "--average=5 --decoding.beam_size=2"
    )
    ensemble = evaluated("e", evaluation="valid-step9-0a1b2c3d", saved={"models": [{}, {}]})
    line = error(capsys, other, ensemble)
    assert line.endswith(f"run python -m transformer.evaluate --workdir={ensemble} --split=valid")


@pytest.mark.slow
def test_missing_evaluations_are_made_by_evaluate(tmp_path, capsys):
    first, second = (make_workdir(tmp_path / name, seed) for name, seed in (("a", 0), ("b,a", 1)))
    flags = ["--checkpoint=last", "--average=2", "--decoding.beam_size=3"]
    line = error(capsys, first, second, *flags)
    made = f"--workdir={first} --split=valid {' '.join(flags)}"
    assert line.endswith(f"add --evaluate, or run python -m transformer.evaluate {made}")
    assert "no such folder" in error(capsys, first, tmp_path / "c", *flags, "--evaluate")
    # flags and folders are checked before anything is translated
    assert not (first / "evaluations").exists()

    assert run(evaluate, *made.split()) == 0
    untouched = json.loads(capsys.readouterr().out)
    name = "valid-step30-average2-beam_size3"
    assert compared(result(capsys, first, second, *flags, "--evaluate")) == [name, name]
    # with its seconds: it was not made again
    assert json.loads(file(first, name).read_text()) == untouched
    assert compared(result(capsys, first, second, "--checkpoint=30")) == [name, name]
    # The best checkpoint has none; that of 30 remains.
    assert (
        compared(result(capsys, first, second, "--checkpoint=best", "--evaluate"))
        == ["valid-step20"] * 2
    )
