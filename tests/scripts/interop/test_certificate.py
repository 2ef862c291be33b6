"""The commands of import and export, and their certificates, with a toolkit that answers from a
file.
"""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transformer
from scripts import export, import_model
from scripts.interop import certificate, formats, runtimes, sentences, workdirs
from scripts.interop.formats import COMMON_SEARCH, Format
from scripts.interop.portable import PortableModel
from tests.checkpoints.workdirs import run
from tests.scripts.interop.portable import TEXTS, make_tokenizer, random_model
from transformer.support import files
from transformer.support.special_tokens import EOS

DECODED: dict[str, dict] = {}  # see `decoded_once`
TOY = """
import json, pathlib, sys

request = json.load(sys.stdin)
assert "sys.path[0]" and str(pathlib.Path(__file__).parent) not in sys.path
print("a log line", file=sys.stderr)
sys.stdout.write((pathlib.Path(request["folder"]) / "answer.json").read_text())
"""


def answer(model: PortableModel, **changes: Any) -> dict:
    """Returns the answer of a toolkit that computes as this project does, but for the changes."""
    config = certificate.float32_config(model, COMMON_SEARCH)
    request = {"sources": list(TEXTS), **certificate.search_settings(TEXTS, model, config)}
    ours = certificate.decode(model, config, request)
    return (
        {key: ours[key] for key in ("greedy", "beam", "scores", "ended")}
        | {"versions": {"toy": "1"}}
        | changes
    )


@pytest.fixture(scope="module")
def model() -> PortableModel:
    model = random_model(make_tokenizer(28), seed=3, model__output_bias=True)
    # else all translations would reach the length limit
    model.parameters["output_bias"][EOS] += 2.2
    return model


@pytest.fixture(scope="module")
def equal(model) -> dict:
    return answer(model)


@pytest.fixture
def toy(model, equal, tmp_path, monkeypatch):
    """Adds a format whose toolkit gives the answer in its folder.

    Returns a function that makes such a folder.
    """
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "sentences").write_text("".join(f"{text}\n" for text in TEXTS))
    monkeypatch.setattr(runtimes, "FOLDER", tmp_path)

    def make(**changes: Any) -> Path:
        folder = tmp_path / f"toy{len(list(tmp_path.glob('toy*')))}"
        folder.mkdir()
        (folder / "answer.json").write_text(json.dumps(equal | changes))
        return folder

    def write(
        written: PortableModel, folder: Path, quantization: str | None, python: Path | None, *_: Any
    ) -> None:
        written.check_expressible("toy", {"model.positions": ("sinusoidal",)})
        (folder / "answer.json").write_text(json.dumps(equal))

    def recognises(path: Path) -> bool:
        return (path / "answer.json").exists()

    entry = Format(recognises, lambda path: model, write, quantizations=("int8",), runtime="toy")
    monkeypatch.setitem(formats.FORMATS, "toy", entry)
    return make


@pytest.fixture
def decoded_once(monkeypatch):
    """Makes this side translate the same sentences only once, for tests in which only the toolkit's
    answer varies.
    """
    decode = certificate.decode

    def known(model: PortableModel, config: Any, request: dict, **options: Any) -> dict:
        key = json.dumps(
            [request[name] for name in ("sources", "max_length", "beam_size")] + [options]
        )
        if key not in DECODED:
            DECODED[key] = decode(model, config, request, **options)
        return DECODED[key]

    monkeypatch.setattr(certificate, "decode", known)


def flags(tmp_path: Path, output: str) -> tuple[str, ...]:
    return (
        f"--output={tmp_path / output}",
        f"--runtime={sys.executable}",
        f"--sentences={tmp_path / 'sentences'}",
    )


def error(capsys) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


def read(folder: Path) -> dict:
    return json.loads((folder / "certificate.json").read_text())


@pytest.mark.slow
def test_our_side_decodes_as_the_model_does(model, equal, tmp_path):
    with files.new_folder(tmp_path / "workdir") as folder:
        workdirs.write(model, folder)
    longest = max(map(len, model.tokenizer.source.encode(list(TEXTS))))
    limit = {"max_length_factor": 0, "max_extra_length": longest + 4}
    greedy = transformer.load(tmp_path / "workdir", beam_size=1, **limit)
    assert equal["greedy"] == [best.text for (best,) in greedy.translate(TEXTS)]
    beam = transformer.load(tmp_path / "workdir", length_penalty_form="power", **limit)
    assert equal["beam"] == [best.text for (best,) in beam.translate(TEXTS)]
    scored = beam.score(list(zip(TEXTS, equal["beam"], strict=True)))
    np.testing.assert_allclose(
        equal["scores"], [known.log_probability for known in scored], atol=1e-4
    )


