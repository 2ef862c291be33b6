"""The command `transformer.evaluate`: its JSON, its files, its choice of checkpoints, and its
errors.
"""

import argparse
import errno
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu

from configs import base
from tests.checkpoints.workdirs import REFERENCES, SOURCES, make_workdir, run
from transformer import evaluate
from transformer.checkpoints import loaded_models
from transformer.checkpoints.loaded_models import LoadedModels
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.evaluation import translate_and_score
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import Translation
from transformer.run import evaluation_files

CONTRACT = {
    *(
        "bleu",
        "bleu_signature",
        "bleu_lowercase_tokenized",
        "chrf",
        "chrf_signature",
        "exact_match",
        "sentences",
    ),
    *("split", "step", "averaged", "decoding", "hypotheses", "seconds", "output_tokens_per_second"),
    *("bleu_paper", "bleu_paper_signature"),
}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    return make_workdir(tmp_path_factory.mktemp("runs") / "reverse")


def result(capsys, *flags: str) -> dict:
    assert run(evaluate, *flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])


def error(capsys, *flags: str) -> str:
    """Returns the error line of a command that is expected to fail without writing a result."""
    assert run(evaluate, *flags) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert captured.out == "" and "Traceback" not in captured.err
    return line


def translate(models: LoadedModels) -> list[list[Translation]]:
    decoder, parameters = models.decoder()
    return decoder.translate(parameters, SOURCES)


def test_result_and_files_of_a_split(workdir, capsys):
    saved = result(capsys, f"--workdir={workdir}")
    assert set(saved) >= CONTRACT
    assert (saved["split"], saved["step"], saved["averaged"], saved["sentences"]) == (
        "test",
        20,
        1,
        5,
    )
    assert saved["decoding"]["beam_size"] == 2
    assert (
        saved["seconds"] > 0
        and saved["output_tokens_per_second"] > 0
        and saved["compile_seconds"] > 0
    )
    assert all(
        value == float(f"{value:.6g}") for value in saved.values() if isinstance(value, float)
    )
    hypotheses = Path(saved["hypotheses"]).read_text().splitlines()
    assert Path(saved["references"]).read_text().splitlines() == REFERENCES
    assert Path(saved["sources"]).read_text().splitlines() == SOURCES
    models = loaded_models.load([str(workdir)], "20", 1, [])
    expected = translate(models)
    assert hypotheses == [best.text for (best,) in expected]
    sentences = [
        json.loads(line) for line in Path(saved["sentence_scores"]).read_text().splitlines()
    ]
    assert Path(saved["sentence_scores"]).name == "test-step20.sentences.jsonl"
    for line, (sentence, (best,)) in enumerate(zip(sentences, expected, strict=True), start=1):
        source, reference = SOURCES[line - 1], REFERENCES[line - 1]
        assert sentence == {
            **{"line": line, "source": source, "hypothesis": best.text, "references": [reference]},
            "chrf": pytest.approx(sacrebleu.sentence_chrf(best.text, [reference]).score, rel=1e-5),
            "score": pytest.approx(
                best.log_probability / ((5 + len(best.tokens)) / 6) ** 0.6, rel=1e-5
            ),
            **{
                "source_length": len(source),
                "hypothesis_length": len(best.text),
                "reference_length": len(reference),
            },
        }
    records = [
        json.loads(path.read_text()) for path in (workdir / "evaluations").glob("test-step20.json")
    ]
    assert records == [saved]
    assert not [path for path in (workdir / "evaluations").iterdir() if "unfinished" in path.name]


def test_compilation_is_not_in_the_seconds(monkeypatch):
    class Slow(TextDecoder):
        compile_seconds = 1.0  # of an earlier translation

        def __init__(self):
            pass

        def translate(self, parameters, texts, report):
            self.compile_seconds += 3.0
            return [[Translation(text, (4, 2), (), (), 0.0, 0.0)] for text in texts]

    clock = iter((10.0, 15.0))
    monkeypatch.setattr(
        "transformer.decoding.evaluation.time", SimpleNamespace(perf_counter=lambda: next(clock))
    )
    replicas, data = {}, base.get_config().data
    timed = translate_and_score(Slow(), replicas, SOURCES, [SOURCES], data, (), lambda count: None)
    assert timed.speed == {"seconds": 2.0, "compile_seconds": 3.0, "output_tokens_per_second": 5.0}


