"""The number of places that a change takes: one table entry for an implementation, one declaration
for a key.
"""

import json
import statistics

import jax
import jax.numpy as jnp
import ml_collections
import optax
import pytest
from flax import nnx

import transformer
from configs import base
from configs.rules import Key, at_least
from scripts import compare, report
from scripts.reporting import sections
from scripts.reporting.attention_and_beams import inspect
from scripts.results.runs import read_runs
from scripts.sweeping import description
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.tasks import DecodingTask, TrainingTask
from tests.checkpoints import workdirs
from tests.data.sentences import random_sentences
from tests.decoding.models import tiny_model
from tests.meshes import one_device
from tests.model.models import cross_entropy
from tests.training import tiny
from transformer import evaluate
from transformer.config import cli, loading
from transformer.config.keys import declared_keys, flatten, validated_config
from transformer.config.tables import tables
from transformer.data.batches.loader import DataPosition, Loader
from transformer.data.sources.source import open_source
from transformer.data.tokenizers import tokenizer as tokenizers
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding import metrics
from transformer.decoding.beam_search import Hypotheses
from transformer.decoding.strategies import Strategy
from transformer.decoding.text_decoder import TextDecoder
from transformer.model import layers
from transformer.model.attention import MultiHeadAttention
from transformer.model.embedding import Embedding
from transformer.model.layers import FeedForward
from transformer.model.masks import Mask
from transformer.model.single_stack import MaskedLanguageModel
from transformer.model.stacks import Encoder
from transformer.model.transformer import Transformer
from transformer.run.record import read_record
from transformer.support.errors import UserError
from transformer.support.special_tokens import SPECIAL, UNK
from transformer.training import optimizer as optimizers
from transformer.training.columns import Columns
from transformer.training.loss import token_losses
from transformer.training.objectives import OBJECTIVES, TrainingObjective
from transformer.training.validation import validation_strategy

BASE = base.get_config()
PAIRS = open_source(loading.load_file("configs/quickstart.py", []).data, "train")
TABLES = tables()


@pytest.fixture
def add(monkeypatch):
    """A function that adds an entry "added" to the table of a key and returns a configuration that
    names it.
    """

    def add(key: str, implementation: object):
        monkeypatch.setitem(TABLES[key], "added", implementation)
        return loading.load_file("configs/base.py", [(key, "added"), ("model.dtype", "float32")])

    return add


@pytest.mark.parametrize("key", TABLES)
def test_the_allowed_names_are_those_of_the_table(key, add):
    with pytest.raises(UserError, match=f"config.{key}=added: must be one of "):
        validated_config(flatten(BASE) | {key: "added"})
    assert flatten(add(key, TABLES[key][flatten(BASE)[key]]))[key] == "added"


def test_an_optimizer_takes_one_table_entry(add):
    config = add("optimizer.name", lambda config, schedule: optax.sgd(schedule))
    optimizer = optimizers.make_optimizer(config.optimizer, optax.constant_schedule(0.5))
    gradient = jnp.ones(3)
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    assert updates.tolist() == [-0.5] * 3


def test_a_schedule_takes_one_table_entry(add):
    config = add(
        "optimizer.schedule",
        lambda config, d_model, steps: optax.constant_schedule(d_model * steps),
    )
    assert optimizers.make_schedule(config.optimizer, 2, 3)(0) == 6


def test_an_activation_takes_one_table_entry(add):
    config = add("model.activation", jnp.negative)
    module = FeedForward(config.model, rngs=nnx.Rngs(0))
    x = jnp.ones((1, 1, config.model.d_model))
    assert jnp.allclose(module(x), module.outer(-module.inner(x)))


def test_an_attention_score_takes_one_table_entry(add):
    def mean_of_keys(queries, keys):
        return jnp.zeros((queries.shape[0], queries.shape[2], queries.shape[1], keys.shape[1]))

    config = add("model.attention", lambda num_heads, d_k, rngs: mean_of_keys)
    module = MultiHeadAttention(config.model, rngs=nnx.Rngs(0))
    x = jnp.arange(4.0)[None, :, None] * jnp.ones((1, 4, config.model.d_model))
    assert jnp.allclose(
        module(x, x, Mask(*[jnp.ones((1, 4), int)] * 2, is_causal=False, is_packed=False)),
        module.output(module.value(x.mean(1, keepdims=True).repeat(4, 1))),
        atol=1e-4,
    )


def test_positions_take_one_table_entry(add):
    config = add(
        "model.positions", lambda *_: lambda positions: positions[..., None].repeat(8, axis=-1)
    )
    config = ml_collections.ConfigDict(config.model)
    config.update({"d_model": 8, "num_heads": 2, "num_layers": 1})
    embedding = Embedding(9, 8, dtype="float32", rngs=nnx.Rngs(0))
    encoder = Encoder(config, embedding, rngs=nnx.Rngs(0))
    tokens = jnp.asarray([[5, 6, 7]])
    expected = embedding(tokens) + jnp.arange(3.0)[None, :, None]
    assert jnp.allclose(encoder.embed(tokens, jnp.arange(3)[None], None), expected)


