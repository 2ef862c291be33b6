"""Plan files: the order of their stages, and errors."""

import os
from pathlib import Path

import pytest

from scripts.distillation import pipeline
from scripts.distillation.folder import PipelineFolder
from transformer.support.errors import UserError

CONFIG = "configs/multi30k.py"


def test_stages_come_after_all_that_they_read_and_once():
    forward, backward = pipeline.train("forward", CONFIG), pipeline.train("backward", CONFIG)
    outputs = pipeline.translate("outputs", [forward, forward], CONFIG, choose=backward)
    student = pipeline.train("student", CONFIG, data=pipeline.mix("pairs", CONFIG, outputs))
    pipeline.train("unused", CONFIG)
    stages = pipeline.in_order(
        [
            pipeline.measure(student),
            pipeline.export(student, "ctranslate2"),
            pipeline.measure(forward),
        ]
    )
    names = [stage.name for stage in stages]
    assert sorted(names) == sorted(
        [
            "forward",
            "backward",
            "outputs",
            "pairs",
            "student",
            "student-valid",
            "student-ctranslate2",
            "forward-valid",
        ]
    )
    for number, stage in enumerate(stages):
        assert {needed.name for needed in pipeline.input_stages(stage)} <= set(names[:number])


def test_two_stages_with_a_name_are_refused():
    models = [pipeline.train("model", CONFIG, {"seed": seed}) for seed in range(2)]
    with pytest.raises(UserError, match="two stages have the name model"):
        pipeline.in_order(
            [pipeline.measure(models[0], name="a"), pipeline.measure(models[1], name="b")]
        )


@pytest.mark.parametrize("name", ["a/b", "", "logs", "..", "-a", "a.json"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(UserError, match="must be of letters"):
        pipeline.in_order([pipeline.measure(pipeline.train(name, CONFIG), name="measured")])


def test_a_missing_text_is_refused(tmp_path):
    stages = pipeline.in_order([pipeline.measure(pipeline.existing("model", str(tmp_path)))])
    translation = pipeline.translate("outputs", stages[0], str(tmp_path / "mono.de"))
    with pytest.raises(UserError, match="mono.de is not a file"):
        PipelineFolder(tmp_path).identity(translation)


def test_a_text_that_changes_and_keeps_its_size_is_another_one(tmp_path):
    text = tmp_path / "mono.de"
    text.write_text("eins\n")
    translation = pipeline.translate("outputs", pipeline.train("model", CONFIG), str(text))
    before = PipelineFolder(tmp_path).identity(translation)
    assert PipelineFolder(tmp_path).identity(translation) == before
    os.utime(text, ns=(0, 0))
    assert PipelineFolder(tmp_path).identity(translation) != before


@pytest.mark.parametrize(
    ("choose", "text", "message"),
    [("ter", CONFIG, "choose=ter: must be a model or one of score, chrf, bleu")]
    + [("bleu", "mono.de", "choose=bleu: needs references, which mono.de does not have")],
)
def test_a_choice_that_cannot_be_made_is_refused(choose, text, message):
    with pytest.raises(UserError, match=message):
        pipeline.translate("outputs", pipeline.train("model", CONFIG), text, choose=choose)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("def get_plan(plan): return []", "must return a list with plan.measure"),
        (
            "def get_plan(plan): return plan.train('a', 'configs/base.py')",
            "must return a list with plan.measure",
        ),
        (
            "def get_plan(plan): return [plan.train('a', 'configs/base.py')]",
            "must return a list with plan.measure",
        ),
        ("def get_plan(plan):\n    return plan.trian('a')", "line 2: AttributeError"),
        (
            "def get_plan(plan): return [plan.measure(plan.existing('a', 'b'), avrage=2)]",
            "argument 'avrage'",
        ),
        ("plan = 1", "does not define get_plan"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, content, message):
    path = tmp_path / "plan.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        pipeline.load(str(path))


@pytest.mark.parametrize("path", sorted(map(str, Path("configs/distillation").glob("[a-z]*.py"))))
def test_a_shipped_plan_has_allowed_configs(path, tmp_path, multi30k):
    stages = pipeline.load(path)
    described = PipelineFolder(tmp_path, [("data.path", str(multi30k))]).check(stages)
    trained = [
        described[stage.name]["is"] for stage in stages if isinstance(stage, pipeline.TrainingStage)
    ]
    assert {entry["optimizer.name"] for entry in trained} == {"muon"}
    text = Path(path).read_text()
    assert f"--plan={path}\n" in text or f"--plan={path} " in text


def test_a_student_learns_from_the_whole_mixture(tmp_path, multi30k):
    values = {"data.train_pairs": 100, "data.deduplicate": True, "data.path": str(multi30k)}
    pairs = pipeline.mix("pairs", CONFIG, copies=2)
    data = (
        PipelineFolder(tmp_path).config(pipeline.train("student", CONFIG, values, data=pairs)).data
    )
    assert (data.train_pairs, data.deduplicate, data.path) == (0, False, str(tmp_path / "pairs"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda here, back: pipeline.translate("x", [here, back], CONFIG),
            "all models must translate en to de",
        ),
        (
            lambda here, back: pipeline.translate("x", here, CONFIG, choose=here),
            "one that chooses the reverse",
        ),
        (
            lambda here, back: pipeline.translate("x", here, CONFIG, decoding={"beam": 2}),
            "there is no key decoding.beam",
        ),
        (
            lambda here, back: pipeline.export(here, "ctranslate2", decoding={"beam": 2}),
            "there is no key decoding.beam",
        ),
        (
            lambda here, back: pipeline.measure(here, split="dev"),
            "split=dev must be one of train, valid, test",
        ),
        (
            lambda here, back: pipeline.translate("x", "here", CONFIG),
            "needs a model, or a list of them",
        ),
        (
            lambda here, back: pipeline.mix("x", CONFIG, [pipeline.translate("y", here, CONFIG)]),
            "one by one",
        ),
    ],
)
def test_mistakes_are_found_before_anything_runs(tmp_path, multi30k, make, message):
    here = pipeline.train("here", CONFIG)
    back = pipeline.train(
        "back", CONFIG, {"data.source_language": "de", "data.target_language": "en"}
    )
    with pytest.raises(UserError, match=message):
        PipelineFolder(tmp_path, [("data.path", str(multi30k))]).identity(make(here, back))