def test_an_equal_model_is_imported_and_exported_with_a_certificate(model, toy, tmp_path, capsys):
    assert run(import_model, f"--from={toy()}", *flags(tmp_path, "imported")) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'imported'}\n"
    imported = read(tmp_path / "imported")
    assert (imported["verdict"], imported["reasons"], imported["sentences"]) == (
        "certified",
        [],
        len(TEXTS),
    )
    assert imported["identical_greedy"] == imported["identical_beam"] == 1
    assert imported["largest_score_difference_per_token"] < 1e-6
    assert [*imported["files"]] == ["answer.json"] and imported["versions"]["theirs"] == {
        "toy": "1"
    }
    exporting = (f"--workdir={tmp_path / 'imported'}", "--format=toy", *flags(tmp_path, "exported"))
    assert run(export, *exporting) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'exported'}\n"
    assert read(tmp_path / "exported")["verdict"] == "certified"
    assert list(read(tmp_path / "exported")["files"]) == ["answer.json"]
    assert (
        run(
            export,
            *exporting[:2],
            *flags(tmp_path, "greedy"),
            "--quantization=int8",
            "--decoding.beam_size=1",
        )
        == 0
    )
    searched = [read(tmp_path / name)["search"]["beam_size"] for name in ("exported", "greedy")]
    assert searched == [2, 1]
    assert run(export, *exporting) == 2
    assert "exists; delete it" in error(capsys)


@pytest.mark.first_case
@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"greedy": ["x"] * len(TEXTS)},
            "0.0 % of greedy translations are identical, must be 100%",
        ),
        ({"beam": ["x"] * len(TEXTS)}, "0.0 % of beam translations are identical, must be 99%"),
        ({"scores": [-1000.0] * len(TEXTS)}, "nats per token, may differ by 0.0001"),
    ],
)
def test_a_model_below_the_bars_is_marked_and_exits_with_1(toy, tmp_path, capsys, changes, reason):
    with pytest.raises(SystemExit) as ended:
        run(import_model, f"--from={toy(**changes)}", *flags(tmp_path, "imported"))
    assert ended.value.code == 1
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'imported'}\n" and reason in output.err
    assert reason in (tmp_path / "imported" / certificate.MARK).read_text()
    assert read(tmp_path / "imported")["verdict"] == "below the bars"


@pytest.mark.usefixtures("decoded_once")
def test_translations_that_reach_the_length_limit_are_left_out(toy, equal, tmp_path):
    ended = equal["ended"]
    theirs = {
        search: [
            text if has_ended else "x"
            for text, has_ended in zip(equal[search], ended[search], strict=True)
        ]
        for search in certificate.SEARCHES
    }
    assert run(import_model, f"--from={toy(**theirs)}", *flags(tmp_path, "imported")) == 0
    imported = read(tmp_path / "imported")
    assert (
        imported["verdict"] == "certified"
        and imported["identical_greedy"] == imported["identical_beam"] == 1
    )
    assert imported["at_length_limit"] == {
        search: ended[search].count(False) for search in certificate.SEARCHES
    }
    assert all(0 < count < len(TEXTS) for count in imported["at_length_limit"].values())


@pytest.mark.usefixtures("decoded_once")
def test_a_quantized_model_is_measured(toy, tmp_path):
    changes = {"greedy": ["x"] * len(TEXTS), "scores": None, "precision": "int8"}
    assert run(import_model, f"--from={toy(**changes)}", *flags(tmp_path, "imported")) == 0
    measured = read(tmp_path / "imported")
    assert (measured["verdict"], measured["precision"], measured["identical_greedy"]) == (
        "measured",
        "int8",
        0,
    )
    assert measured["largest_score_difference_per_token"] is None


