"""Objectives: which tokens are masked, what language models read and predict, and runs from text to
perplexity.
"""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.decoding.models import make_decoding_config
from tests.model.models import random_model
from tests.training.tiny import run, setup, tiny_config
from transformer import evaluate, translate
from transformer.checkpoints import restore
from transformer.checkpoints.loaded_models import load
from transformer.checkpoints.restore import named_leaves
from transformer.config import cli
from transformer.config.loading import with_values
from transformer.data.batches.loader import DataPosition, Loader
from transformer.decoding.beam_search import BeamSearch, SourceBatch
from transformer.model.single_stack import LanguageModel, MaskedLanguageModel
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL, UNK
from transformer.training.encoders import MASK, make_masking, mask_tokens
from transformer.training.held_out import held_out_means

VOCAB = 50
STARTS = np.arange(VOCAB) % 2 == 0  # tokens of even numbers begin words


@pytest.fixture(scope="module")
def sentences() -> np.ndarray:
    tokens = np.random.default_rng(0).integers(SPECIAL, VOCAB, (400, 40)).astype(np.int32)
    tokens[:, 30], tokens[:, 31:] = EOS, PAD
    return tokens


def test_shares_of_masked_tokens(sentences):
    inputs, targets = map(
        np.asarray,
        mask_tokens(jnp.asarray(sentences), np.ones(VOCAB, bool), 0.15, jax.random.key(0)),
    )
    chosen = targets != PAD
    np.testing.assert_array_equal(targets[chosen], sentences[chosen])
    np.testing.assert_array_equal(inputs[~chosen], sentences[~chosen])
    assert not chosen[:, 30:].any()  # neither EOS nor padding
    count = chosen.sum()
    assert count / (400 * 30) == pytest.approx(0.15, abs=0.01)
    assert (inputs[chosen] == MASK).sum() / count == pytest.approx(0.8, abs=0.03)
    kept = inputs[chosen] == sentences[chosen]
    assert kept.sum() / count == pytest.approx(0.1 + 0.1 / (VOCAB - SPECIAL), abs=0.02)
    assert inputs[chosen & (inputs != MASK)].min() >= SPECIAL


def test_whole_words_are_masked_or_none_of_their_tokens(sentences):
    _, targets = map(
        np.asarray, mask_tokens(jnp.asarray(sentences), STARTS, 0.3, jax.random.key(1))
    )
    chosen = (targets != PAD)[:, :30]
    continues = ~STARTS[sentences[:, 1:30]]  # belongs to the word of the token before it
    assert (chosen[:, 1:] == chosen[:, :-1])[continues].all()
    assert not (chosen[:, 1:] == chosen[:, :-1])[~continues].all()
    words = STARTS[sentences[:, :30]]
    assert chosen[words].mean() == pytest.approx(0.3, abs=0.02)


def test_the_first_word_of_a_sentence_needs_no_mark():
    """As in a vocabulary of bytes: only a space begins a word."""
    space, letter = SPECIAL, SPECIAL + 1
    row = [letter, letter, space, letter, EOS, letter, letter]
    tokens = jnp.asarray([row] * 2000)
    starts = np.arange(VOCAB) == space
    _, targets = mask_tokens(tokens, starts, 0.5, jax.random.key(0))
    chosen = np.asarray(targets) != PAD
    assert (chosen[:, 0] == chosen[:, 1]).all() and (chosen[:, 5] == chosen[:, 6]).all()
    for first, second in ((1, 2), (3, 5)):
        assert (chosen[:, first] == chosen[:, second]).mean() == pytest.approx(0.5, abs=0.05)


def test_only_the_key_decides_what_is_masked(sentences):
    first, again, reseeded = (
        mask_tokens(jnp.asarray(sentences), STARTS, 0.15, jax.random.key(seed))[1]
        for seed in (2, 2, 3)
    )
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(reseeded)).any()


def test_the_step_masks_other_tokens_at_each_update_and_the_same_ones_again(sentences):
    config = tiny_config(training__objective="masked_lm", model__dropout=0.0)
    seen = []

    def inputs(batch, key):
        masked = make_masking(config.training, [""] * VOCAB)(batch, key)
        jax.debug.callback(lambda targets: seen.append(np.array(targets)), masked["target_output"])
        return masked

    here = setup(config, vocab_size=VOCAB)
    here.step.inputs = inputs
    batch = {"source": sentences[:8]}
    here.after([batch], [batch])
    here.after([batch])
    jax.effects_barrier()
    first, second, again = seen
    assert (first != second).any()
    np.testing.assert_array_equal(first, again)


