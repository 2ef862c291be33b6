"""Validation: the loss of the whole split, computed in NumPy, and the sentences decoded for BLEU."""

from types import SimpleNamespace

import jax
import ml_collections
import numpy as np
import pytest

from tests.data.files import pair_tokens
from tests.model.models import logits_of
from tests.training.tiny import distance, flags
from transformer.config import loading
from transformer.data.batches.epoch_plan import Bucket, BucketStats, EpochPlan
from transformer.data.sources import source as sources
from transformer.decoding.batches import convert_kernels
from transformer.decoding.forced_decoding import read_pair
from transformer.errors import UserError
from transformer.run import preparation as runs
from transformer.special_tokens import BOS, EOS, PAD
from transformer.training import validation
from transformer.training.validation import check_lengths
from transformer.workdir import create_workdir


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> runs.Run:
    folder = tmp_path_factory.mktemp("validation")
    settings = {"training__eval_bleu": True, "training__eval_sentences": 5, "training__steps": 8}
    # Several small batches, so that sums have to be accumulated.
    settings |= {"batch__tokens": 256, "batch__max_buckets": 2, "training__label_smoothing": 0.2}
    overrides = [tuple(flag.removeprefix("--config.").split("=", 1)) for flag in flags(folder / "run", **settings)[2:]]
    config = loading.load_file("configs/base.py", overrides)
    return runs.prepare(config, create_workdir(folder / "run", config))


def by_hand(run: runs.Run, parameters: dict) -> tuple[float, float, float]:
    """Returns loss, NLL and accuracy per target token of the validation pairs, from one batch in float64."""
    corpus = run.validation.corpus
    rows, width = len(corpus), int(corpus.lengths.max())
    names = ("source", "target_input", "target_output")
    batch = {name: np.full((rows, width), PAD, np.int32) for name in names}
    for row in range(rows):
        source, target = pair_tokens(corpus, row)
        for name, value in zip(names, ([*source, EOS], [BOS, *target], [*target, EOS]), strict=True):
            batch[name][row, : len(value)] = value
    logits = jax.jit(lambda parameters, batch: logits_of(run.train_step.graph, parameters, batch, None))(
        parameters, batch
    )
    logits = np.asarray(logits, np.float64)
    log_p = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    real = batch["target_output"] != PAD
    truth = np.take_along_axis(log_p, batch["target_output"][..., None], axis=-1)[..., 0]
    loss = -(0.8 * truth + 0.2 * log_p.mean(axis=-1))
    return loss[real].mean(), -truth[real].mean(), (log_p.argmax(axis=-1) == batch["target_output"])[real].mean()


def test_the_loss_covers_all_pairs_and_bleu_the_first_sentences(prepared, monkeypatch):
    parameters, decoded = prepared.initializer().parameters, []

    def evaluate(decoder, replicas, texts, references, data, metrics, report):
        decoded.append((replicas, texts, references, data, metrics))
        return SimpleNamespace(scores={"bleu": 12.0, "chrf": 34.0, "exact_match": 0.5}, hypotheses=list("abcde"))

    monkeypatch.setattr(validation, "translate_and_score", evaluate)
    values, samples = prepared.validation(parameters, lambda: None)
    loss, nll, accuracy = by_hand(prepared, parameters)
    assert values["loss"] == pytest.approx(loss, rel=1e-5)
    assert values["nll"] == pytest.approx(nll, rel=1e-5)
    assert values["perplexity"] == pytest.approx(np.exp(nll), rel=1e-4)
    assert values["accuracy"] == pytest.approx(accuracy)
    assert (values["bleu"], values["chrf"], values["exact_match"]) == (12.0, 34.0, 0.5)
    texts, references = sources.read_pairs(prepared.config.data, "valid")
    ((replicas, *rest),) = decoded
    assert rest == [texts[:5], [references[:5]], prepared.config.data, ["bleu", "chrf", "exact_match"]]
    expected = convert_kernels(False, prepared.validation.graph, jax.device_get(parameters))
    assert distance(jax.device_get(replicas[jax.devices()[0]]), (expected,)) == 0.0
    # Validation has no dropout, so it is deterministic.
    assert prepared.validation(parameters, lambda: None)[0]["loss"] == values["loss"]
    assert [(each.source, each.reference) for each in samples] == list(zip(texts, references, strict=True))[:3]
    assert [each.translation for each in samples] == ["a", "b", "c"]
    for sample in samples:
        expected = read_pair(prepared.validation.decoder, replicas, sample.source, sample.reference)
        np.testing.assert_array_equal(sample.attention.cross, expected.cross)


