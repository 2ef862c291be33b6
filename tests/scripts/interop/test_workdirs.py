"""Portable models as workdirs, which all commands take, and back."""

import json
from pathlib import Path

import numpy as np
import pytest

import transformer
from configs import base
from scripts import align, average, compare, export, import_model, report, sweep
from scripts.interop import hugging_face_export, workdirs
from scripts.interop.portable import PortableModel
from tests.checkpoints.saved_runs import refusal
from tests.checkpoints.workdirs import run
from tests.scripts.interop import hugging_face_folders
from tests.scripts.interop.portable import TEXTS, make_tokenizer, random_model
from transformer import evaluate, train, translate
from transformer.config import loading
from transformer.decoding.shortlist import Shortlist
from transformer.support import files
from transformer.workdir import Workdir

ORIGIN = {"format": "marian", "files": {"model.npz": "0" * 64}, "licence": "CC-BY 4.0"}


@pytest.fixture(scope="module")
def model() -> PortableModel:
    tokenizer = make_tokenizer(28)
    shortlist = Shortlist(
        np.arange(56, dtype=np.int32).reshape(28, 2) % 28, np.arange(4, 9), 28, is_shared=True
    )
    return random_model(tokenizer)._replace(shortlist=shortlist)


def write(model: PortableModel, path: Path) -> Path:
    with files.new_folder(path) as folder:
        workdirs.write(model, folder, ORIGIN)
    return path


@pytest.fixture(scope="module")
def workdir(model, tmp_path_factory) -> Path:
    return write(model, tmp_path_factory.mktemp("imported") / "model")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    """Files of sources and references."""
    folder = tmp_path_factory.mktemp("text")
    for language in ("de", "en"):
        for stem in ("train", "valid", "test"):
            (folder / f"{stem}.{language}").write_text("".join(f"{text}\n" for text in TEXTS * 2))
    return folder / "valid.de", folder / "valid.en"


def test_a_model_comes_back_from_its_workdir(model, workdir):
    back = workdirs.from_workdir(workdir, "best", 1)
    assert list(back.parameters) == list(model.parameters)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(back.parameters[name], array)
    assert model.config.items() <= back.config.items()
    assert back.config["tokenizer.vocab_size"] == 28
    assert back.tokenizer.fingerprint == model.tokenizer.fingerprint
    assert back.shortlist.fingerprint == model.shortlist.fingerprint
    assert back.settings == loading.keys.flatten(loading.load(workdir))


def test_two_vocabularies_have_a_file_each(tmp_path):
    model = random_model(make_tokenizer(28, 29), model__share_embeddings="target")
    back = workdirs.from_workdir(write(model, tmp_path / "two"), "last", 1)
    assert back.tokenizer.vocab_sizes == (28, 29) and not back.settings["tokenizer.shared"]
    assert back.shortlist is None and back.parameters.keys() == model.parameters.keys()


def test_the_workdir_records_where_the_model_came_from(workdir):
    assert json.loads((workdir / "parent.json").read_text()) == ORIGIN
    assert {"commit", "packages", "resumed"} <= json.loads(
        (workdir / "environment.json").read_text()
    ).keys()
    assert Workdir(workdir).is_complete()


@pytest.mark.slow
def test_it_translates_scores_and_shows_its_attention(workdir, pair, capsys, monkeypatch):
    loaded = transformer.load(workdir)
    assert loaded.attention(TEXTS[0], TEXTS[1]).cross.shape[:2] == (1, 2)
    (best,) = loaded.translate([TEXTS[0]])[0]
    for flags in ((), ("--decoding.shortlist=2",)):
        with pair[0].open() as sources:
            monkeypatch.setattr("sys.stdin", sources)
            assert run(translate, f"--workdir={workdir}", *flags) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2 * len(TEXTS) and (flags or lines[0] == best.text)


@pytest.mark.slow
def test_it_is_evaluated_compared_and_reported(model, workdir, pair, tmp_path, capsys):
    source, reference = pair
    other = write(random_model(model.tokenizer, seed=1), tmp_path / "other")
    evaluations = []
    for path in (workdir, other, f"{workdir},{other}"):  # the last is an ensemble
        assert (
            run(evaluate, f"--workdir={path}", f"--source={source}", f"--reference={reference}")
            == 0
        )
        result = json.loads(capsys.readouterr().out)
        assert (result["step"], result["sentences"]) == (workdirs.STEP, 2 * len(TEXTS))
        evaluations.append(result["hypotheses"].replace(".hypotheses.txt", ".json"))
    assert run(compare, *evaluations[:2], "--format=json") == 0
    assert "bleu" in capsys.readouterr().out
    assert run(report, str(workdir), f"--output={tmp_path / 'report.html'}") == 0
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_it_aligns_and_averages(workdir, tmp_path, capsys, monkeypatch):
    (tmp_path / "pairs").write_text(f"{TEXTS[0]} ||| {TEXTS[1]}\n")
    with (tmp_path / "pairs").open() as pairs:
        monkeypatch.setattr("sys.stdin", pairs)
        assert run(align, f"--workdir={workdir}") == 0
    assert capsys.readouterr().out.count("-") == len(TEXTS[1].split())
    assert run(average, f"--workdir={workdir}", "--average=1", f"--output={tmp_path / 'mean'}") == 0