@pytest.mark.slow
def test_the_summary_states_the_loss_of_a_quantized_model(toy, tmp_path, capsys):
    for language in ("de", "en"):
        (tmp_path / f"validation.{language}").write_text("".join(f"{text}\n" for text in TEXTS))
    source = toy(beam=list(TEXTS), precision="int8")  # a perfect score
    output, runtime, _ = flags(tmp_path, "imported")
    assert run(import_model, f"--from={source}", output, runtime, f"--data.path={tmp_path}") == 0
    scores = read(tmp_path / "imported")["bleu"]
    assert scores["theirs"]["bleu"] == pytest.approx(100) and scores["ours"]["bleu"] < 10
    summary = f"BLEU {scores['ours']['bleu']:.1f} here in float32, 100.0 there in int8."
    assert summary in capsys.readouterr().err


@pytest.mark.first_case
@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")]
)
def test_an_interruption_or_a_full_disk_leaves_nothing(toy, tmp_path, monkeypatch, error):
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    source = toy()
    exported = f"--workdir={tmp_path / 'imported'}", "--format=toy", *flags(tmp_path, "exported")
    assert run(import_model, f"--from={source}", *flags(tmp_path, "imported")) == 0
    for step in ("decode", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(certificate, step, fail)
            code = 130 if error is KeyboardInterrupt else 2
            assert run(import_model, f"--from={source}", *flags(tmp_path, "new")) == code
            assert run(export, *exported) == code
    assert not list(tmp_path.glob("*new*")) and not list(tmp_path.glob("*exported*"))


@pytest.mark.usefixtures("decoded_once")
def test_without_the_toolkit_a_model_is_uncertified(toy, tmp_path, capsys, monkeypatch):
    flag = f"--sentences={tmp_path / 'sentences'}"
    source = f"--from={toy()}"
    assert run(import_model, source, f"--output={tmp_path / 'none'}", "--runtime=none", flag) == 0
    assert "uncertified: --runtime=none." in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(runtimes, "REPOSITORY", tmp_path / "new clone")
        assert run(import_model, source, f"--output={tmp_path / 'bare'}", flag) == 0
    assert "bin/python is missing; make interop, or name a Python" in capsys.readouterr().err
    (tmp_path / "toy.py").write_text("import no_such_toolkit\n")
    assert run(import_model, source, *flags(tmp_path, "missing")) == 0
    (tmp_path / "toy.py").write_text(
        "import sys; print('it decodes otherwise', file=sys.stderr); sys.exit(3)\n"
    )
    assert run(import_model, source, *flags(tmp_path, "otherwise")) == 0
    for name in ("none", "bare", "missing", "otherwise"):
        assert read(tmp_path / name)["verdict"] == "uncertified"
    assert read(tmp_path / "otherwise")["reasons"] == ["it decodes otherwise"]
    assert "No module named 'no_such_toolkit'" in read(tmp_path / "missing")["reasons"][0]


@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise ValueError('a variant')", "cannot decode it: ValueError: a variant"),
        ("import os; os.abort()", "cannot decode it: exit code -6"),
        (
            'print(\'{"greedy": "abcde", "beam": "abcde", "scores": [0, 0, NaN, 0, 0], \'\n'
            "'\"versions\": {}}')",
            "has scores that are NaN or infinite",
        ),
    ],
)
def test_a_toolkit_that_cannot_read_a_variant_leaves_an_import_uncertified(
    toy, tmp_path, capsys, program, reason
):
    source, workdir = f"--from={toy()}", tmp_path / "imported"
    (tmp_path / "toy.py").write_text(f"{program}\n")
    assert run(import_model, source, *flags(tmp_path, "imported")) == 0
    certified = read(workdir)
    assert (certified["verdict"], certified["reasons"]) == (
        "uncertified",
        [f"the other toolkit {reason}"],
    )
    # But what this project wrote, the toolkit must read.
    assert run(export, f"--workdir={workdir}", "--format=toy", *flags(tmp_path, "exported")) == 2
    assert reason in error(capsys)
    assert not list(tmp_path.glob("*exported*"))


@pytest.mark.first_case
@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('a banner')", "the answer breaks the protocol (JSONDecodeError"),
        ("print('[]')", "the answer breaks the protocol (TypeError"),
        ("print('{}')", "the answer breaks the protocol (KeyError"),
        ('print(\'{"greedy": [], "beam": [], "scores": null}\')', "not 5 translations"),
        (
            'print(\'{"greedy": "abcde", "beam": "abcde", "scores": null}\')',
            "(KeyError: 'versions')",
        ),
    ],
)
def test_a_toolkit_that_breaks_the_protocol_leaves_a_model_uncertified(
    toy, tmp_path, program, reason
):
    (tmp_path / "toy.py").write_text(f"{program}\n")
    assert run(import_model, f"--from={toy()}", *flags(tmp_path, "imported")) == 0
    command = run(
        export, f"--workdir={tmp_path / 'imported'}", "--format=toy", *flags(tmp_path, "exported")
    )
    assert command == 0
    for name in ("imported", "exported"):
        certified = read(tmp_path / name)
        assert certified["verdict"] == "uncertified" and reason in certified["reasons"][0]


