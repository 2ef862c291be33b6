"""Preparation of a run: the facts that its processes compare."""

import jax
import ml_collections
import pytest

from tests.data.files import text_config, write_pairs
from tests.training.tiny import flags, tiny_config
from transformer import train
from transformer.config import loading
from transformer.data.corpus import corpus
from transformer.data.tokenizers import tokenizer
from transformer.distributed import coordination
from transformer.run import checks, preparation
from transformer.support.environment import describe_environment
from transformer.support.errors import UserError


def test_processes_compare_configuration_code_versions_and_data(tmp_path, monkeypatch):
    facts = {}
    monkeypatch.setattr(
        coordination, "require_same", lambda what, found, seconds: facts.update(found())
    )
    arguments = train.make_parser().parse(flags(tmp_path / "run"))
    config = loading.load_file(arguments.config, arguments.overrides)
    with preparation.open_workdir(tmp_path / "run", config) as (workdir, _):
        prepared = preparation.prepare(config, workdir)
    assert facts["config.model.d_ff"] == 16 and facts["the version of jax"] == jax.__version__
    assert facts["the commit"] == describe_environment()["commit"]
    assert facts["the vocabulary"] == prepared.tokenizer.fingerprint
    assert facts["the training corpus"] == prepared.corpus.report["digest"]
    assert facts["the validation corpus"] == prepared.validation.batches[""].corpus.report["digest"]
    # Each host may have its own cache.
    assert "config.data.cache_dir" not in facts


def test_spans_are_masked_in_texts_without_tags():
    mixture = ("label=a source_tag=<a>", "label=b source_language=de")
    known = {"training__objective": "span_corruption", "data__target_language": ""}
    with pytest.raises(UserError, match="the corpus a of .*: span_corruption predicts whole texts"):
        checks.check_listed_corpora(tiny_config(**known, data__mixture=mixture))


def test_language_models_of_several_languages_need_no_tag():
    mixture = ("label=a target_language=de", "label=b target_language=fr")
    known = {
        "training__objective": "causal_lm",
        "data__source_language": "",
        "data__mixture": mixture,
    }
    checks.check_listed_corpora(tiny_config(**known, checkpoint__best_metric="loss"))
    with pytest.raises(
        UserError, match="nothing tells the model to translate into fr; set data.source_tag"
    ):
        checks.check_listed_corpora(tiny_config(data__mixture=mixture))


def test_a_changed_file_changes_the_digest_of_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "__file__", str(tmp_path / "run" / "checks.py"))
    file, codes = tmp_path / "model" / "attention.py", []
    file.parent.mkdir()
    for text in ("x = 1", "x = 2"):
        file.write_text(text)
        codes.append(
            checks.process_facts(ml_collections.FrozenConfigDict(tiny_config()))["the code"]
        )
    assert codes[0] != codes[1]


def test_mistakes_in_the_data_and_a_missing_test_split_are_warnings(tmp_path, caplog):
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.kind = "word"
    write_pairs(tmp_path, "train", [("a dog", "ein Hund"), ("a cat", "a cat")])
    for split in ("valid", "test"):
        write_pairs(tmp_path, split, [("dog a", "Hund ein")])
    made = tokenizer.prepare(config, tmp_path)
    splits = [corpus.prepare(config, made, split) for split in ("train", "valid")]
    arguments = ml_collections.FrozenConfigDict(config), made, splits[0], splits[1:]
    caplog.set_level("WARNING", logger="absl")  # earlier tests may have made it lower
    caplog.clear()
    checks.warn_about_data(*arguments)
    (equal,) = caplog.messages
    assert equal.startswith("1 of 2 sampled training pairs have equal sides")
    write_pairs(tmp_path, "test", [("a dog ", "ein Hund"), ("cat a", "cat a")])
    checks.warn_about_data(*arguments)
    leaked = caplog.messages[-1]
    assert "test.de: 1 pair of 2 and 1 source are in the training data, such as " in leaked
    assert "test.en, line 1: 'a dog ein Hund'" in leaked
    (tmp_path / "test.de").write_text("ein Hund\n")
    checks.warn_about_data(*arguments)
    assert (
        "test.en has 2 lines and " in caplog.messages[-1]
        and "test.de has 1: " in caplog.messages[-1]
    )
    (tmp_path / "test.de").unlink()
    checks.warn_about_data(*arguments)
    missing = caplog.messages[-1]
    assert (
        missing.startswith("data.test_split=test: no test.de or test.de.gz in ")
        and "evaluate --split=test" in missing
    )
    assert all(record.levelname == "WARNING" for record in caplog.records)