def test_validation_runs_only_programs_that_were_compiled_ahead(prepared):
    parameters = prepared.initializer().parameters
    for compile_one in prepared.validation.compilations(parameters):
        compile_one()
    loss, decoding = prepared.validation.eval_step.programs.compiled, prepared.validation.decoder.programs.compiled
    before = dict(loss), dict(decoding)
    names = sorted(function.__name__ for function in {function for _, (function, *_) in decoding})
    assert loss and names == ["attend", "search", "search"]  # two passes
    # Random parameters do not end sentences, so that the second pass runs as well.
    prepared.validation(parameters, lambda: None)
    assert (loss, decoding) == before


def test_the_warm_up_on_accelerators_translates_the_longest_text_with_its_line_number(prepared, monkeypatch):
    translated = []
    monkeypatch.setattr(prepared.validation, "texts", ["two", "twenty-one", "six"])

    def translate(parameters, texts, first_line):
        translated.append((texts, first_line))

    monkeypatch.setattr(prepared.validation.decoder, "translate", translate)
    parameters = prepared.initializer().parameters
    prepared.validation.warm_up(parameters)
    assert not translated  # on CPUs
    abstract_mesh = prepared.validation.mesh.abstract_mesh
    accelerators = SimpleNamespace(devices=np.array([SimpleNamespace(platform="gpu")]), abstract_mesh=abstract_mesh)
    monkeypatch.setattr(prepared.validation, "mesh", accelerators)
    monkeypatch.setattr(prepared.validation.decoder, "place", lambda *_: None)
    monkeypatch.setattr(validation, "place", lambda *_: None)
    monkeypatch.setattr(prepared.validation, "eval_step", lambda *_: None)
    prepared.validation.warm_up(parameters)
    assert translated == [(["twenty-one"], 2)]


def test_the_warm_up_runs_the_batch_that_needs_most_memory_and_not_the_one_with_most_positions(prepared, monkeypatch):
    # In long rows the attention scores are the largest arrays.
    many_rows, long, ran = Bucket(256, 4, 4), Bucket(8, 64, 64), []
    stats = tuple(BucketStats(bucket, 1, 1, 8) for bucket in (many_rows, long))
    plan = EpochPlan(
        np.arange(2), np.array([[0, 1], [1, 2]]), np.arange(2, dtype=np.uint16), np.ones((2, 2), np.int64), stats
    )
    monkeypatch.setattr(validation.loader, "plan_in_order", lambda *_: plan)
    monkeypatch.setattr(validation, "place", lambda corpus, batch, mesh: batch.bucket)
    monkeypatch.setattr(prepared.validation, "eval_step", lambda parameters, arrays: ran.append(arrays))
    monkeypatch.setattr(prepared.validation, "decoder", None)
    prepared.validation.warm_up({})
    assert ran == [long]


def test_long_pairs_are_counted(prepared, caplog):
    config = ml_collections.ConfigDict(prepared.config)
    corpus, texts = prepared.validation.corpus, sources.read_pairs(config.data, "valid")
    encoded = [side.encode(side_texts) for side, side_texts in zip(prepared.tokenizer.sides, texts, strict=True)]
    needed = [1 + max(map(len, pair)) for pair in zip(*encoded, strict=True)]
    config.data.max_length = sorted(needed)[-3]
    longer = sum(length > config.data.max_length for length in needed)
    check_lengths(config, corpus, "valid")
    (line,) = caplog.messages
    assert f"data.valid_split=validation: the loss leaves out {longer} of {len(needed)} sentences, longer than" in line
    caplog.clear()
    check_lengths(prepared.config, corpus, "valid")
    assert not caplog.messages
    config.data.max_length = min(needed) - 1
    with pytest.raises(UserError, match=f"max_length={min(needed) - 1}: all sentences of data.valid_split="):
        check_lengths(config, corpus, "valid")


def test_memory_advice_names_the_keys_of_the_batch_that_failed(prepared, monkeypatch):
    def fail(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 70368744177664 bytes.")

    parameters = prepared.initializer().parameters
    monkeypatch.setattr(validation, "translate_and_score", fail)
    with pytest.raises(UserError, match="out of device memory; .* lower config.decoding.batch_tokens"):
        prepared.validation(parameters, lambda: None)
    monkeypatch.setattr(prepared.validation.eval_step, "programs", SimpleNamespace(run=fail))
    with pytest.raises(UserError, match="out of device memory; .* lower config.batch.tokens or config.data.max_length"):
        prepared.validation(parameters, lambda: None)
