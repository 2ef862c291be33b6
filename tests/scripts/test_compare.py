"""The command `scripts.compare`: the grouping into systems, the output, and the errors."""

import functools
import json
from pathlib import Path

import pytest
from sacrebleu.metrics import CHRF

from scripts import compare
from tests.checkpoints import workdirs as untrained
from tests.checkpoints.workdirs import run
from tests.scripts.evaluated import (
    SENTENCES,
    add_evaluation,
    damage,
    error,
    file,
    make_run,
    make_sweep,
    result,
)
from transformer import evaluate
from transformer.support.environment import CONTENTS, TRAINING_CORPUS
from transformer.workdir import Workdir


def test_runs_that_differ_only_in_seed_and_place_are_one_system(evaluated, capsys):
    argv = [
        evaluated("b", 0.2, model__dropout="0.3"),
        evaluated("a", 0.1, seed="1"),
        evaluated(
            "aa", 0.3, seed="7", data__path="elsewhere", mesh__fsdp="2", training__log_every="7"
        ),
    ]
    comparison = result(capsys, *argv)
    assert comparison["settings"] == {"model.dropout": {"A": 0.3, "B": 0.1}}
    first, second = comparison["systems"]
    assert first["label"] == "A"
    assert [(scores["workdir"], scores["seed"]) for scores in second["runs"]] == [
        (str(argv[1]), 1),
        (str(argv[2]), 7),
    ]
    saved = [json.loads(file(path).read_text()) for path in argv]
    about = functools.partial(pytest.approx, rel=5e-6)  # numbers have six digits
    for name in ("bleu", "chrf", "bleu_lowercase_tokenized"):
        low, high = sorted(scores[name] for scores in saved[1:])
        # The sample standard deviation of two values is their distance over the square root of two.
        assert second[name]["mean"] == about((low + high) / 2)
        assert second[name]["spread"] == about((high - low) / 2**0.5)
        assert first[name]["mean"] == about(saved[0][name]) and first[name]["spread"] is None
    (difference,) = comparison["differences"]
    assert (difference["baseline"], difference["system"]) == ("A", "B")
    assert difference["bleu"]["difference"] == pytest.approx(
        second["bleu"]["mean"] - first["bleu"]["mean"], abs=2e-4
    )


def test_one_system_has_no_difference(evaluated, capsys):
    comparison = result(capsys, evaluated("a", seed="1"), evaluated("aa", seed="2"))
    assert (
        len(comparison["systems"]) == 1
        and comparison["settings"] == {}
        and comparison["differences"] == []
    )


def test_a_sweep_stands_for_its_complete_trials(evaluated, tmp_path, capsys):
    sweep = make_sweep(tmp_path / "sweep", 5)
    trials = [("0", "0.1"), ("0", "0.3"), ("1", "0.1"), ("1", "0.3")]  # the fifth has not begun
    paths = [
        evaluated(f"sweep/trials/{number:04}", 0.1 * number, seed=seed, model__dropout=dropout)
        for number, (seed, dropout) in enumerate(trials)
    ]
    assert f"{sweep}: none of its 5 trials is complete" in error(capsys, sweep)
    for path in paths[:3]:
        Workdir(path).mark_complete(9)
    assert run(compare, str(sweep), "--samples=40", "--format=json") == 0
    captured = capsys.readouterr()
    systems = json.loads(captured.out)["systems"]
    assert [[trial_run["workdir"] for trial_run in system["runs"]] for system in systems] == [
        [str(paths[0]), str(paths[2])],
        [str(paths[1])],
    ]
    assert f"{sweep}: 3 of 5 trials are complete, 2 left out." in captured.err
    make_sweep(sweep, 5, **{"from": "/runs/a"})
    assert "its trials are evaluations of one run; give /runs/a" in error(capsys, sweep)