@pytest.mark.parametrize("context", [0, 1])
def test_blank_lines_are_no_sentences_with_or_without_context(context):
    """One of two sentences is right; lines that are blank on both sides count in no metric."""

    class Known(TextDecoder):
        compile_seconds = 0.0

        def __init__(self):
            pass

        def translate(self, parameters, texts, report):
            return [[Translation(text.strip(), (4, 2), (), (), 0.0, 0.0)] for text in texts]

    data = base.get_config().data
    data.context = context
    texts, references = ["a", "", "b", "\u3000", "", ""], ["a", "", "x", "", "c", ""]
    scores = translate_and_score(
        Known(), {}, texts, [references], data, ("exact_match",), lambda count: None
    ).scores
    assert scores == {"exact_match": 1 / 3}  # "c" has no source, and so no translation
    scores = translate_and_score(
        Known(), {}, [""], [[" "]], data, ("exact_match", "bleu"), lambda count: None
    ).scores
    assert scores["bleu"] == 0.0


def test_scores_are_logged_for_people(workdir, capsys):
    assert run(evaluate, f"--workdir={workdir}", "--average=2") == 0
    captured = capsys.readouterr()
    saved = json.loads(captured.out)
    lines = [line.split(" ", 1)[1] for line in captured.err.splitlines()]
    scores = (
        f"{saved['bleu_lowercase_tokenized']:.2f}, BLEU {saved['bleu']:.2f}, chrF "
        f"{saved['chrf']:.2f}, "
    )
    assert f"test: BLEU (lower-cased, tokenized) {scores}" in "\n".join(lines)
    assert any(line == f"model: {workdir} at step 20 (mean of 2)" for line in lines)
    assert f"translations: {saved['hypotheses']}" in lines


def test_checkpoints_are_chosen_and_averaged(workdir):
    _, last, previous = (
        loaded_models.load([str(workdir)], which, 1, []) for which in ("best", "last", "20")
    )
    assert last.checkpoints[0].step == 30
    mean = loaded_models.load([str(workdir)], "last", 2, [])
    assert mean.checkpoints[0].averaged == (20, 30) and mean.checkpoints[0].step == 30
    for parts in zip(
        *(
            models.parameters[0]["decoder"]["embedding"]["table"]
            for models in (last, previous, mean)
        ),
        strict=True,
    ):
        np.testing.assert_allclose((parts[0] + parts[1]) / 2, parts[2], rtol=1e-6)


def test_file_names_contain_split_average_and_overrides(workdir, capsys):
    flags = (
        "--split=valid",
        "--checkpoint=last",
        "--average=3",
        "--decoding.beam_size=1",
        "--decoding.length_penalty=1",
    )
    saved = result(capsys, f"--workdir={workdir}", *flags)
    assert (saved["step"], saved["averaged"], saved["models"][0]["averaged"]) == (
        30,
        3,
        [10, 20, 30],
    )
    assert saved["decoding"]["beam_size"] == 1 and saved["decoding"]["length_penalty"] == 1.0
    assert (
        Path(saved["hypotheses"]).name
        == "valid-step30-average3-beam_size1-length_penalty1.hypotheses.txt"
    )


def test_long_file_names_are_cut_between_characters():
    overrides = [(f"decoding.key{number}", "\U0001f600" * 60) for number in range(14)]
    arguments = argparse.Namespace(split="test", data=None, source=None, overrides=overrides)
    models = SimpleNamespace(checkpoints=[loaded_models.Checkpoint("runs/a", 20, (20,))])
    name = evaluation_files.evaluation_name(arguments, models)
    assert name.startswith("test-step20-key0\U0001f600") and 196 < len(name.encode()) <= 200


def test_evaluations_with_other_settings_have_other_files(workdir, tmp_path, capsys):
    names = set()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "list.txt"
        path.write_text("7 7\n")
        flags = [f"--workdir={workdir}", "--split=valid", f"--decoding.banned={path}"]
        saved = result(capsys, *flags)
        names.add(saved["hypotheses"])
    assert len(names) == 2
    # An evaluation of before a key was added is the same one.
    path = Path(saved["hypotheses"].replace(".hypotheses.txt", ".json"))
    older = json.loads(path.read_text())
    del older["decoding"]["shrinking_beam"]
    path.write_text(json.dumps(older))
    assert result(capsys, *flags)["hypotheses"] == saved["hypotheses"]
    assert "decoding.banned=none.txt: " in error(
        capsys, f"--workdir={workdir}", "--decoding.banned=none.txt"
    )