@pytest.mark.usefixtures("decoded_once")
def test_a_runtime_that_cannot_start_leaves_a_model_uncertified(toy, tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"no program")
    program.chmod(0o755)
    output, _, texts = flags(tmp_path, "imported")
    assert run(import_model, f"--from={toy()}", output, texts, f"--runtime={program}") == 0
    assert read(tmp_path / "imported")["reasons"] == [f"{program}: Exec format error"]


def test_mistakes_are_errors_of_one_line_before_work_begins(
    model, toy, tmp_path, capsys, monkeypatch
):
    source, output = f"--from={toy()}", f"--output={tmp_path / 'new'}"
    (tmp_path / "empty").mkdir()
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "model.bin.gz").touch()
    (tmp_path / "blank").write_text(" \n\n")
    (tmp_path / "latin").write_bytes(b"a dog\na\xfcn\n")
    # nothing begins
    monkeypatch.setitem(formats.FORMATS, "toy", formats.FORMATS["toy"]._replace(read=None))
    cases = [
        (("--from=/nothing", output), "--from=/nothing: no such file or folder"),
        (
            (f"--from={tmp_path / 'empty'}", output),
            "is of no known format; name the folder or file of one model",
        ),
        ((f"--from={tmp_path / 'packed'}", output), "unpack model.bin.gz first, with gunzip"),
        ((source, f"--output={tmp_path / 'empty'}"), "exists; delete it"),
        ((source, output, "--runtime=/no/python"), "--runtime=/no/python: no such program"),
        ((source, output, "--runtime=none", "--sentences=/no/file"), "/no/file: No such file"),
        (
            (source, output, "--runtime=none", f"--sentences={tmp_path / 'blank'}"),
            "blank: has no sentence",
        ),
        (
            (source, output, f"--sentences={tmp_path / 'latin'}"),
            "latin, line 2: not UTF-8 (byte 2)",
        ),
        ((source, f"--output={tmp_path / 'empty'}", "--sentences=/no/file"), "exists; delete it"),
        ((source, output, "--data.path=x", "--data.nothing=1"), "--data.nothing=1"),
    ]
    for given, message in cases:
        assert run(import_model, *given) == 2
        assert message in error(capsys)
    (tmp_path / "empty" / "pytorch_model.bin").touch()
    assert run(import_model, f"--from={tmp_path / 'empty'}", output) == 2
    assert "convert it to safetensors" in error(capsys)
    with files.new_folder(tmp_path / "rotary") as folder:
        rotary = random_model(model.tokenizer, model__positions="rotary")
        workdirs.write(rotary, folder)
    cases = [
        (("--format=toys",), "--format=toys: must be"),
        (("--format=toy", "--quantization=int4"), "--quantization=int4: must be int8"),
        (("--format=toy",), "--format=toy: cannot express model.positions=rotary, only sinusoidal"),
    ]
    for given, message in cases:
        assert run(export, f"--workdir={tmp_path / 'rotary'}", output, *given) == 2
        assert message in error(capsys)
    assert not list(tmp_path.glob("*new*"))


@pytest.mark.usefixtures("decoded_once")
def test_languages_are_asked_for_if_the_files_do_not_name_them(
    model, toy, tmp_path, capsys, monkeypatch
):
    config = {key: value for key, value in model.config.items() if "language" not in key}
    unnamed = model._replace(config=config)
    monkeypatch.setitem(
        formats.FORMATS, "toy", formats.FORMATS["toy"]._replace(read=lambda path: unnamed)
    )
    source = f"--from={toy()}"
    assert run(import_model, source, *flags(tmp_path, "new")) == 2
    assert "give --data.source_language=CODE --data.target_language=CODE" in error(capsys)
    languages = ("--data.source_language=pt", "--data.target_language=en", "--data.path=text")
    assert run(import_model, source, *flags(tmp_path, "new"), *languages) == 0
    written = workdirs.from_workdir(tmp_path / "new", "best", 1).config
    assert [written[f"data.{key}"] for key in ("source_language", "path")] == ["pt", "text"]