def test_a_norm_position_takes_one_table_entry(add):
    config = add("model.norm_position", (1, lambda x, sublayer, norm: x - sublayer(x)))
    x = jnp.ones((1, 1, config.model.d_model))
    assert (
        layers.SublayerConnection(config.model, rngs=nnx.Rngs(0))(x, lambda x: x, None) == 0
    ).all()


def test_a_support_of_label_smoothing_takes_one_table_entry(add):
    support = add(
        "training.label_smoothing_support", lambda columns, targets: columns.tokens == targets
    ).training.label_smoothing_support
    sums = cross_entropy(jnp.ones((1, 1, 9)), jnp.asarray([[5]]), 0.5, support)
    assert float(sums.loss) == pytest.approx(float(sums.nll))


def test_a_loss_takes_one_table_entry(add):
    config = add("training.loss", lambda logits, targets, columns, training: columns.sum(logits))
    logits = jnp.ones((1, 2, 9))
    criterion, reported = token_losses(
        logits, jnp.ones((1, 2), int), Columns.whole(9), training_config=config.training, passes=1
    )
    assert criterion.tolist() == reported.tolist() == [[9.0, 9.0]]


def test_an_objective_takes_one_table_entry(monkeypatch, tmp_path, capsys):
    """A denoising autoencoder: an encoder that reads a text with unknown tokens and predicts all
    its tokens.
    """

    def make_noise(training, pieces):
        def inputs(batch, key):
            is_dropped = (jax.random.uniform(key, batch["source"].shape) < 0.1) & (
                batch["source"] >= SPECIAL
            )
            return {
                "source": jnp.where(is_dropped, UNK, batch["source"]),
                "target_output": batch["source"],
            }

        return inputs

    added = TrainingObjective(
        sides=(True, False),
        make_model=lambda model, source, target, rngs: MaskedLanguageModel(
            model, source, rngs=rngs
        ),
        methods={"encode"},
        make_inputs=make_noise,
    )
    monkeypatch.setitem(OBJECTIVES, "added", added)
    changes = {
        "training__objective": "added",
        "data__target_language": "",
        "training__label_smoothing": 0.0,
    }
    assert tiny.run(tmp_path / "run", **changes, training__steps=8) == 0
    flags = [f"--workdir={tmp_path / 'run'}", "--split=valid"]
    assert cli.execute(evaluate.make_parser(), evaluate.main, flags) == 0
    last = [line for line in tiny.record(tmp_path / "run") if line["split"] == "valid"][-1]
    assert json.loads(capsys.readouterr().out)["perplexity"] == pytest.approx(
        last["perplexity"], rel=1e-4
    )
    model = transformer.load(tmp_path / "run")
    assert model.encode(["a"])[0].states.shape[1] == model.config.model.d_model
    with pytest.raises(
        UserError, match="translate: is not defined for a model of training.objective=added"
    ):
        model.translate(["a"])
    with pytest.raises(UserError, match="objective=added, config.training.r_drop=1.0: "):
        validated_config(flatten(model.config) | {"training.r_drop": 1.0, "model.dropout": 0.1})
    _, notes = inspect(read_runs([tmp_path / "run"]), {}, ["a"])
    assert notes == ["run is no translation model with a decoder."]


def test_a_decoding_strategy_takes_one_table_entry(add):
    def copy(models, sentences, config, n_best):
        source = sentences.source
        log_p = jnp.zeros((len(source), n_best, source.shape[1]))
        hypotheses = Hypotheses(source[:, None].repeat(n_best, axis=1), log_p[:, :, 0], log_p)
        return hypotheses, jnp.ones(len(source), bool)

    config = add("decoding.strategy", Strategy(copy))
    model, vocabulary = tiny_model(12, seed=0), IdsVocabulary(12)
    decoder = TextDecoder(
        [model.graph], Tokenizer(vocabulary, vocabulary), config.decoding, jax.local_devices()
    )
    translations = decoder.translate(decoder.place([model.parameters]), ["1 2", "", "3"])
    assert [best.text for (best,) in translations] == ["1 2", "", "3"]
    assert validation_strategy("added") == "added"
    with pytest.raises(UserError, match="a shortlist is for beam search"):
        validated_config(flatten(config) | {"decoding.shortlist": 8})


def test_a_data_source_takes_one_table_entry(add):
    class Added:
        @staticmethod
        def open(data, split):
            return PAIRS

    assert open_source(add("data.source", Added).data, "valid") is PAIRS


