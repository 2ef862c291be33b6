"""Validation: the loss of the split, computed in NumPy, and the sentences decoded for BLEU."""

import dataclasses
from types import SimpleNamespace

import jax
import ml_collections
import numpy as np
import pytest

from tests.data.files import pair_tokens, write, write_pairs
from tests.model.models import logits_of
from tests.training.tiny import distance, flags
from transformer.config import loading
from transformer.data.batches.epoch_plan import Bucket, BucketStats, EpochPlan
from transformer.data.sources import source as sources
from transformer.decoding.batches import convert_weights
from transformer.decoding.forced_decoding import read_pair
from transformer.decoding.translation import EMPTY
from transformer.run import preparation as runs
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD
from transformer.training import held_out, validation
from transformer.training.held_out import EvalStep, ValidationBatches, check_lengths
from transformer.workdir import create_workdir


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> runs.Run:
    folder = tmp_path_factory.mktemp("validation")
    settings = {"training__eval_bleu": True, "training__eval_sentences": 5, "training__steps": 8}
    # Several small batches, so that sums have to be accumulated.
    settings |= {"batch__tokens": 256, "batch__max_buckets": 2, "training__label_smoothing": 0.2}
    overrides = [
        tuple(flag.removeprefix("--config.").split("=", 1))
        for flag in flags(folder / "run", **settings)[2:]
    ]
    config = loading.load_file("configs/base.py", overrides)
    return runs.prepare(config, create_workdir(folder / "run", config))


def by_hand(run: runs.Run, parameters: dict) -> tuple[float, float, float]:
    """Returns loss, NLL and accuracy per target token of the validation pairs, from one batch in
    float64.
    """
    corpus = run.validation.batches[""].corpus
    rows, width = len(corpus), int(corpus.lengths.max())
    names = ("source", "target_input", "target_output")
    batch = {name: np.full((rows, width), PAD, np.int32) for name in names}
    for row in range(rows):
        source, target = pair_tokens(corpus, row)
        for name, value in zip(
            names, ([*source, EOS], [BOS, *target], [*target, EOS]), strict=True
        ):
            batch[name][row, : len(value)] = value
    logits = jax.jit(
        lambda parameters, batch: logits_of(run.train_step.graph, parameters, batch, None)
    )(parameters, batch)
    logits = np.asarray(logits, np.float64)
    log_p = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    real = batch["target_output"] != PAD
    truth = np.take_along_axis(log_p, batch["target_output"][..., None], axis=-1)[..., 0]
    loss = -(0.8 * truth + 0.2 * log_p.mean(axis=-1))
    return (
        loss[real].mean(),
        -truth[real].mean(),
        (log_p.argmax(axis=-1) == batch["target_output"])[real].mean(),
    )


def test_the_loss_covers_all_pairs_and_bleu_the_first_sentences(prepared, monkeypatch):
    parameters, decoded = prepared.initializer.create().parameters, []

    def evaluate(decoder, replicas, texts, references, data, metrics, report):
        decoded.append((replicas, texts, references, data, metrics))
        translations = [dataclasses.replace(EMPTY, text=text) for text in "abcde"]
        return SimpleNamespace(
            scores={"bleu": 12.0, "chrf": 34.0, "exact_match": 0.5}, translations=translations
        )

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
    assert rest == [
        texts[:5],
        [references[:5]],
        prepared.config.data,
        ["bleu", "chrf", "exact_match"],
    ]
    expected = convert_weights(False, prepared.train_step.graph, jax.device_get(parameters))
    assert distance(jax.device_get(replicas[jax.devices()[0]]), (expected,)) == 0.0
    # Validation has no dropout, so it is deterministic.
    assert prepared.validation(parameters, lambda: None)[0]["loss"] == values["loss"]
    assert [(each.source, each.reference) for each in samples] == list(
        zip(texts, references, strict=True)
    )[:3]
    assert [each.translation for each in samples] == ["a", "b", "c"]
    for sample in samples:
        expected = read_pair(prepared.validation.decoder, replicas, sample.source, sample.reference)
        np.testing.assert_array_equal(sample.attention.cross, expected.cross)


def test_validation_runs_only_programs_that_were_compiled_ahead(prepared):
    parameters = prepared.initializer.create().parameters
    for compile_one in prepared.validation.compilations(parameters):
        compile_one()
    loss, decoding = (
        prepared.validation.eval_step.programs.compiled,
        prepared.validation.decoder.programs.compiled,
    )
    before = dict(loss), dict(decoding)
    names = sorted(function.__name__ for function in {function for _, (function, *_) in decoding})
    assert loss and names == ["attend", "search", "search"]  # two passes
    # Random parameters do not end sentences, so that the second pass runs as well.
    prepared.validation(parameters, lambda: None)
    assert (loss, decoding) == before


