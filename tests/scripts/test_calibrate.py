"""scripts.calibrate and the confidence that commands print and write, against direct computations,
and the errors of both.
"""

import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sacrebleu.metrics import CHRF

import transformer
from scripts import calibrate
from scripts.results.calibration import auc
from tests.checkpoints.workdirs import make_workdir, run
from tests.scripts.calibrated import COUNT, make_calibrated, write_validation
from transformer import evaluate, translate
from transformer.support.errors import UserError

WORDS = {"data.source": "text", "tokenizer.kind": "word", "tokenizer.vocab_size": "16"}
WITHOUT_BLEU = {"training.eval_bleu": "False", "checkpoint.best_metric": "loss"}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return make_calibrated(tmp_path_factory.mktemp("runs") / "run")


def read(workdir) -> dict:
    return json.loads((workdir / "calibration.json").read_text())


def lines_of(path) -> list[str]:
    return path.read_text().splitlines()


def data_of(workdir, side: str) -> list[str]:
    return lines_of(workdir.parent / "data" / f"valid.{side}")


def error(capsys, module, *flags: str) -> str:
    """Returns the error line of a command that is expected to fail."""
    assert run(module, *flags) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in captured.err
    return line


def expected_confidence(record: dict, tokens: list[float]) -> float:
    weights = record["weights"]
    mean, lowest = np.mean(tokens), min(tokens)
    logit = weights["intercept"] + weights["mean"] * mean + weights["lowest"] * lowest
    return 1 / (1 + np.exp(-logit))


def test_the_file_says_what_it_was_fitted_on(workdir):
    record = read(workdir)
    assert record["settings"]["steps"] == [[20]] and record["settings"]["decoding.beam_size"] == 2
    assert (record["split"], record["threshold"], record["dropout_passes"]) == ("valid", 50.0, 0)
    assert set(record["weights"]) == {"intercept", "mean", "lowest"}
    # The measures are of the model's own translations, and the order is better than chance.
    model = transformer.load(workdir)
    best = [row[0] for row in model.translate(data_of(workdir, "in"))]
    references = data_of(workdir, "out")
    chrf = [
        CHRF().sentence_score(one.text, [reference]).score
        for one, reference in zip(best, references, strict=True)
    ]
    is_right = np.array(chrf) >= 50
    means = np.array([np.mean(one.token_log_probabilities) for one in best])
    measures = record["measures"]
    assert measures["items"] == COUNT and measures["right"] == pytest.approx(is_right.mean())
    assert measures["auc_of_mean"] == pytest.approx(auc(means, is_right))
    assert 0.6 < measures["auc_interval"][0] < measures["auc"] < measures["auc_interval"][1] < 1
    words = sum(len(one.text.split()) for one in best)
    assert record["measures_of_words"]["items"] == words


def test_words_are_found_once_for_each_place_in_the_reference():
    found = calibrate.find_words(["a", "b", "a", "a", "c."], "a c b a")
    assert found == [True, True, True, False, False]


def translated(monkeypatch, capsysbinary, text: str, *flags: str) -> tuple[int, list[dict]]:
    stdin = SimpleNamespace(buffer=io.BytesIO(text.encode()), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stdin)
    code = run(translate, *flags)
    return code, list(map(json.loads, capsysbinary.readouterr().out.splitlines()))


def test_the_command_prints_the_confidence_of_each_translation(workdir, monkeypatch, capsysbinary):
    flags = (f"--workdir={workdir}", "--n_best=2", "--format=jsonl")
    code, rows = translated(
        monkeypatch, capsysbinary, "1 2 3\n\n7 7 7 1\n3 x\n", *flags, "--confidence"
    )
    assert code == 0
    first, blank, _, unreadable = rows
    for row in rows[:3:2]:
        for one in row["translations"]:
            tokens = one["token_log_probabilities"]
            assert one["confidence"] == pytest.approx(
                expected_confidence(read(workdir), tokens), abs=1e-5
            )
            # In this vocabulary each token but EOS is a word.
            assert " ".join(one["words"]) == one["text"]
            assert one["word_confidences"] == pytest.approx(np.exp(tokens[:-1]), abs=1e-5)
    confidences = {one["confidence"] for one in first["translations"]}
    assert len(confidences) == 2
    for one in blank["translations"] + unreadable["translations"]:
        assert (one["confidence"], one["words"], one["word_confidences"]) == (None, [], [])
    # Without the flag, nothing changes.
    _, plain = translated(monkeypatch, capsysbinary, "1 2 3\n", *flags)
    for one in first["translations"]:
        for name in ("confidence", "words", "word_confidences"):
            del one[name]
    assert plain == [first]