@pytest.mark.parametrize(
    ("key", "use"),
    [
        ("data.source", lambda config: open_source(config.data, "train")),
        ("tokenizer.kind", lambda config: tokenizers.train(config.tokenizer, PAIRS)),
        (
            "model.activation",
            lambda config: FeedForward(config.model, rngs=nnx.Rngs(0))(jnp.ones((1, 1, 512))),
        ),
        ("model.attention", lambda config: MultiHeadAttention(config.model, rngs=nnx.Rngs(0))),
        (
            "model.attention_implementation",
            lambda config: MultiHeadAttention(config.model, rngs=nnx.Rngs(0)),
        ),
        (
            "model.norm_position",
            lambda config: layers.SublayerConnection(config.model, rngs=nnx.Rngs(0)),
        ),
        ("model.positions", lambda config: Transformer(config.model, 9, 9, rngs=nnx.Rngs(0))),
        (
            "model.share_embeddings",
            lambda config: Transformer(config.model, 9, 9, rngs=nnx.Rngs(0)),
        ),
        (
            "training.label_smoothing_support",
            lambda config: cross_entropy(
                jnp.ones((1, 1, 9)),
                jnp.ones((1, 1), int),
                0.1,
                config.training.label_smoothing_support,
            ),
        ),
        (
            "optimizer.name",
            lambda config: optimizers.make_optimizer(
                config.optimizer, optax.constant_schedule(1.0)
            ),
        ),
        ("optimizer.schedule", lambda config: optimizers.make_schedule(config.optimizer, 1, 1)),
        (
            "batch.plan",
            lambda config: Loader(
                random_sentences(9, longest=3), config, DataPosition(0, 0), one_device()
            ),
        ),
    ],
)
def test_an_unknown_name_reaches_no_implementation(key, use):
    config = base.get_config()
    config.update_from_flattened_dict({key: "unknown"})  # as no check would let it pass
    with pytest.raises(KeyError, match="unknown"):
        use(config)


def test_a_scalar_key_takes_one_declaration(monkeypatch, tmp_path):
    loading.save(BASE, tmp_path)  # before the key exists
    keys = base.get_keys()
    keys.training.added = Key(3, at_least(1))
    monkeypatch.setattr(base, "get_keys", lambda: keys)
    assert declared_keys()["training.added"].default == 3
    assert loading.load_file("configs/big.py", []).training.added == 3
    assert loading.load_file("configs/big.py", [("training.added", "5")]).training.added == 5
    assert loading.load(tmp_path).training.added == 3
    with pytest.raises(UserError, match="config.training.added=0: must be at least 1"):
        loading.load_file("configs/big.py", [("training.added", "0")])
    with pytest.raises(UserError, match="config.training.added=1.5: must be an integer"):
        loading.load_file("configs/big.py", [("training.added", "1.5")])


@pytest.mark.slow
def test_a_metric_takes_one_table_entry(tmp_path, monkeypatch, capsys):
    """Training, evaluation, comparison, report and sweeps compute and show it without another
    change.
    """

    def length_error(hypotheses, references, language):
        pairs = zip(hypotheses, references[0], strict=True)
        return statistics.fmean(
            abs(len(hypothesis) - len(reference)) for hypothesis, reference in pairs
        ), None

    metric = metrics.Metric(length_error, "length error", ".1f", direction="minimize", is_mean=True)
    monkeypatch.setitem(metrics.METRICS, "added", metric)
    run = tmp_path / "trials" / "0000"
    settings = {"training__eval_bleu": True, "training__eval_sentences": 3, "training__samples": 0}
    settings |= {
        "decoding__beam_size": 1,
        "decoding__max_extra_length": 4,
        "decoding__max_source_length": 32,
    }
    assert tiny.run(run, training__steps=4, **settings) == 0
    (validation,) = [
        line for line in read_record(run / "metrics.jsonl") if line["split"] == "valid"
    ]
    assert f"  length error {validation['added']:.1f}  (best)" in capsys.readouterr().err
    assert "curve-valid-added" in sections.curve_section(read_runs([run])).charts

    assert workdirs.run(evaluate, f"--workdir={run}", "--split=valid") == 0
    captured = capsys.readouterr()
    value = json.loads(captured.out)["added"]
    assert f", length error {value:.1f}\n" in captured.err

    assert workdirs.run(compare, str(run), "--samples=40", "--format=json") == 0
    (system,) = json.loads(capsys.readouterr().out)["systems"]
    low, high = system["added"]["interval"]
    assert system["runs"][0]["added"] == system["added"]["mean"] == value > 0 and low < value < high
    assert workdirs.run(report, str(run)) == 0
    header, _, row = (line.split(" | ") for line in capsys.readouterr().out.splitlines()[:3])
    assert row[header.index("added")] == f"{value:.1f}"

    sweep = description.listed(description.seeds(2), objective="added", pruner=None)
    assert sweep.direction == "minimize"
    task = TrainingTask(loading.load(run), SweepFolder(tmp_path))
    task.check({}, "added")
    assert task.read_objective(0, "added") == {4: validation["added"]}
    assert {"added"} <= set(task.objectives) & set(
        DecodingTask(task.config, run, 4, task.folder).objectives
    )
