"""Reranking by a reverse model and a language model, compared with their own scores."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

import transformer
from tests.checkpoints.workdirs import SOURCES, make_workdir, run
from transformer import evaluate, translate
from transformer.checkpoints import loaded_models
from transformer.decoding import ensemble
from transformer.decoding.translation import EMPTY
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS

pytestmark = pytest.mark.slow  # their workdirs take twenty seconds; test_tune_rerank.py is fast

LANGUAGE_MODEL = {
    "training.objective": "causal_lm",
    "data.source_language": "",
    "training.eval_bleu": "false",
}
CTC = {"training.objective": "ctc", "decoding.strategy": "ctc", "training.label_smoothing": "0.0"}
LANGUAGE_MODEL |= {"checkpoint.best_metric": "loss"}
REVERSED = {"data.source_language": "out", "data.target_language": "in"}
TEXTS = [*SOURCES, "", "1 1 1 1 2 2", "5 4 3 2 1 7"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_workdir(folder / "forward")
    make_workdir(folder / "reverse", seed=1, **REVERSED, **{"tokenizer.vocab_size": "14"})
    make_workdir(folder / "language", seed=2, **LANGUAGE_MODEL)
    make_workdir(folder / "short", seed=1, **REVERSED, **{"decoding.max_source_length": "4"})
    make_workdir(folder / "ctc", **CTC)
    make_workdir(folder / "other", **LANGUAGE_MODEL | {"data.target_language": "in"})
    return folder


def language_log_p(folder: Path, text: str) -> float:
    """Returns the log-probability of a text by a language model, from one pass over its tokens."""
    models = loaded_models.load([str(folder)], "best", 1, [])
    (model,) = ensemble.build_models(models.graphs, jax.tree.map(jnp.asarray, models.parameters))
    tokens = np.array([[*models.tokenizer.target.encode([text])[0], EOS]])
    log_p = jax.nn.log_softmax(model(jnp.array([[BOS, *tokens[0, :-1]]])))
    return float(np.take_along_axis(np.asarray(log_p), tokens[:, :, None], axis=2).sum())


def test_hypotheses_are_in_the_order_of_all_models_scores(runs):
    weights = {"reverse": 7, "language": -4, "forward": 0.5}
    flag = ",".join(f"{runs / name}:{weight}" for name, weight in weights.items())
    model, reverse = (
        transformer.load(runs / "forward", beam_size=6),
        transformer.load(runs / "reverse"),
    )
    reranked = transformer.load(runs / "forward", beam_size=6, rerank=flag).translate(
        TEXTS, n_best=4
    )
    firsts = 0
    for text, beam, found in zip(TEXTS, model.translate(TEXTS, n_best=6), reranked, strict=True):
        if not text:
            assert found == [EMPTY] * 4
            continue
        totals = []
        for hypothesis in beam:
            others = [reverse.score([(hypothesis.text, text)])[0].log_probability]
            others += [language_log_p(runs / "language", hypothesis.text)]
            others += [model.score([(text, hypothesis.text)])[0].log_probability]
            total = hypothesis.score + np.dot(list(weights.values()), others) / (
                len(text.split()) + 1
            )
            totals.append((total, hypothesis.text))
        expected = sorted(totals, reverse=True)[:4]
        assert [best.text for best in found] == [known for _, known in expected]
        np.testing.assert_allclose(
            [best.score for best in found], [score for score, _ in expected], rtol=1e-4
        )
        assert {best.score_kind for best in found} == {"reranked"}
        firsts += found[0].text != beam[0].text
    assert firsts > 1


def texts_of(translations) -> list[list[str]]:
    return [[best.text for best in row] for row in translations]


def test_without_weight_nothing_changes_and_neighbours_do_not_matter(runs):
    plain = transformer.load(runs / "forward", beam_size=4).translate(TEXTS, n_best=2)
    for weight in (0, 20):
        model = transformer.load(
            runs / "forward", beam_size=4, rerank=f"{runs / 'reverse'}:{weight}"
        )
        found = model.translate(TEXTS, n_best=2)
        assert (texts_of(found) == texts_of(plain)) == (weight == 0)
        for text, together in zip(TEXTS, found, strict=True):
            (single,) = model.translate([text], n_best=2)
            assert [best.text for best in single] == [best.text for best in together]
            np.testing.assert_allclose(
                [x.score for x in single], [x.score for x in together], atol=1e-4
            )


def test_the_commands_take_the_key(runs, monkeypatch, capsys):
    rerank = f"--decoding.rerank={runs / 'reverse'}:10,{runs / 'language'}:-2"
    flags = [f"--workdir={runs / 'forward'}", rerank, "--decoding.beam_size=4"]
    assert run(evaluate, *flags, "--split=valid") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["decoding"]["rerank"] == f"{runs / 'reverse'}:10,{runs / 'language'}:-2"
    assert (
        Path(result["hypotheses"]).name
        == "valid-step20-beam_size4-rerankreverse:10+language:-2.hypotheses.txt"
    )
    hypotheses = Path(result["hypotheses"]).read_text().splitlines()
    text = "".join(f"{line}\n" for line in SOURCES).encode()
    outputs = {}
    for name, chosen in (("reranked", flags), ("plain", [flags[0], flags[2]])):
        monkeypatch.setattr(
            sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text), isatty=lambda: False)
        )
        assert run(translate, *chosen) == 0
        outputs[name] = capsys.readouterr().out.splitlines()
    assert outputs["reranked"] == hypotheses != outputs["plain"]


def test_texts_too_long_for_a_model_keep_their_order(runs, monkeypatch):
    logged = []
    monkeypatch.setattr(
        logging, "warning", lambda message, *values: logged.append(message % values)
    )
    plain = transformer.load(runs / "forward", beam_size=4)
    model = transformer.load(runs / "forward", beam_size=4, rerank=f"{runs / 'short'}:-50")
    texts = ["1 2 3 4 5 6 7 1 2 3", "4 5", "6", "3", "7 1", "2 2"]
    (long, *short), (long_before, *short_before) = (
        texts_of(x.translate(texts, n_best=4)) for x in (model, plain)
    )
    assert long == long_before and short != short_before
    assert logged == [f"{runs / 'short'}: does not rerank 1 of 6 texts, which are too long for it."]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{}/reverse", "^decoding.rerank={}/reverse: must be WORKDIR:WEIGHT with a number"),
        ("{}/reverse:", "must be WORKDIR:WEIGHT"),
        ("{}/reverse:nan", "must be WORKDIR:WEIGHT"),
        (":1", "^decoding.rerank=:1: must be WORKDIR:WEIGHT"),
        ("{}/revers:1", "^decoding.rerank={}/revers: no such folder; did you mean {}/reverse"),
        (
            "{}/ctc:1",
            "^decoding.rerank={}/ctc: a model of training.objective=ctc from 'in' to 'out'; "
            "must be",
        ),
        (
            "{}/other:1",
            "^decoding.rerank={}/other: .*causal_lm from '' to 'in'; must be .* "
            "or a language model of out",
        ),
    ],
)
def test_wrong_values_are_refused(runs, value, message):
    with pytest.raises(UserError, match=message.replace("{}", str(runs))):
        transformer.load(runs / "forward", rerank=value.replace("{}", str(runs)))


def test_settings_that_do_not_fit_are_refused(runs):
    flag = f"{runs / 'reverse'}:1"
    for settings in ({"strategy": "sample"}, {"strategy": "mbr"}, {"beam_size": 1}):
        with pytest.raises(UserError, match="models rerank the hypotheses of a beam"):
            transformer.load(runs / "forward", rerank=flag, **settings)
    with pytest.raises(UserError, match="^rerank: cannot be changed in a loaded model"):
        transformer.load(runs / "forward").with_decoding(rerank=flag)
    with pytest.raises(UserError, match="^n_best=3: must be at most decoding.beam_size=2"):
        transformer.load(runs / "forward", rerank=flag).translate(["1"], n_best=3)


def test_all_programs_of_the_search_are_compiled_ahead(runs):
    model = transformer.load(runs / "forward", rerank=f"{runs / 'reverse'}:1")
    model.compile()
    known = set(model.decoder.programs.compiled)
    model.translate(TEXTS)
    assert known == set(model.decoder.programs.compiled)