def test_the_method_has_the_values_of_the_command_whatever_the_neighbours(
    workdir, monkeypatch, capsysbinary
):
    texts = data_of(workdir, "in")
    model = transformer.load(workdir)
    together = model.confidence(texts, model.translate(texts, n_best=2))
    _, rows = translated(
        monkeypatch,
        capsysbinary,
        "\n".join(texts),
        *(f"--workdir={workdir}", "--n_best=2", "--format=jsonl", "--confidence"),
    )
    for text, row, printed in zip(texts[:4], together, rows, strict=False):
        assert model.confidence([text], model.translate([text], n_best=2)) == [
            [
                one._replace(
                    confidence=pytest.approx(one.confidence, abs=1e-5),
                    word_confidences=pytest.approx(one.word_confidences, abs=1e-5),
                )
                for one in row
            ]
        ]
        for one, fields in zip(row, printed["translations"], strict=True):
            assert one.confidence == pytest.approx(fields["confidence"], abs=1e-5)
    assert model.confidence([], []) == [] == model.confidence(["1"], [[]])[0]
    # Keys that change no translation change no confidence.
    other = model.with_decoding(batch_tokens=1)
    assert other.confidence(texts, model.translate(texts))[0][0] == together[0][0]


@pytest.mark.parametrize(
    "translations",
    [lambda rows: rows[0], lambda rows: rows * 2, lambda rows: "text", lambda rows: [["text"]]],
)
def test_translations_of_another_form_are_an_error(workdir, translations):
    model = transformer.load(workdir)
    with pytest.raises(UserError, match="^translations"):
        model.confidence(["1 2"], translations(model.translate(["1 2"])))


def test_evaluations_have_the_confidence_of_each_sentence_on_any_text(workdir, tmp_path, capsys):
    (tmp_path / "in").write_text("1 2 3\n\n5\n")
    (tmp_path / "out").write_text("3 2 1\n\n5\n")
    files = (f"--source={tmp_path / 'in'}", f"--reference={tmp_path / 'out'}")
    flags = (f"--workdir={workdir}", f"--output={tmp_path}", *files)
    assert run(evaluate, *flags) == 0
    plain = json.loads(capsys.readouterr().out)
    plain_sentences = list(map(json.loads, lines_of(Path(plain["sentence_scores"]))))
    assert run(evaluate, *flags, "--confidence") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["confidence_threshold"] == 50.0
    sentences = list(map(json.loads, lines_of(Path(result["sentence_scores"]))))
    model = transformer.load(workdir)
    confidences = model.confidence(["1 2 3", "", "5"], model.translate(["1 2 3", "", "5"]))
    assert [one["confidence"] for one in sentences] == [
        row[0].confidence and pytest.approx(row[0].confidence, abs=1e-5) for row in confidences
    ]
    assert sentences[1]["confidence"] is None
    # Nothing else changes.
    for sentence in sentences:
        del sentence["confidence"]
    assert sentences == plain_sentences
    line = error(capsys, evaluate, *flags, "--confidence", "--decoding.beam_size=1")
    assert "is for decoding.beam_size=2, and the model has 1" in line


def test_a_workdir_without_a_calibration_names_the_command(tmp_path, monkeypatch, capsys):
    path = make_workdir(tmp_path / "run")
    flags = (f"--workdir={path}", "--confidence", "--format=jsonl")
    message = error(capsys, translate, *flags)
    assert f"run python -m scripts.calibrate --workdir={path}" in message
    assert "--format=jsonl" in error(capsys, translate, *flags[:2])
    model = transformer.load(path)
    with pytest.raises(UserError, match=r"scripts\.calibrate"):
        model.confidence(["1"], model.translate(["1"]))


def test_a_calibration_is_only_for_its_checkpoint_and_search(workdir, capsys):
    flags = (f"--workdir={workdir}", "--confidence", "--format=jsonl")
    for changed, message in (
        ("--decoding.length_penalty=1", "is for decoding.length_penalty=0.6, and the model has 1"),
        ("--checkpoint=10", "is for steps=[[20]], and the model has [[10]]"),
        ("--average=2", "is for steps=[[20]], and the model has [[10, 20]]"),
    ):
        line = error(capsys, translate, *flags, changed)
        assert message in line and "scripts.calibrate" in line


def test_a_calibration_is_not_for_another_run_with_the_same_steps(workdir, tmp_path, capsys):
    path = make_workdir(tmp_path / "run", seed=1)
    shutil.copy(workdir / "calibration.json", path)
    line = error(capsys, translate, f"--workdir={path}", "--confidence", "--format=jsonl")
    assert "calibration.json: is for digests=" in line and "scripts.calibrate" in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record["settings"].update(version=0), "is for version=0"),
        (lambda record: record.pop("weights"), "damaged"),
        (lambda record: record.pop("settings"), "damaged"),
        (lambda record: record.update(settings=[1]), "damaged"),
        (lambda record: record.update(weights=[1]), "damaged"),
        (lambda record: record["weights"].update(bias="1"), "damaged"),
        (lambda record: record.update(dropout_passes=-1), "damaged"),
    ],
)
def test_a_damaged_file_is_an_error(workdir, monkeypatch, capsys, change, message):
    path = workdir / "calibration.json"
    content = path.read_text()
    record = json.loads(content)
    change(record)
    path.write_text(json.dumps(record))
    try:
        line = error(capsys, translate, f"--workdir={workdir}", "--confidence", "--format=jsonl")
    finally:
        path.write_text(content)
    assert f"calibration.json: {message}" in line and "scripts.calibrate" in line