def test_the_loss_is_that_of_the_masked_tokens(sentences):
    config = tiny_config(
        training__objective="masked_lm", model__dropout=0.0, training__label_smoothing=0.0
    )
    here = setup(config, vocab_size=VOCAB)
    inputs, targets = mask_tokens(jnp.asarray(sentences[:8]), STARTS, 0.15, jax.random.key(5))
    here.step.inputs = lambda batch, key: {"source": inputs, "target_output": targets}
    _, metrics = here.after([{"source": sentences[:8]}])
    model = nnx.merge(here.step.graph, nnx.State(here.initializer.create().parameters))
    assert isinstance(model, MaskedLanguageModel)
    log_p = np.asarray(jax.nn.log_softmax(model(inputs)), np.float64)
    expected = -sum(
        log_p[row, column, targets[row, column]] for row, column in np.argwhere(targets != PAD)
    )
    assert metrics["sums"].nll == pytest.approx(expected, rel=1e-5)
    assert metrics["sums"].tokens == np.count_nonzero(targets)


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    config = tiny_config(model__num_layers=2)
    return random_model(lambda: LanguageModel(config.model, VOCAB, rngs=nnx.Rngs(0))).module


def continue_greedily(forward: Callable, prompt: list[int], most: int) -> list[int]:
    """Returns the prompt and the most likely next tokens, by passes over the whole sequence."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + most:
        inputs = np.full((1, 16), PAD)
        inputs[0, : len(tokens) + 1] = [BOS, *tokens]
        logits = np.array(forward(inputs)[0, len(tokens)])
        logits[[PAD, BOS, UNK]] = -np.inf
        tokens.append(int(logits.argmax()))
        if tokens[-1] == EOS:
            return tokens
    return [*tokens, EOS]


def test_greedy_continuations_are_those_of_forward_passes(language_model):
    prompts = [[9], [7, 30, 12, 5, 41], [22, 8, 8]]
    source = np.full((3, 8), PAD, np.int32)
    for row, prompt in zip(source, prompts, strict=True):
        row[: len(prompt) + 1] = [*prompt, EOS]
    limits = np.array([len(prompt) + 6 for prompt in prompts])
    sentences = SourceBatch(jnp.asarray(source), jnp.asarray(limits), max_length=16)
    hypotheses, done = BeamSearch(
        [language_model], sentences, make_decoding_config(beam_size=1), n_best=1
    ).run()
    assert done.all()
    forward = jax.jit(lambda inputs: language_model(inputs))
    for tokens, prompt in zip(np.asarray(hypotheses.tokens[:, 0]), prompts, strict=True):
        assert tokens[tokens != PAD].tolist() == continue_greedily(forward, prompt, 6)
    log_p = np.asarray(hypotheses.token_log_probabilities[1, 0])
    assert (log_p[:5] == 0.0).all() and (log_p[5:11] < 0.0).all()  # the prompt is certain


def test_beams_keep_the_prompt(language_model):
    sentences = SourceBatch(jnp.array([[7, 30, UNK, 41, EOS, PAD]]), jnp.array([9]), max_length=12)
    hypotheses, _ = BeamSearch([language_model], sentences, make_decoding_config(), n_best=4).run()
    tokens = np.asarray(hypotheses.tokens[0])
    assert np.isfinite(hypotheses.scores).all() and len(np.unique(tokens, axis=0)) == 4
    np.testing.assert_array_equal(tokens[:, [0, 1, 3]], [[7, 30, 41]] * 4)
    assert (tokens[:, 2] != UNK).all()  # the model's own token


SIDES = {
    "masked_lm": {"data__target_language": ""},
    "span_corruption": {
        "data__target_language": "",
        "tokenizer__user_symbols": ("<extra_id_0>", "<extra_id_1>"),
    },
    "causal_lm": {"data__source_language": ""},
}


@pytest.fixture(scope="module", params=list(SIDES))
def trained(request, tmp_path_factory) -> tuple[str, Path]:
    workdir = tmp_path_factory.mktemp(request.param) / "run"
    changes = SIDES[request.param] | {"training__steps": 24, "training__eval_every": 12}
    assert run(workdir, training__objective=request.param, **changes) == 0
    return request.param, workdir


@pytest.mark.first_case
def test_a_run_on_one_side_learns_and_is_evaluated_as_validation_does(trained, capsys):
    _, workdir = trained
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    first, last = (line for line in lines if line["split"] == "valid")
    assert last["nll"] < first["nll"] < math.log(100)
    flags = [f"--workdir={workdir}", "--split=valid"]
    assert cli.execute(evaluate.make_parser(), evaluate.main, flags) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["perplexity"] == pytest.approx(last["perplexity"], rel=1e-4)
    assert result["models"] == [{"workdir": str(workdir), "step": 24, "averaged": [24]}]
    assert json.loads((workdir / "evaluations" / "valid-step24.json").read_text()) == result


@pytest.mark.slow
def test_decoding_flags_are_refused_where_nothing_is_decoded(trained, capsys):
    objective, workdir = trained
    flags = [f"--workdir={workdir}", "--split=valid", "--decoding.beam_size=2"]
    assert cli.execute(evaluate.make_parser(), evaluate.main, flags) == 2
    message = (
        "--decoding.beam_size=2: has no meaning for the perplexity of a model of "
        f"training.objective={objective}"
    )
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


@pytest.mark.first_case
def test_held_out_text_is_not_longer_than_training_text(trained):
    models = load([str(trained[1])], "last", 1, [])
    config = with_values(models.config, {"data.max_length": 2})
    with pytest.raises(
        UserError, match="max_length=2: all sentences of data.valid_split=validation are longer"
    ):
        held_out_means(config, models.tokenizer, models.graphs[0], models.parameters[0], "valid")


@pytest.mark.first_case
def test_only_a_model_that_generates_text_continues_lines(trained, capsys, monkeypatch):
    objective, workdir = trained
    printed = io.BytesIO()
    with (
        io.TextIOWrapper(io.BytesIO(b"Wir wissen, dass\n\n")) as lines,
        io.TextIOWrapper(printed) as out,
    ):
        monkeypatch.setattr("sys.stdin", lines)
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", out)
            code = cli.execute(translate.make_parser(), translate.main, [f"--workdir={workdir}"])
        text = printed.getvalue().decode()
    if objective != "causal_lm":
        message = f"training.objective={objective} generates no text"
        assert code == 2 and message in capsys.readouterr().err
    else:
        first, second = text.splitlines()
        assert code == 0 and first.startswith("Wir wissen, dass") and second == ""


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["span_corruption"], indirect=True)
def test_a_translation_model_takes_all_parameters_of_span_corruption(
    trained, tmp_path, monkeypatch
):
    _, parent = trained
    prepared = []
    monkeypatch.setattr("transformer.run.loop.train", lambda run, profiled: prepared.append(run))
    assert run(tmp_path / "run", training__init_from=str(parent)) == 0
    (prepared_run,) = prepared
    expected = named_leaves(restore.read_parameters(parent / "checkpoints" / "24"))
    initial = named_leaves(jax.device_get(prepared_run.initial_state().parameters))
    assert initial.keys() == expected.keys() and any("cross" in name for name in initial)
    for name, array in initial.items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("plan", ["buckets", "packed"])
def test_batches_have_no_arrays_of_a_side_that_is_not_there(tmp_path, plan, monkeypatch):
    prepared = []
    monkeypatch.setattr("transformer.run.loop.train", lambda run, profiled: prepared.append(run))
    changes = {"batch__plan": plan, "batch__packed_length": 32}
    assert (
        run(tmp_path / "run", training__objective="masked_lm", **SIDES["masked_lm"], **changes) == 0
    )
    (prepared_run,) = prepared
    with Loader(
        prepared_run.corpus, prepared_run.config, DataPosition(0, 0), prepared_run.train_step.mesh
    ) as loader:
        _, arrays, stats = next(loader)
    packed = {"source_segments", "source_positions"} if plan == "packed" else set()
    assert (
        set(arrays)
        == set(prepared_run.train_step.abstract_batch(loader.buckets[0]))
        == {"source"} | packed
    )
    assert stats.target_tokens == 0 and stats.source_tokens == np.count_nonzero(arrays["source"])
    assert stats.positions == arrays["source"].size


@pytest.mark.slow
def test_ctc_runs_from_text_to_bleu(tmp_path, capsys):
    changes = {
        "training__label_smoothing": 0.0,
        "decoding__strategy": "ctc",
        "training__eval_bleu": True,
    }
    assert run(tmp_path / "run", training__objective="ctc", training__steps=12, **changes) == 0
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    first, *_, last = (line for line in lines if line["split"] == "valid")
    assert last["nll"] < first["nll"] and "bleu" in last
    flags = [f"--workdir={tmp_path / 'run'}", "--split=valid"]
    assert cli.execute(evaluate.make_parser(), evaluate.main, flags) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 200
    assert (
        cli.execute(evaluate.make_parser(), evaluate.main, [*flags, "--decoding.strategy=beam"])
        == 2
    )
    assert "an objective and a strategy of the same name need each other" in capsys.readouterr().err