def test_the_warm_up_on_accelerators_translates_the_longest_text_with_its_line_number(
    prepared, monkeypatch
):
    translated = []
    texts = prepared.validation.texts[""]._replace(texts=["two", "twenty-one", "six"])
    monkeypatch.setattr(prepared.validation, "texts", {"": texts})

    def translate(parameters, texts, first_line):
        translated.append((texts, first_line))

    monkeypatch.setattr(prepared.validation.decoder, "translate", translate)
    parameters = prepared.initializer.create().parameters
    prepared.validation.warm_up(parameters)
    assert not translated  # on CPUs
    abstract_mesh = prepared.validation.mesh.abstract_mesh
    accelerators = SimpleNamespace(
        devices=np.array([SimpleNamespace(platform="gpu")]), abstract_mesh=abstract_mesh
    )
    monkeypatch.setattr(prepared.validation, "mesh", accelerators)
    monkeypatch.setattr(prepared.validation.decoder, "place", lambda *_: None)
    monkeypatch.setattr(held_out, "place_batch", lambda *_: {})
    monkeypatch.setattr(EvalStep, "__call__", lambda *_: None)
    prepared.validation.warm_up(parameters)
    assert translated == [(["twenty-one"], 2)]


def test_the_warm_up_runs_the_batch_that_needs_most_memory_and_not_the_one_with_most_positions(
    prepared, monkeypatch
):
    # In long rows the attention scores are the largest arrays.
    many_rows, long, ran = Bucket(256, 4, 4), Bucket(8, 64, 64), []
    stats = tuple(BucketStats(bucket, 1, 8) for bucket in (many_rows, long))
    plan = EpochPlan(np.arange(2), np.array([[0, 1], [1, 2]]), np.arange(2, dtype=np.uint16), stats)
    monkeypatch.setattr(
        prepared.validation, "batches", {"": ValidationBatches(prepared.corpus, plan)}
    )
    monkeypatch.setattr(held_out, "assemble_batch", lambda corpus, batch: {"bucket": batch.bucket})
    monkeypatch.setattr(held_out, "place_batch", lambda arrays, mesh: arrays)
    monkeypatch.setattr(
        EvalStep, "__call__", lambda step, parameters, arrays: ran.append(arrays["bucket"])
    )
    monkeypatch.setattr(prepared.validation, "decoder", None)
    prepared.validation.warm_up({})
    assert ran == [long]


def test_long_pairs_are_counted(prepared, caplog):
    config = ml_collections.ConfigDict(prepared.config)
    corpus, texts = prepared.validation.batches[""].corpus, sources.read_pairs(config.data, "valid")
    encoded = [
        side.encode(side_texts)
        for side, side_texts in zip(prepared.tokenizer.sides, texts, strict=True)
    ]
    needed = [1 + max(map(len, pair)) for pair in zip(*encoded, strict=True)]
    config.data.max_length = sorted(needed)[-3]
    longer = sum(length > config.data.max_length for length in needed)
    check_lengths(config, corpus, "valid")
    (line,) = caplog.messages
    assert (
        f"data.valid_split=validation: the loss leaves out {longer} of {len(needed)} sentences, "
        "longer than"
    ) in line
    caplog.clear()
    check_lengths(prepared.config, corpus, "valid")
    assert not caplog.messages
    config.data.max_length = min(needed) - 1
    with pytest.raises(
        UserError, match=f"max_length={min(needed) - 1}: all sentences of data.valid_split="
    ):
        check_lengths(config, corpus, "valid")