def test_sentences_are_bundled_for_five_languages(model, monkeypatch):
    bundled = {}
    for language in ("en", "de", "pt", "fr", "es"):
        config = certificate.with_values(
            certificate.float32_config(model, COMMON_SEARCH), {"data.source_language": language}
        )
        config = certificate.with_values(config, workdirs.NO_DATA)
        bundled[language] = sentences.default_sentences(config).texts
        assert len(bundled[language]) == 8 and all(len(text) > 20 for text in bundled[language])
    assert len({text for texts in bundled.values() for text in texts}) == 40
    config = certificate.with_values(config, {"data.source_language": "ar"})
    with pytest.raises(
        runtimes.Unavailable, match="no sentence in ar is bundled; name some with --sentences=FILE"
    ):
        sentences.default_sentences(config)


def test_the_validation_split_is_used_with_its_references(model, equal, tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"validation.{language}").write_text("".join(f"{text}\n" for text in TEXTS))
    config = model.config | workdirs.NO_DATA | {"data.path": str(tmp_path)}
    full = certificate.float32_config(model._replace(config=config), COMMON_SEARCH)
    valid = sentences.default_sentences(full)
    assert valid.texts == valid.references == list(TEXTS)
    request = {"beam_size": 2, "length_penalty": 1.0, "max_length": 9, "quantization": None}
    side = equal | {
        "beam": list(TEXTS),
        "seconds": 1.0,
        "ended": {name: [True] * len(TEXTS) for name in certificate.SEARCHES},
        "references": [{"pieces": []}] * len(TEXTS),
    }
    compared = certificate.compare(valid, request, side, side, full)
    assert (
        compared["bleu"]["ours"]["bleu"] == compared["bleu"]["theirs"]["bleu"] == pytest.approx(100)
    )
    compared = certificate.compare(valid, request, side, side | {"greedy": None}, full)
    assert (compared["identical_greedy"], compared["identical_beam"]) == (None, 1.0)
    none = {search: [False] * len(TEXTS) for search in certificate.SEARCHES}
    with pytest.raises(
        runtimes.Unavailable, match="most translations here reach the length limit of 9 tokens"
    ):
        certificate.compare(valid, request, side | {"ended": none}, side, full)


def test_sentences_that_cannot_be_compared_are_left_out(model):
    config = certificate.float32_config(model, COMMON_SEARCH)
    given = sentences.Sentences("a file", ["", "dog", "dog " * 10_000, "red"], ["a", "b", "c", "d"])
    usable = sentences.usable(given, model, config)
    assert (usable.texts, usable.references) == (["dog", "red"], ["b", "d"])
    with pytest.raises(runtimes.Unavailable, match="a file: no sentence has 1 to 63 tokens"):
        sentences.usable(sentences.Sentences("a file", [""]), model, config)


def test_outputs_end_where_tables_of_positions_may(model):
    config = certificate.float32_config(model, COMMON_SEARCH)
    text = "a " * 30 + "red"
    assert (
        60 < len(model.tokenizer.source.encode([text])[0]) < 64 == config.decoding.max_source_length
    )
    assert certificate.search_settings([text], model, config)["max_length"] == 63
    short = certificate.search_settings(["dog"], model, config)["max_length"]
    assert short == len(model.tokenizer.source.encode(["dog"])[0]) + 4


def test_the_origin_has_a_digest_of_each_file_and_the_licence(tmp_path):
    (tmp_path / "LICENSE").write_text("free\n")
    (tmp_path / "model.npz").write_bytes(b"abc")
    origin = import_model.origin_of("marian", tmp_path)
    assert (origin["format"], origin["licence"]) == ("marian", "free\n")
    assert sorted(origin["files"]) == ["LICENSE", "model.npz"]
    assert (
        origin["files"]["model.npz"]
        == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert [*import_model.origin_of("marian", tmp_path / "model.npz")["files"]] == ["model.npz"]


def test_links_and_pipes_are_not_part_of_the_origin(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_text("password")
    (folder / "LICENSE").symlink_to("../secret")
    (folder / "text").write_text("password")
    (folder / "COPYING").symlink_to("text")
    os.mkfifo(folder / "pipe")
    origin = import_model.origin_of("marian", folder)
    assert origin["licence"] is None and sorted(origin["files"]) == ["COPYING", "text"]