def test_what_needs_text_asks_for_it(workdir, tmp_path, capsys):
    assert run(evaluate, f"--workdir={workdir}") == 2
    assert run(train, f"--config={workdir}/config.json", f"--workdir={tmp_path / 'new'}") == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    for line in errors:
        assert (
            "data.path is empty: data.source=text needs the folder with the STEM.LANG[.gz] files"
            in line
        )


@pytest.mark.slow
def test_a_run_starts_from_it_and_decodings_are_swept(model, pair, tmp_path):
    texts = {"data.path": str(pair[0].parent), "data.test_split": "test"}
    workdir = write(model._replace(config=model.config | texts), tmp_path / "with-text")
    settings = {
        "training.steps": 2,
        "batch.tokens": 2048,
        "training.init_from": workdir,
        "training.samples": 0,
    }
    flags = (f"--config.{key}={value}" for key, value in settings.items())
    assert (
        run(train, f"--config={workdir}/config.json", f"--workdir={tmp_path / 'tuned'}", *flags)
        == 0
    )
    parent = json.loads((tmp_path / "tuned" / "parent.json").read_text())
    assert (parent["step"], parent["not_taken"]) == (workdirs.STEP, [])
    file = tmp_path / "beams.py"
    file.write_text(
        "def get_sweep(sweep):\n"
        '    trials = sweep.product({"decoding.beam_size": [1, 2]})\n'
        '    return sweep.listed(trials, objective="bleu", pruner=None)\n'
    )
    assert (
        run(sweep, f"--from={workdir}", f"--sweep={file}", f"--workdir={tmp_path / 'sweep'}") == 0
    )


def test_transformers_leaves_the_start_token_out_of_decoded_texts(model, tmp_path):
    hugging_face_export.write(model, tmp_path, None)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["bos_token"] == "<s>"


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_model_of_hugging_face_is_fine_tuned_and_goes_back(
    interop_python, tmp_path, capsys, is_shared
):
    hugging_face_folders.write_folder(tmp_path / "opus", is_shared=is_shared)
    for language, texts in (
        ("en", hugging_face_folders.ENGLISH),
        ("de", hugging_face_folders.GERMAN),
    ):
        for stem in ("train", "valid", "test"):
            (tmp_path / f"{stem}.{language}").write_text(
                "".join(f"{text}\n" for text in texts * 10)
            )
    data = [
        f"--data.path={tmp_path}",
        *(f"--data.{stem}_split={stem}" for stem in ("train", "valid", "test")),
    ]
    flags = (
        "--data.source_language=en",
        "--data.target_language=de",
        f"--runtime={interop_python}",
        *data,
    )
    imported, tuned, exported = (tmp_path / name for name in ("imported", "tuned", "exported"))
    assert run(import_model, f"--from={tmp_path / 'opus'}", f"--output={imported}", *flags) == 0
    settings = {
        "training.steps": 100,
        "training.init_from": imported,
        "batch.tokens": 2048,
        "training.samples": 0,
    }
    settings |= {
        "optimizer.schedule": "constant",
        "optimizer.learning_rate": 1e-2,
        "optimizer.warmup_steps": 1,
    }
    overrides = (f"--config.{key}={value}" for key, value in settings.items())
    assert run(train, f"--config={imported}/config.json", f"--workdir={tuned}", *overrides) == 0
    capsys.readouterr()
    results = []
    for workdir in (imported, tuned):
        assert run(evaluate, f"--workdir={workdir}", "--split=test") == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[1]["chrf"] > results[0]["chrf"]
    runtime = f"--runtime={interop_python}"
    assert (
        run(export, f"--workdir={tuned}", "--format=huggingface", f"--output={exported}", runtime)
        == 0
    )
    assert json.loads((exported / "certificate.json").read_text())["verdict"] == "certified"


def test_parameters_that_do_not_fit_are_refused(model, tmp_path):
    def error(**parameters) -> str:
        arrays = {
            name: array
            for name, array in (model.parameters | parameters).items()
            if array is not None
        }
        return refusal(write, model._replace(parameters=arrays), tmp_path / "refused")

    table = "decoder.embedding.table"
    assert f"{table}: has (3, 8), must have (28, 8)" in error(
        **{table: np.zeros((3, 8), np.float32)}
    )
    assert f"{table}: has none, must have (28, 8)" in error(**{table: None})
    assert "extra: has (2,), must have none" in error(extra=np.zeros(2, np.float32))
    wrong = model._replace(config=model.config | {"model.num_heads": 3})
    assert "d_model must be divisible by num_heads" in refusal(write, wrong, tmp_path / "refused")
    assert not list(tmp_path.iterdir())


def test_a_setting_that_a_format_cannot_express_is_named(model):
    model.check_expressible("toy", {"model.positions": ("sinusoidal",), "model.num_heads": (2, 4)})
    rotary = model._replace(config=model.config | {"model.positions": "rotary"})
    expected = "--format=toy: cannot express model.positions=rotary, only sinusoidal, learned"
    assert (
        refusal(rotary.check_expressible, "toy", {"model.positions": ("sinusoidal", "learned")})
        == expected
    )


def test_the_settings_are_those_of_the_configuration(model):
    defaults = loading.keys.flatten(base.get_config())
    assert model.settings == defaults | model.config