def test_memory_advice_names_the_keys_of_the_batch_that_failed(prepared, monkeypatch):
    def fail(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 70368744177664 bytes.")

    parameters = prepared.initializer.create().parameters
    monkeypatch.setattr(validation, "translate_and_score", fail)
    with pytest.raises(
        UserError, match="out of device memory; .* lower config.decoding.batch_tokens"
    ):
        prepared.validation(parameters, lambda: None)
    monkeypatch.setattr(prepared.validation.eval_step, "programs", SimpleNamespace(run=fail))
    with pytest.raises(
        UserError,
        match="out of device memory; .* lower config.batch.tokens or config.data.max_length",
    ):
        prepared.validation(parameters, lambda: None)


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> runs.Run:
    """A run on a mixture, with two more validation sets."""
    folder = tmp_path_factory.mktemp("several")
    pairs = [(f"number {number}", f"Zahl {number}") for number in range(60)]
    for stem, part in (("train", pairs), ("valid", pairs[:8]), ("test", pairs[:2])):
        write_pairs(folder, stem, part)
    write_pairs(folder, "short", pairs[8:11])
    settings = {"data.source": "text", "data.path": str(folder), "data.valid_split": "valid"}
    settings |= {
        "data.source_tag": ">>{target_language}<<",
        "tokenizer.vocab_size": "60",
        "data.name": "several",
    }
    back = "label=back source_language=de target_language=en"
    write(folder / "weights.txt", [0.0] * 60)
    settings["data.mixture"] = (
        f"('label=to pair_weights={folder / 'weights.txt'}', '{back} weight=2')"
    )
    settings["data.valid_sets"] = f"('{back}', 'label=short valid_split=short')"
    settings |= {"training.samples": "1", "training.eval_bleu": "true", "training.steps": "8"}
    settings["checkpoint.best_metric"] = "bleu/mean"
    changes = {key.replace(".", "__"): value for key, value in settings.items()}
    overrides = [
        tuple(flag.removeprefix("--config.").split("=", 1))
        for flag in flags(folder / "run", **changes)[2:]
    ]
    config = loading.load_file("configs/base.py", overrides)
    return runs.prepare(config, create_workdir(folder / "run", config))


def test_each_set_has_its_direction_and_its_scores_and_so_has_their_mean(several, monkeypatch):
    decoded = []

    def evaluate(decoder, replicas, texts, references, data, metrics, report):
        decoded.append((decoder.tokenizer.source_tag, texts, references[0], data.target_language))
        translations = [dataclasses.replace(EMPTY, text=text) for text in texts]
        return SimpleNamespace(
            scores={metric: float(len(texts)) for metric in metrics}, translations=translations
        )

    monkeypatch.setattr(validation, "translate_and_score", evaluate)
    values, (sample,) = several.validation(several.initializer.create().parameters, lambda: None)
    to, back, short = decoded
    assert [
        (len(texts), tag, texts[0], references[0], language)
        for tag, texts, references, language in decoded
    ] == [
        (8, ">>de<<", "number 0", "Zahl 0", "de"),
        (8, ">>en<<", "Zahl 0", "number 0", "en"),
        (3, ">>de<<", "number 8", "Zahl 8", "de"),
    ]
    assert values["bleu"] == values["bleu/back"] == 8 and values["bleu/short"] == 3
    assert values["bleu/mean"] == pytest.approx(19 / 3)
    assert len({values["loss"], values["loss/back"], values["loss/short"]}) == 3
    assert values["loss/mean"] == pytest.approx(
        np.mean([values["loss"], values["loss/back"], values["loss/short"]])
    )
    assert sample.source == "number 0"


def test_the_loss_of_a_corpus_of_the_mixture_is_that_of_a_sample(several, monkeypatch):
    parameters = several.initializer.create().parameters
    for compile_one in several.validation.compilations(parameters):
        compile_one()
    losses, before = {}, dict(several.validation.eval_step.programs.compiled)
    for name, batches in several.validation.batches.items():
        losses[name] = several.validation.eval_step.over_batches(parameters, batches, lambda: None)[
            "loss"
        ]
    assert [*losses] == ["", "back", "short", "train_loss/to", "train_loss/back"]
    assert losses["train_loss/to"] > 0  # without the weights of its pairs, which are 0
    assert several.validation.eval_step.programs.compiled == before
    pairs = [
        np.sort(several.validation.batches[f"train_loss/{name}"].epoch_plan.sentences)
        for name in ("to", "back")
    ]
    assert pairs[0].tolist() == list(range(60)) and pairs[1].tolist() == list(range(60, 120))
    monkeypatch.setattr(held_out, "TRAINING_SAMPLE", 7)
    batches = held_out.make_batches(
        several.config,
        [x.corpus for x in [*several.validation.batches.values()][:3]],
        several.corpus,
    )
    assert np.sort(batches["train_loss/back"].epoch_plan.sentences).tolist() == [
        60,
        68,
        77,
        85,
        94,
        102,
        111,
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"checkpoint.best_metric": "bleu/news"},
            "=bleu/news: must be one of loss, .*bleu/short.*bleu/mean",
        ),
        ({"checkpoint.best_metric": "blue"}, "best_metric=blue: must be one of loss, nll"),
        ({"data.valid_sets": ("valid_split=short",)}, "set 1: needs a label=WORD"),
        (
            {"data.valid_sets": ("label=a valid_split=short", "label=a")},
            "set 2: needs a label=WORD of its own",
        ),
        ({"data.valid_sets": ("label=mean valid_split=short",)}, "other than mean"),
        (
            {"data.valid_sets": ("label=a weight=2",)},
            "set 1: 'weight' must be KEY=VALUE, with a key among label, source",
        ),
        ({"data.valid_sets": ("label=a valid_split=absent",)}, "no absent.en"),
        (
            {"data.valid_sets": ("label=a source_tag=>>fr<<",)},
            ">>fr<<: the vocabulary has no such token",
        ),
    ],
)
def test_a_wrong_set_or_metric_is_one_line(several, tmp_path, changes, message):
    config = loading.with_values(several.config, changes)
    with (
        pytest.raises(UserError, match=message),
        runs.open_workdir(tmp_path / "run", config) as (workdir, _),
    ):
        runs.prepare(config, workdir)