def test_the_data_of_another_run(workdir, tmp_path, capsys):
    data_run = make_workdir(tmp_path / "other", seed=1, steps=(10,))
    for name, text in (("valid.in", "1 2 3\n4\n"), ("valid.out", "3 2 1\n4\n")):
        (tmp_path / "data" / name).write_text(text)
    saved = result(capsys, f"--workdir={workdir}", "--split=valid", f"--data={data_run}")
    assert (saved["split"], saved["data"], saved["sentences"]) == (None, f"valid of {data_run}", 2)
    assert saved["models"][0]["workdir"] == str(workdir)
    assert Path(saved["hypotheses"]).name == "valid-of-other-step20.hypotheses.txt"
    assert Path(saved["references"]).read_text() == "3 2 1\n4\n"
    reverse = make_workdir(
        tmp_path / "reverse",
        steps=(10,),
        **{"data.source_language": "out", "data.target_language": "in"},
    )
    refused = error(capsys, f"--workdir={workdir}", f"--data={reverse}")
    assert (
        f"--data={reverse}: is text from out to in, and the model translates in to out" in refused
    )
    assert "--data=nowhere: no such folder" in error(
        capsys, f"--workdir={workdir}", "--data=nowhere"
    )
    files = ("--source=a", "--reference=b", f"--data={data_run}")
    assert "give a run's data or files, not both" in error(capsys, f"--workdir={workdir}", *files)


def test_the_data_of_a_folder_of_text(workdir, tmp_path, capsys):
    """Splits have the names of the model's own data, as in the copies of scripts.get_data."""
    folder = tmp_path / "typos"
    folder.mkdir()
    for name, text in (("valid.in", "1 2 3\n4\n"), ("valid.out", "3 2 1\n4\n")):
        (folder / name).write_text(text)
    flags = [f"--workdir={workdir}", f"--data={folder}"]
    saved = result(capsys, *flags, "--split=valid")
    assert (saved["split"], saved["data"], saved["sentences"]) == (None, f"valid of {folder}", 2)
    assert Path(saved["sources"]).name == "valid-of-typos-step20.sources.txt"
    assert Path(saved["sources"]).read_text() == "1 2 3\n4\n"
    # The model's data are integers, which no tokenizer of BLEU splits.
    assert "tok:none" in saved["bleu_signature"]
    # The advice on data that has moved is for data of runs.
    message = error(capsys, *flags, "--split=test")
    assert "no test.in or test.in.gz" in message and "found: valid" in message
    assert "resumes" not in message


def test_the_files_go_to_another_folder(workdir, tmp_path, capsys):
    before = sorted(workdir.rglob("*"))
    saved = result(capsys, f"--workdir={workdir}", f"--output={tmp_path}/new/folder")
    written = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert {"test-step20.json", "test-step20.hypotheses.txt"} < written
    assert Path(saved["hypotheses"]).parent == tmp_path / "new" / "folder"
    assert sorted(workdir.rglob("*")) == before


def test_a_folder_that_cannot_be_written_is_refused_before_the_search(
    workdir, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(ControlledDecoder, "translate", None)
    (tmp_path / "file").touch()
    message = error(capsys, f"--workdir={workdir}", f"--output={tmp_path}/file/folder")
    assert message.endswith(
        "file/folder: cannot be written to (Not a directory); name another folder with "
        "--output=FOLDER"
    )

    def fail(dir):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), f"{dir}/tmp1234")

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    message = error(capsys, f"--workdir={workdir}")
    assert (
        f"{workdir}/evaluations: cannot be written to (Read-only file system); name another"
        in message
    )
    assert "tmp1234" not in message


def test_scores_are_printed_though_the_disk_is_full(workdir, tmp_path, monkeypatch, capsys):
    def fail(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("transformer.support.files.write_bytes", fail)
    assert run(evaluate, f"--workdir={workdir}", f"--output={tmp_path}") == 2
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)) >= CONTRACT
    assert (
        "error: the disk is full" in captured.err.splitlines()[-1]
        and "Traceback" not in captured.err
    )