def test_the_notes_and_tags_of_runs_stand_beside_their_scores(evaluated, capsys):
    noted = evaluated("a", training__note="with tied tables", training__tags="('ablation', 'v2')")
    comparison = result(capsys, noted, evaluated("bb", model__dropout="0.3"))
    assert [system["runs"][0]["note"] for system in comparison["systems"]] == [
        "with tied tables #ablation #v2",
        "",
    ]
    assert comparison["settings"].keys() == {"model.dropout"}
    assert run(compare, str(noted)) == 0
    assert "with tied tables" in capsys.readouterr().out


def run_with(path: Path, commit: str, changes: bool = False) -> None:
    """Changes the recorded code of a run."""
    environment = json.loads((path / "environment.json").read_text())
    changed = environment | {"commit": commit, "uncommitted_changes": changes}
    (path / "environment.json").write_text(json.dumps(changed))


def test_repeated_seeds_are_separated_by_code_step_or_evaluation(evaluated, tmp_path, capsys):
    old, *new = [
        evaluated(name, seed=seed) for name, seed in (("a", "0"), ("bb", "1"), ("ccc", "0"))
    ]
    for path, commit in ((old, "old"), (new[0], "new"), (new[1], "new")):
        run_with(path, commit)
    comparison = result(capsys, old, *new)
    assert comparison["settings"] == {"commit": {"A": "old", "B": "new"}}
    assert [len(system["runs"]) for system in comparison["systems"]] == [1, 2]
    comparison = result(capsys, old, evaluated("d", model__dropout="0.3"), new[1])
    # In the order given.
    assert [system["runs"][0]["workdir"] for system in comparison["systems"]] == [
        str(old),
        str(tmp_path / "d"),
        str(new[1]),
    ]

    evaluated("a", 0.05, "valid-step20", {"step": 20})
    comparison = result(capsys, file(old), file(old, "valid-step20"))
    assert comparison["settings"] == {"step": {"A": 9, "B": 20}}

    (new[1] / "environment.json").write_text((old / "environment.json").read_text())
    comparison = result(capsys, file(old), new[1])
    assert comparison["settings"] == {"evaluation": {"A": str(file(old)), "B": str(file(new[1]))}}


def test_runs_on_other_data_are_another_system(evaluated, capsys):
    paths = [evaluated(name, seed=seed) for name, seed in (("a", "0"), ("bb", "1"), ("ccc", "2"))]
    for path, digest in zip(paths, ("0123456789", "0123456789", "fedcba9876"), strict=True):
        (path / CONTENTS).write_text(json.dumps({TRAINING_CORPUS: digest}))
    comparison = result(capsys, *paths)
    assert comparison["settings"] == {"training_data": {"A": "01234567", "B": "fedcba98"}}
    assert [len(system["runs"]) for system in comparison["systems"]] == [2, 1]


def test_the_code_of_all_starts_is_named(evaluated, capsys):
    path = evaluated("a")
    environment = json.loads((path / "environment.json").read_text()) | {
        "commit": "old",
        "uncommitted_changes": False,
    }
    starts = [{"commit": "old"}, {"commit": "new", "uncommitted_changes": True}]
    (path / "environment.json").write_text(json.dumps(environment | {"resumed": starts}))
    assert result(capsys, path)["systems"][0]["runs"][0]["commit"] == "old, then new+"


def test_a_shortlist_is_named_by_eight_characters_of_its_digest(evaluated, capsys):
    path = evaluated("a")
    evaluated("a", 0.05, "listed", {"shortlist": "0123456789abcdef"})
    comparison = result(capsys, file(path), file(path, "listed"))
    assert comparison["settings"] == {"shortlist": {"A": None, "B": "01234567"}}