def test_too_few_right_or_wrong_translations_are_an_error(tmp_path, capsys):
    path = make_workdir(tmp_path / "run")
    line = error(capsys, calibrate, f"--workdir={path}")
    assert "--threshold=50: 0 of 5 translations have at least this chrF, and 10 with more" in line
    write_validation(path, tmp_path / "data")
    (tmp_path / "data" / "valid.out").write_text("0 9\n" * COUNT)
    line = error(capsys, calibrate, f"--workdir={path}", "--threshold=70")
    assert f"--threshold=70: 0 of {COUNT} translations" in line and "the median is " in line
    (tmp_path / "data" / "valid.in").write_text("\n" * COUNT)
    assert "0 of 0 translations" in error(capsys, calibrate, f"--workdir={path}")
    for value in ("0", "101", "nan", "x"):
        line = error(capsys, calibrate, f"--workdir={path}", f"--threshold={value}")
        assert "--threshold" in line
    assert not (path / "calibration.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "training.objective": "ctc",
                "decoding.strategy": "ctc",
                "training.label_smoothing": "0.0",
            },
            "training.objective=ctc has no confidence",
        ),
        (
            {"training.objective": "masked_lm", "data.target_language": "", **WITHOUT_BLEU},
            "training.objective=masked_lm generates no text",
        ),
        (
            {"training.objective": "causal_lm", "data.source_language": "", **WITHOUT_BLEU},
            "training.objective=causal_lm has no confidence",
        ),
        ({"data.context": "2", **WORDS}, "its data.context needs whole documents"),
    ],
)
def test_models_without_log_probabilities_of_translations_are_an_error(
    tmp_path, capsys, changes, message
):
    path = make_workdir(tmp_path / "run", steps=(10,), **changes)
    line = error(capsys, calibrate, f"--workdir={path}")
    assert message in line and f"--workdir={path}" in line


def test_a_diverged_model_is_an_error():
    features = {"mean": np.array([0.0, np.nan])}
    arguments = SimpleNamespace(workdir="run", dropout_passes=0)
    with pytest.raises(UserError, match="mean of the log-probabilities is not finite"):
        calibrate.check_features(features, arguments)


@pytest.mark.slow
def test_passes_with_dropout_are_features_of_the_command_too(tmp_path, monkeypatch, capsysbinary):
    path = make_calibrated(tmp_path / "run", "--dropout_passes=3", **{"model.dropout": "0.2"})
    weights = read(path)["weights"]
    assert set(weights) == {
        *("intercept", "mean", "lowest"),
        *("mean_of_passes", "deviation_of_passes"),
    }
    capsysbinary.readouterr()
    flags = (f"--workdir={path}", "--format=jsonl", "--confidence")
    _, (alone,) = translated(monkeypatch, capsysbinary, "1 2 3\n", *flags)
    _, (*_, last) = translated(monkeypatch, capsysbinary, "4 5\n6 7\n1 1 1 1\n1 2 3\n", *flags)
    assert alone == last and 0 < alone["translations"][0]["confidence"] < 1


@pytest.mark.slow
def test_dropout_without_effect_is_an_error(tmp_path, capsys):
    path = make_workdir(tmp_path / "run", **{"model.dropout": "0"})
    write_validation(path, tmp_path / "data")
    line = error(capsys, calibrate, f"--workdir={path}", "--dropout_passes=2")
    assert "--dropout_passes=2: all passes are equal" in line


@pytest.mark.slow
def test_an_ensemble_has_its_own_calibration(tmp_path, capsys):
    first = make_workdir(tmp_path / "first")
    second = make_workdir(tmp_path / "second", seed=1)
    write_validation([first, second], tmp_path / "data")
    assert run(calibrate, f"--workdir={first},{second}") == 0
    assert "deviation_of_passes" in read(first)["weights"]
    ensemble = transformer.load([first, second])
    ((one,),) = ensemble.confidence(["1 2"], ensemble.translate(["1 2"]))
    assert 0 < one.confidence < 1
    line = error(capsys, translate, f"--workdir={first}", "--confidence", "--format=jsonl")
    assert "is for steps=[[20], [20]], and the model has [[20]]" in line
