"""Training, evaluation and translation with data.target_form=tree, on trees of a small grammar."""

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest

import transformer
from configs import parsing
from scripts import get_data
from tests.checkpoints.workdirs import make_workdir, run
from tests.decoding.trees.grammar import random_treebank
from transformer import evaluate, translate
from transformer.config import loading
from transformer.config.keys import flatten, validated_config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.trees.linearized import fits
from transformer.support.errors import UserError
from transformer.support.special_tokens import UNK
from transformer.training.held_out import metric_names

SENTENCE = "the dog ( near Ann ) sleeps ."


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """The workdir of a run with random parameters."""
    folder = tmp_path_factory.mktemp("parsing")
    treebank = folder / "a.mrg"
    treebank.write_text(random_treebank(seed=0, count=12))
    flags = [f"--trees={treebank}", f"--validation={treebank}", f"--output={folder / 'trees'}"]
    assert run(get_data, *flags) == 0
    changes = {
        "data.source": "text",
        "data.path": str(folder / "trees"),
        "data.source_language": "en",
        "data.target_language": "trees",
        "data.target_form": "tree",
        "data.valid_split": "validation",
        "tokenizer.kind": "bpe",
        "tokenizer.vocab_size": "130",
        "tokenizer.user_symbols": str(parsing.SYMBOLS),
        "data.max_length": "64",
        "decoding.max_source_length": "64",
    }
    return make_workdir(folder / "run", **changes)


def test_each_symbol_is_one_token(workdir):
    config = loading.load(workdir)
    vocabulary = Tokenizer.load(workdir, config).target
    trees = (workdir.parent / "trees" / "train.trees").read_text().splitlines()
    every = " ".join(symbol.removeprefix("\u2581") for symbol in parsing.SYMBOLS)
    for text in [*trees, every]:
        (tokens,) = vocabulary.encode([text])
        assert [vocabulary.pieces[token] for token in tokens] == [
            f"\u2581{symbol}" for symbol in text.split()
        ]
        assert UNK not in tokens and vocabulary.decode([tokens]) == [text]


def test_evaluation_has_the_scores_of_trees(workdir, capsys):
    flags = [f"--workdir={workdir}", "--split=valid", "--decoding.well_formed=true"]
    assert run(evaluate, *flags) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["bracket_errors"] == 0 <= result["bracket_f1"] == result["bracket_f1_with_errors"]
    assert {"bleu", "chrf", "exact_match", "bracket_recall"} <= result.keys()
    sources = (workdir.parent / "trees" / "validation.en").read_text().splitlines()
    with open(result["hypotheses"], encoding="utf-8") as file:
        for source, line in zip(sources, file, strict=True):
            assert fits(line.split(), len(source.split()))


@pytest.mark.parametrize("well_formed", ["false", "true"])
def test_translate_prints_a_tree_of_each_sentence(workdir, well_formed, capfdbinary, monkeypatch):
    text = io.BytesIO(f"{SENTENCE}\n\nAnn\n".encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=text, isatty=lambda: False))
    assert run(translate, f"--workdir={workdir}", f"--decoding.well_formed={well_formed}") == 0
    output, log = (text.decode() for text in capfdbinary.readouterr())
    tree, empty, short = output.splitlines()
    words = re.findall(r"\(\S+ ([^() ]+)\)", tree)
    assert " ".join(words) == "the dog -LRB- near Ann -RRB- sleeps ."
    assert tree.startswith("(TOP ")
    assert empty == "" and short.endswith("Ann)" + ")" * (short.count("(") - 1))
    assert ("were not trees of their sentences" in log) == (well_formed == "false")


def test_in_python_outputs_are_linearized(workdir):
    model = transformer.load(workdir, well_formed=True, beam_size=2)
    (translations,) = model.translate(["the dog sleeps ."], n_best=2)
    assert all(fits(best.text.split(), 4) for best in translations)
    with pytest.raises(UserError, match="well_formed=True: takes no required and no banned"):
        model.translate(["the dog sleeps ."], required=[["XX"]])


def test_the_constraint_is_allowed_for_the_configs_and_an_unknown_form_is_not():
    for row in parsing.ROWS:
        flat = flatten(parsing.get_config(row)) | {"decoding.well_formed": True}
        validated_config(flat)
    with pytest.raises(UserError, match="must be one of text, tree; did you mean tree"):
        validated_config(flat | {"data.target_form": "treee"})


def test_only_runs_on_trees_select_by_brackets(workdir):
    config = loading.load(workdir)
    assert "bracket_f1_with_errors" in metric_names(config)
    text = loading.with_values(config, {"data.target_form": "text"})
    assert not [name for name in metric_names(text) if "bracket" in name]