def test_seeds_that_ran_different_code_are_reported(evaluated, capsys):
    seeds = [evaluated("a", seed="1"), evaluated("aa", seed="2")]
    for path, changes in zip(seeds, (False, True), strict=True):
        run_with(path, "0123456789abcdef", changes)
    assert run(compare, *map(str, seeds), "--samples=40") == 0
    captured = capsys.readouterr()
    assert "warning: System A: its seeds ran different code, 012345678, 012345678+." in captured.err
    runs = [line.split() for line in captured.out.splitlines() if line.endswith("valid-step9")]
    assert [line[5:] for line in runs] == [
        ["012345678", str(seeds[0]), "valid-step9"],
        ["012345678+", str(seeds[1]), "valid-step9"],
    ]
    run_with(seeds[1], "0123456789abcdef")
    assert run(compare, *map(str, seeds), "--samples=40") == 0
    assert "different code" not in capsys.readouterr().err
    (system,) = result(capsys, *seeds)["systems"]
    assert [seed_run["commit"] for seed_run in system["runs"]] == ["012345678", "012345678"]


def test_text_has_all_parts_and_whole_sentences(evaluated, tmp_path, capsys):
    references = [*SENTENCES[:-1], f"{'Donaudampfschifffahrt ' * 40}Ende"]
    for name, seed, dropout in (("a", "0", "0.1"), ("b", "0", "0.3"), ("c", "4", "0.3")):
        hypotheses = [*damage(references, 0.0, 0)[:-1], "kurz" if name == "c" else references[-1]]
        path = make_run(tmp_path / name, seed=seed, model__dropout=dropout)
        add_evaluation(path, "valid-step9", hypotheses, references)
    argv = [str(tmp_path / name) for name in "abc"]
    assert run(compare, *argv, "--samples=40") == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  reference  {references[-1]}" in lines and f"  B seed 0   {references[-1]}" in lines
    assert "  B seed 4   kurz" in lines and sum(line.startswith("line ") for line in lines) == 1
    assert (
        lines[0] == "valid, 20 sentences; beam 4, alpha 0.6, step 9"
        and "model.dropout  0.1  0.3" in lines
    )
    assert {line.split()[0] for line in lines[-3:]} == {"bleu", "chrf", "bleu_lowercase_tokenized"}
    assert run(compare, *argv, "--samples=40", "--sentences=0") == 0
    assert "reference  " not in capsys.readouterr().out


def test_one_run_is_shown_with_its_worst_sentences(evaluated, capsys):
    path = evaluated("a", 0.3)
    comparison = result(capsys, path, "--sentences=3")
    assert comparison["differences"] == []
    assert len(comparison["worst"]) == 3
    worst = result(capsys, path, "--sentences=20")["worst"]
    hypotheses = (
        file(path).with_name("valid-step9.hypotheses.txt").read_text(encoding="utf-8").splitlines()
    )
    pairs = zip(hypotheses, ([text] for text in SENTENCES), strict=True)
    expected = sorted(CHRF().sentence_score(*pair).score for pair in pairs)
    assert [sentence["chrf"] for sentence in worst] == pytest.approx(expected, rel=1e-5)
    for sentence in worst:
        text = hypotheses[sentence["line"] - 1]
        assert sentence["hypotheses"] == [text] and sentence["hypothesis_lengths"] == [len(text)]
        assert sentence["model_scores"] == [-(sentence["line"] - 1) / 4]
        assert sentence["source"] == SENTENCES[-sentence["line"]]
    assert run(compare, str(path), "--samples=40", "--sentences=1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"line {worst[0]['line']}: chrF {worst[0]['chrf']:.1f}" in lines
    assert any("There is only one system" in line for line in lines)
    (path / "evaluations" / "valid-step9.sentences.jsonl").write_text("{}\n" * 20)
    assert "valid-step9.sentences.jsonl: damaged (KeyError: 'score')" in error(capsys, path)


def test_the_first_line_says_how_every_system_was_decoded(evaluated, capsys):
    seeds = [
        evaluated("a", seed="1", saved={"averaged": 5}),
        evaluated("b", seed="2", saved={"averaged": 5, "step": 7}),
    ]
    other = evaluated("c", saved={"decoding": {"strategy": "sample"}})
    assert run(compare, *map(str, [*seeds, other]), "--samples=40") == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "valid, 20 sentences; A: beam 4, alpha 0.6, mean of 5 checkpoints, steps 7, 9; "
        "B: strategy sample, step 9"
    )