def test_the_files_are_written_though_the_reader_of_the_result_has_gone(
    workdir, tmp_path, monkeypatch
):
    def print_to_nobody(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(evaluate, "print", print_to_nobody, raising=False)
    flags = [f"--workdir={workdir}", "--split=test", f"--output={tmp_path / 'out'}"]
    with pytest.raises(BrokenPipeError):
        evaluate.main(evaluate.make_parser().parse(flags))
    assert list((tmp_path / "out").glob("*.hypotheses.txt"))


def test_files_instead_of_a_split(workdir, tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "set.in").write_text("1 2\n\n3\n")
        (tmp_path / name / "set.out").write_text("2 1\n\n3\n")
    results = [
        result(
            capsys,
            f"--workdir={workdir}",
            f"--source={tmp_path}/{name}/set.in",
            f"--reference={tmp_path}/{name}/set.out",
        )
        for name in ("a", "b")
    ]
    assert results[0]["split"] is None and results[0]["sentences"] == 3
    names = [Path(saved["hypotheses"]).name for saved in results]
    assert names == ["set.in-step20.hypotheses.txt", "set.in-step20-2.hypotheses.txt"]
    pair = [
        f"--{side}={tmp_path}/b/set.{end}" for side, end in (("source", "in"), ("reference", "out"))
    ]
    # again
    assert result(capsys, f"--workdir={workdir}", *pair)["hypotheses"] == results[1]["hypotheses"]
    hypotheses = Path(results[0]["hypotheses"]).read_text()
    assert hypotheses.count("\n") == 3 and hypotheses.splitlines()[1] == ""


def test_several_references(workdir, tmp_path, capsys):
    hypotheses = Path(result(capsys, f"--workdir={workdir}")["hypotheses"]).read_text()
    names = [tmp_path / name for name in ("source", "first", "second")]
    for path, text in zip(names, ("\n".join(SOURCES) + "\n", "0\n" * 5, hypotheses), strict=True):
        path.write_text(text)
    flags = [
        f"--workdir={workdir}",
        f"--source={names[0]}",
        *(f"--reference={path}" for path in names[1:]),
    ]
    assert run(evaluate, *flags) == 0
    captured = capsys.readouterr()
    saved = json.loads(captured.out)
    assert saved["reference"] == [str(path) for path in names[1:]]
    assert [Path(path).read_text() for path in saved["references"]] == ["0\n" * 5, hypotheses]
    assert (saved["exact_match"], saved["chrf"]) == (1.0, 100.0) and "nrefs:2|" in saved[
        "chrf_signature"
    ]
    names[2].write_text("1\n")
    assert re.search("source has 5 lines and .*second has 1", error(capsys, *flags))


def test_several_workdirs_are_an_ensemble(workdir, tmp_path, capsys):
    second = make_workdir(tmp_path / "other", seed=1, **{"model.d_model": "12"})
    saved = result(capsys, f"--workdir={workdir},{second}")
    assert [model["workdir"] for model in saved["models"]] == [str(workdir), str(second)]
    assert Path(saved["hypotheses"]).name == "test-step20-with-other.hypotheses.txt"
    models = loaded_models.load([str(workdir), str(second)], "best", 1, [])
    expected = translate(models)
    assert Path(saved["hypotheses"]).read_text().splitlines() == [best.text for (best,) in expected]

    stranger = make_workdir(tmp_path / "stranger")
    (stranger / "contents.json").unlink()
    (stranger / "tokenizer.model").write_text('{"kind": "ids", "size": 13}')
    assert "different tokenizers" in error(capsys, f"--workdir={workdir},{stranger}")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workdir=nowhere"], "--workdir=nowhere: no such folder"),
        (["--checkpoint=25"], "--checkpoint=25: must be best, last or one of the steps 10, 20, 30"),
        (["--average=0"], "--average: 0: must be at least 1"),
        (["--average=two"], "--average"),
        (["--split=tset"], "--split"),
        (["--decoding.beam_sise=3"], "did you mean decoding.beam_size"),
        (["--decoding.beam_size=many"], "--decoding.beam_size=many: must be an integer"),
        (["--model.d_model=3"], "no such flag"),
        (
            ["--source=a.txt"],
            "to translate without one: python -m transformer.translate --workdir=",
        ),
        (["--source=a b.txt"], "< 'a b.txt'"),
        (["--reference=a.txt"], "--reference=a.txt: needs --source=FILE"),
        (["--source=a.txt", "--reference=b.txt", "--split=test"], "not both"),
        (["--source=a.txt", "--reference=b.txt"], "a.txt: No such file"),
    ],
)
def test_bad_flags_are_refused(workdir, tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    before = sorted(workdir.rglob("*"))
    flags = flags if flags[0].startswith("--workdir") else [f"--workdir={workdir}", *flags]
    assert message in error(capsys, *flags)
    assert sorted(workdir.rglob("*")) == before


def test_missing_data_is_reported_with_the_flags_for_files(workdir, tmp_path, capsys):
    data = workdir.parent / "data"
    data.rename(tmp_path / "moved")
    try:
        message = error(capsys, f"--workdir={workdir}")
    finally:
        (tmp_path / "moved").rename(data)
    assert "no such folder" in message and message.endswith("with --source=FILE --reference=FILE")
    command = (
        f"transformer.train --config={workdir}/config.json --workdir={workdir} "
        "--config.data.path=FOLDER, which"
    )
    assert command in message


@pytest.mark.parametrize(
    ("source", "reference", "message"),
    [
        (b"1\n2\n", b"1\n", "has 2 lines and .* has 1"),
        (b"", b"", "the file has no text"),
        (b"\n \n", b"1\n2\n", "the file has no text"),
        (b"1\n\xff\n", b"1\n2\n", "s.txt, line 2: not UTF-8"),
        (b"1\n2\n", b"1\n\xe4\n", "r.txt, line 2: not UTF-8"),
        (b"1\n2 x\n", b"1\n2\n", "line 2: 'x'"),
        (b'<srcset setid="newstest2014">\n', b"1\n", "s.txt: is SGML or XML, must be text"),
        (b"1\n", b'<?xml version="1.0"?>\n', "r.txt: is SGML or XML, must be text"),
    ],
)
def test_files_that_cannot_be_scored(workdir, tmp_path, capsys, source, reference, message):
    (tmp_path / "s.txt").write_bytes(source)
    (tmp_path / "r.txt").write_bytes(reference)
    files = (f"--source={tmp_path}/s.txt", f"--reference={tmp_path}/r.txt")
    assert re.search(message, error(capsys, f"--workdir={workdir}", *files))


def test_a_checkpoint_of_another_model_is_refused_with_the_reason(tmp_path, capsys):
    path = make_workdir(tmp_path / "run", steps=(10,))
    config = json.loads((path / "config.json").read_text())
    config["model"]["d_ff"] = 24
    (path / "config.json").write_text(json.dumps(config))
    message = error(capsys, f"--workdir={path}")
    assert f"{path / 'checkpoints' / '10'}: holds other arrays than this model" in message
    assert "found (8, 8), expected (8, 24)" in message
    assert message.endswith("; the configuration differs in model.d_ff: 8 -> 24")


def test_damaged_workdirs_are_refused(tmp_path, capsys):
    path = make_workdir(tmp_path / "run", steps=(10,))
    model = path / "tokenizer.model"
    kept = model.read_bytes()
    model.write_bytes(b"rubbish")
    assert "tokenizer.model" in error(capsys, f"--workdir={path}")
    model.write_bytes(kept.replace(b"12", b"11"))
    message = error(capsys, f"--workdir={path}")
    assert (
        "contents.json: the vocabulary is not the one that this run began with; restore the data"
        in message
    )
    model.write_bytes(kept)
    (path / "contents.json").write_text("[]")
    assert "contents.json: damaged (TypeError: " in error(capsys, f"--workdir={path}")
    (path / "contents.json").unlink()  # as in runs older than this record
    assert loaded_models.load([str(path)], "last", 1, []).tokenizer.source.size == 12
    (path / "config.json").write_text("{")
    assert "config.json" in error(capsys, f"--workdir={path}")
    empty = make_workdir(tmp_path / "empty", steps=())
    assert "no checkpoint" in error(capsys, f"--workdir={empty}")
