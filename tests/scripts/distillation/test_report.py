"""The report: what it reads from measurements and certificates, and its chart."""

import json
from pathlib import Path

import pytest

from scripts.distillation import pipeline, report
from scripts.distillation.folder import PipelineFolder
from transformer.support import files

SCORES = {"bleu": 40.0, "bleu_lowercase_tokenized": 41.0, "chrf": 60.0}
CERTIFICATE = {
    "sentences": 50,
    "precision": "int8",
    "search": {"beam_size": 1},
    "seconds": {"theirs": 9, "search": 2},
}


def evaluation(bleu: float, seconds: float, **decoding) -> dict:
    decoding = {"beam_size": 5, "shortlist": 0, "dtype": "auto"} | decoding
    return SCORES | {"bleu": bleu, "sentences": 50, "seconds": seconds, "decoding": decoding}


def rows(path: Path, results: dict[pipeline.Stage, dict]) -> list[report.Row]:
    """Returns the rows of finished stages with these results."""
    folder = PipelineFolder(path)
    for stage, result in results.items():
        file = folder.result_path(stage)
        if isinstance(stage, pipeline.ExportStage):
            file.mkdir()
            file /= "certificate.json"
        files.write_json(file, result)
    files.write_json(folder.record, {"stages": {stage.name: {"seconds": 1.0} for stage in results}})
    return report.read_rows(list(results), folder)


@pytest.fixture
def models(tmp_path) -> list[pipeline.TrainingStage]:
    models = [pipeline.existing(name, str(tmp_path / name)) for name in ("teacher", "student")]
    for seconds, model in zip((60, 120), models, strict=True):
        Path(model.workdir).mkdir()
        line = {"step": 1, "split": "train", "seconds": seconds}
        (Path(model.workdir) / "metrics.jsonl").write_text(f"{json.dumps(line)}\n")
    return models


def test_points_have_the_models_the_search_and_the_form_of_the_numbers(models, tmp_path, caplog):
    teacher, student = models
    found = rows(
        tmp_path,
        {
            pipeline.measure(models, name="a"): evaluation(40, 10),
            pipeline.measure(student, name="b"): evaluation(39, 1, beam_size=1, shortlist=32),
            pipeline.measure(student, name="c", split="test"): evaluation(
                38, 2, beam_size=1, dtype="int8", shortlist=32
            ),
            pipeline.export(student, "ctranslate2"): CERTIFICATE
            | {"bleu": {"ours": {}, "theirs": SCORES}},
            pipeline.export(teacher, "marian"): CERTIFICATE
            | {"bleu": {"theirs": SCORES}, "seconds": {"search": None}},
            pipeline.export(teacher, "safetensors"): {
                "verdict": "uncertified",
                "reasons": ["no toolkit"],
            },
        },
    )
    assert [row[:4] + row[5:] for row in found] == [
        ("a", "teacher+student, beam 5", "floating point", "valid", 5.0, 3.0),
        ("b", "student, greedy", "floating point, shortlist", "valid", 50.0, 2.0),
        ("c", "student, greedy", "int8, shortlist", "test", 25.0, 2.0),
        ("student-ctranslate2", "student, greedy", "ctranslate2 int8", "valid", 25.0, 2.0),
        ("teacher-marian", "teacher, greedy", "marian int8", "valid", None, 1.0),
    ]
    assert "teacher-safetensors: has no BLEU: no toolkit." in caplog.text


def test_the_chart_joins_the_points_of_a_model_on_one_split(models, tmp_path):
    teacher, student = models
    found = rows(
        tmp_path,
        {
            pipeline.measure(teacher, split="test", name="other"): evaluation(30, 10),
            pipeline.measure(teacher, name="a"): evaluation(40, 10),
            pipeline.measure(student, name="b"): evaluation(39, 2, beam_size=1),
            pipeline.measure(student, name="c"): evaluation(39, 1, beam_size=1, dtype="int8"),
        },
    )
    chart = report.draw(found).to_dict()
    lines, marks = chart["layer"]
    assert [point["name"] for point in chart["datasets"][chart["data"]["name"]]] == ["a", "b", "c"]
    assert lines["encoding"]["color"] == marks["encoding"]["color"]
    assert lines["encoding"]["color"]["scale"]["domain"] == ["teacher, beam 5", "student, greedy"]
    assert marks["encoding"]["shape"]["scale"]["domain"] == ["floating point", "int8"]
    assert (lines["encoding"]["x"]["scale"]["type"], lines["encoding"]["y"]["title"]) == (
        "log",
        "BLEU (valid)",
    )


def test_without_a_speed_there_is_a_table_and_no_chart(models, tmp_path, capsys):
    stage = pipeline.export(models[0], "marian")
    rows(tmp_path, {stage: CERTIFICATE | {"bleu": {"theirs": SCORES}, "seconds": {"search": None}}})
    report.publish([stage], PipelineFolder(tmp_path), None)
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "| teacher-marian | 40.0 | 41.0 | 60.0 |  | 1.0 |"
    )
    assert not (tmp_path / report.CHART).exists()