@pytest.fixture
def pair(evaluated):
    return evaluated("a"), evaluated("b", model__dropout="0.3")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--samples=39"], "argument --samples: 39: must be at least 40"),
        (["--sentences=-1"], "argument --sentences: -1: must be at least 0"),
        (["--split=tset"], "--split"),
        (["--format=xml"], "--format"),
        (["--decoding.beam_sise=1"], "did you mean decoding.beam_size"),
        (["--decoding.beam_size=0"], "config.decoding.beam_size=0: must be"),
        (["nowhere"], "WORKDIR=nowhere: no such folder"),
        (["nowhere.json"], "nowhere.json: No such file"),
    ],
)
def test_bad_flags_are_refused(pair, capsys, flags, message):
    assert message in error(capsys, *pair, *flags)


def test_evaluations_of_other_text_are_refused(pair, evaluated, tmp_path, capsys):
    first, _ = pair
    assert "given twice" in error(capsys, first, file(first))
    others = [*SENTENCES[:7], "anders", *SENTENCES[8:]]
    add_evaluation(make_run(tmp_path / "o"), "valid-step9", SENTENCES, others)
    assert "different references" in error(capsys, first, tmp_path / "o")
    add_evaluation(make_run(tmp_path / "s"), "valid-step9", SENTENCES[1:], SENTENCES[1:])
    assert "different references" in error(capsys, first, tmp_path / "s")
    path = add_evaluation(make_run(tmp_path / "n"), "valid-step9", SENTENCES, SENTENCES)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"references": ["a", "b"]}))
    assert "has several references, must have one" in error(capsys, first, tmp_path / "n")
    other = evaluated("t", saved={"bleu_signature": "another version"}, model__dropout="0.3")
    assert "different signatures" in error(capsys, first, other)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("evaluations/valid-step9.json", "{", "valid-step9.json: damaged"),
        ("evaluations/valid-step9.json", "[]", "valid-step9.json: damaged (TypeError"),
        ("evaluations/valid-step9.json", "{}", "valid-step9.json: damaged (KeyError: 'split')"),
        (
            "evaluations/valid-step9.json",
            '{"split": 3}',
            "valid-step9.json: damaged (TypeError: split=3)",
        ),
        (
            "evaluations/valid-step9.references.txt",
            None,
            "valid-step9.references.txt: No such file",
        ),
        (
            "evaluations/valid-step9.hypotheses.txt",
            "ein\n",
            "valid-step9.hypotheses.txt: has 1 lines, must have 20",
        ),
        ("environment.json", "", "environment.json: damaged"),
        ("environment.json", "[]", "environment.json: damaged"),
        ("config.json", "{", "config.json: damaged ("),
    ],
)
def test_damaged_records_are_refused(pair, capsys, name, content, message):
    damaged = pair[1] / name
    damaged.unlink() if content is None else damaged.write_text(content)
    assert message in error(capsys, *pair)


def test_evaluations_of_moved_workdirs_can_be_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    workdir = untrained.make_workdir(Path("run"), steps=(10, 20))
    for step in (10, 20):
        assert run(evaluate, "--workdir=run", "--split=valid", f"--checkpoint={step}") == 0
    moved = workdir.rename(tmp_path / "moved").resolve()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    comparison = result(capsys, *(file(moved, f"valid-step{step}") for step in (10, 20)))
    assert comparison["settings"] == {"step": {"A": 10, "B": 20}} and comparison["sentences"] == 5
    assert "tok:none" in comparison["signatures"]["bleu"]
