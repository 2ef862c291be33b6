"""Plans from end to end, with random models: their translations are chosen, mixed and measured."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sacrebleu.metrics import CHRF

import transformer
from scripts import distill
from scripts.distillation import pipeline, stages, texts
from scripts.distillation.folder import PipelineFolder
from tests.checkpoints.workdirs import REFERENCES, SOURCES, make_workdir, run
from tests.conftest import REPOSITORY
from tests.scripts.tiny_sweep import error
from tests.training.tiny import flags as training_flags
from transformer.support import locks

PLAN = """
def get_plan(plan):
    forward = plan.existing("forward", "{folder}/forward")
    backward = plan.existing("backward", "{folder}/backward")
    config = "{folder}/forward/config.json"
    search = {{"n_best": 3, "decoding": {{"beam_size": 3}}}}
    chosen = plan.translate("chosen", forward, config, choose="chrf", **search)
    other = plan.translate("other", [backward], config, choose=forward, **search)
    pairs = plan.mix("pairs", config, chosen, other, copies=2, tag="{tag}")
    {measured}
"""
MEASURED = (
    'return [plan.measure(forward, decoding={"beam_size": 1}), '
    'plan.measure([forward] * 2, name="both")]'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_workdir(folder / "forward", seed=8)
    make_workdir(
        folder / "backward", seed=1, **{"data.source_language": "out", "data.target_language": "in"}
    )
    return folder


def plan_file(folder: Path, path: Path, tag: str = "", measured: str = MEASURED) -> list[str]:
    """Writes the plan. Returns the flags of the command, with a new workdir beside it."""
    path.write_text(PLAN.format(folder=folder, tag=tag, measured=measured))
    return [f"--plan={path}", f"--workdir={path.parent / 'distilled'}"]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.mark.slow
def test_pairs_are_chosen_and_mixed(folder, tmp_path):
    measured = 'return [plan.measure(plan.train("s", config, data=pairs))]'
    flags = plan_file(folder, tmp_path / "plan.py", "9", measured)
    planned = [
        stage
        for stage in pipeline.load(flags[0].partition("=")[2])
        if stage.name not in ("s", "s-valid")
    ]
    output = PipelineFolder(tmp_path / "distilled")
    with output.locked():
        stages.run(planned, output)
    found = transformer.load(folder / "forward", beam_size=3).translate(SOURCES, n_best=3)
    by_chrf = [
        max(
            row, key=lambda x, reference=reference: CHRF().sentence_score(x.text, [reference]).score
        ).text
        for row, reference in zip(found, REFERENCES, strict=True)
    ]
    assert by_chrf != [row[0].text for row in found]
    assert lines(tmp_path / "distilled/chosen/chosen.out") == [text for text in by_chrf if text]
    reverse, forward = (
        transformer.load(folder / "backward", beam_size=3),
        transformer.load(folder / "forward"),
    )
    by_loss = []
    for text, row in zip(REFERENCES, reverse.translate(REFERENCES, n_best=3), strict=True):
        losses = [-forward.score([(x.text, text)])[0].log_probability for x in row]
        by_loss.append(row[losses.index(min(losses))].text)
    assert lines(tmp_path / "distilled/other/chosen.in") == [text for text in by_loss if text]
    real = list(zip(SOURCES, REFERENCES, strict=True))
    added = dict.fromkeys(
        [*zip(SOURCES, by_chrf, strict=True), *zip(by_loss, REFERENCES, strict=True)]
    )
    expected = real * 2 + [(f"9 {pair[0]}", pair[1]) for pair in added if all(pair)]
    mixed = [lines(tmp_path / f"distilled/pairs/train.{language}") for language in ("in", "out")]
    assert list(zip(*mixed, strict=True)) == expected
    assert lines(tmp_path / "distilled/pairs/validation.in") == SOURCES


def test_a_mixture_has_no_repeated_pairs_if_its_config_has_none_and_needs_no_test_split(
    tmp_path, caplog
):
    config = tmp_path / "config.py"
    values = {"source": "text", "path": str(tmp_path), "valid_split": "valid", "deduplicate": True}
    config.write_text(
        "from configs import base\n\n\ndef get_config():\n    config = base.get_config()\n"
        f"    config.data.update({values})\n    return config\n"
    )
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("a b\na b\nc\n")
        (tmp_path / f"valid.{language}").write_text("d\n")
    texts.mix(pipeline.mix("pairs", str(config), copies=2), PipelineFolder(tmp_path))
    assert lines(tmp_path / "pairs" / "train.en") == ["a b", "c"] * 2
    assert (
        lines(tmp_path / "pairs" / "validation.de") == ["d"]
        and not (tmp_path / "pairs" / "test.de").exists()
    )
    assert "pairs: has no test split" in caplog.text


def test_a_plan_is_measured_and_nothing_is_done_twice(folder, tmp_path, capsys):
    flags = plan_file(folder, tmp_path / "plan.py")
    assert run(distill, *flags) == 0
    table = capsys.readouterr().out
    assert [row.split(" | ")[0] for row in table.splitlines()[2:]] == ["| forward-valid", "| both"]
    result = json.loads((tmp_path / "distilled/forward-valid.json").read_text())
    assert result["decoding"]["beam_size"] == 1 and f"| {result['bleu']:.1f} |" in table
    assert (tmp_path / "distilled/report.svg").read_text().startswith("<svg")
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "distilled").rglob("*.json")}
    assert run(distill, *flags) == 0 and capsys.readouterr().out == table
    assert run(distill, *flags, "--report") == 0 and capsys.readouterr().out == table
    (tmp_path / "distilled/both.json").unlink()
    assert run(distill, *flags) == 0 and "| both |" in capsys.readouterr().out
    again = {
        path: path.stat().st_mtime_ns
        for path in made
        if path.name not in ("both.json", "distill.json")
    }
    assert again.items() <= made.items()
    assert run(distill, flags[0], f"--workdir={tmp_path / 'typo'}", "--report") == 2
    assert "typo: no stage has begun" in error(capsys)


@pytest.mark.slow
def test_a_measurement_makes_the_shortlist_that_is_missing(folder, tmp_path, capsys):
    workdir = folder / "with-shortlist"
    make_workdir(workdir, seed=2)
    measured = (
        f'm = plan.existing("m", "{workdir}"); '
        'return [plan.measure(m, decoding={"shortlist": 2})]'
    )
    flags = plan_file(folder, tmp_path / "plan.py", measured=measured)
    assert run(distill, *flags) == 0
    made = (workdir / "shortlist.npz").stat().st_mtime_ns
    result = json.loads((tmp_path / "distilled/m-valid.json").read_text())
    assert result["decoding"]["shortlist"] == 2 and result["shortlist"]
    (tmp_path / "distilled/m-valid.json").unlink()
    assert run(distill, *flags) == 0
    assert (workdir / "shortlist.npz").stat().st_mtime_ns == made
    (tmp_path / "distilled/m-valid.json").unlink()
    (workdir / "shortlist.npz").unlink()
    (workdir / "tokenizer.model").write_text("damaged")
    capsys.readouterr()
    assert run(distill, *flags) == 2
    assert "m-valid: scripts.shortlist failed; the end of" in error(capsys)


@pytest.mark.slow
def test_another_plan_or_process_and_foreign_files_are_refused(folder, tmp_path, capsys):
    flags = plan_file(folder, tmp_path / "plan.py")
    assert run(distill, *flags) == 0
    text = (tmp_path / "plan.py").read_text().replace('"beam_size": 1', '"beam_size": 2')
    (tmp_path / "plan.py").write_text(text)
    capsys.readouterr()
    assert run(distill, *flags) == 2
    assert "forward-valid was made with decoding={'beam_size': 1}, not {'beam_size': 2}" in error(
        capsys
    )
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "both.json").write_text("mine")
    assert run(distill, flags[0], f"--workdir={tmp_path / 'new'}") == 2
    assert "both.json: exists, but is not of this plan" in error(capsys)
    assert (tmp_path / "new" / "both.json").read_text() == "mine"


@pytest.mark.slow
def test_a_command_that_fails_is_named_with_its_message(folder, tmp_path, capsys):
    flags = plan_file(folder, tmp_path / "plan.py")
    text = (tmp_path / "plan.py").read_text().replace('"beam_size": 1', '"beam_size": 0')
    (tmp_path / "plan.py").write_text(text)
    assert run(distill, *flags) == 2
    assert "forward-valid: transformer.evaluate failed; the end of" in (message := error(capsys))
    assert "beam_size=0" in message
    (tmp_path / "plan.py").write_text(text.replace('"beam_size": 0', '"beam_size": 1'))
    assert run(distill, *flags) == 0  # nothing was made of the other beam size


def test_a_plan_waits_for_the_command_of_a_process_that_was_killed(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(locks, "FIRST_WARNING", 0.2)
    began, folder = time.monotonic(), PipelineFolder(tmp_path)
    with folder.locked():
        # Its parent gives up the lock, as a process does that is killed.
        command = subprocess.Popen(["sleep", "1"], pass_fds=folder.inherited)
    with command, PipelineFolder(tmp_path).locked():
        assert time.monotonic() - began >= 1 and command.wait(timeout=1) == 0
    assert "Waiting for the command of a scripts.distill that was killed" in caplog.text


@pytest.mark.slow
def test_a_killed_plan_continues(tmp_path):
    config = tmp_path / "config.py"
    settings = dict(
        flag.removeprefix("--config.").split("=") for flag in training_flags(tmp_path / "run")[2:]
    )
    values = ", ".join(f"{key!r}: {value!r}" for key, value in settings.items())
    config.write_text(
        "from configs import base\nfrom transformer.config import loading\n"
        f"def get_config():\n    return loading.override(base.get_config(), {{{values}}}.items())\n"
    )
    text = f"""
def get_plan(plan):
    teacher = plan.train("teacher", "{config}", {{"training.steps": 8}})
    outputs = plan.translate("outputs", teacher, "{config}", decoding={{"beam_size": 1}})
    pairs = plan.mix("pairs", "{config}", outputs)
    student = plan.train("student", "{config}", {{"training.steps": 6}}, data=pairs)
    return [plan.measure(model, decoding={{"beam_size": 1}}) for model in (teacher, student)]
"""
    (tmp_path / "plan.py").write_text(text)
    results = []
    for name, kills in (("whole", ()), ("killed", ("teacher", "outputs", "student"))):
        command = [
            sys.executable,
            "-m",
            "scripts.distill",
            f"--plan={tmp_path}/plan.py",
            f"--workdir={tmp_path / name}",
        ]
        for stage in kills:
            process = subprocess.Popen(
                command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while not (tmp_path / name / "logs" / f"{stage}.txt").exists():
                time.sleep(0.05)
            time.sleep(2)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        measured = [
            json.loads((tmp_path / name / f"{model}-valid.json").read_text())
            for model in ("teacher", "student")
        ]
        results.append([(result["bleu"], result["chrf"], result["step"]) for result in measured])
    assert results[0] == results[1]
