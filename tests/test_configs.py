"""Every shipped config describes a run that can start: it is allowed, and its model and train step
trace.
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.tracked import tracked_files
from transformer.config import loading
from transformer.config.keys import flatten
from transformer.data.batches.epoch_plan import Bucket
from transformer.distributed.mesh import make_mesh
from transformer.run import checks
from transformer.training import compiled_step, state
from transformer.training import optimizer as optimizers
from transformer.workdir import create_workdir

# A list and not the content of the folder, since users keep their own configs there.
CONFIGS = [
    f"configs/{name}.py"
    for name in (
        *("base", "big", "multi30k", "quickstart", "finetune", "low_resource", "pretrain", "ctc"),
        *("attention_scores", "sequences", "back_translation", "multi30k_both", "mup", "t5"),
        *("pretrain_spans", "candidates", "robust"),
    )
]
NAMED = [
    f"configs/{name}.py"
    for name in ("table2", "table3", "table3_mini", "variants", "parsing", "verses")
]  # tests/test_named_configs.py
SMOKE = [("training.steps", "20")]


def largest_bucket(config) -> Bucket:
    """Returns the shape of the largest possible batch."""
    is_packed = config.batch.plan == "packed"
    length = config.batch.packed_length if is_packed else config.data.max_length
    languages = [config.data.source_language, config.data.target_language]
    if config.training.objective == "span_corruption":
        languages[1] = languages[0]  # it makes pairs of monolingual text
    sides = [length if language else 0 for language in languages]
    candidates = config.batch.candidates if config.batch.plan == "groups" else 1
    return Bucket(config.batch.tokens // length, *sides, candidates, is_packed)


def test_the_lists_have_every_config():
    assert set(tracked_files("configs/*.py")) == {
        *CONFIGS,
        *NAMED,
        "configs/__init__.py",
        "configs/rules.py",
    }


@pytest.mark.parametrize("path", [path for path in CONFIGS if path != "configs/base.py"])
def test_a_config_sets_only_what_differs_from_its_parent(path):
    text = Path(path).read_text()
    (parent,) = re.findall(r"^    config = (\w+)\.get_config\(", text, re.MULTILINE)
    assigned = re.findall(r"^    config\.([\w.]+) = ", text, re.MULTILINE)
    config, before = (
        flatten(loading.load_file(file, [])) for file in (path, f"configs/{parent}.py")
    )
    assert assigned and [key for key in assigned if config[key] == before[key]] == []


# The warm-ups of these configs are not longer than the short run.
NO_LONGER = ("configs/finetune.py", "configs/t5.py")


@pytest.mark.parametrize("path", [path for path in CONFIGS if path not in NO_LONGER])
def test_one_override_makes_a_short_run(path, caplog):
    with caplog.at_level("WARNING"):
        config = loading.load_file(path, SMOKE)
    whole = loading.load_file(path, [])
    assert (
        config.training.steps == config.training.eval_every == config.optimizer.warmup_steps == 20
    )
    shortened = {"training.steps", "training.eval_every", "optimizer.warmup_steps"}
    assert loading.difference(whole, config).keys() == shortened
    for key in shortened - {"training.steps"}:
        assert f"{key}={flatten(whole)[key]} is reduced to training.steps=20" in caplog.text


def test_a_short_run_records_the_resolved_values_and_resumes_with_the_same_command(tmp_path):
    config = loading.load_file("configs/big.py", SMOKE)
    workdir = create_workdir(tmp_path / "run", config)
    workdir.metrics.touch()  # the run has begun
    assert loading.load(workdir.path).optimizer.warmup_steps == 20
    checks.check_continuation(workdir, loading.load_file("configs/big.py", SMOKE))
    assert loading.load_file(str(workdir.config), []) == config


@pytest.mark.parametrize("path", CONFIGS)
def test_every_config_is_allowed_and_traces(path):
    loading.load_file(path, [])
    # each layer takes as long, and all are alike
    config = loading.load_file(path, [("model.num_layers", "1")])
    sizes = (config.tokenizer.vocab_size, config.tokenizer.vocab_size)
    mesh = make_mesh(config, jax.devices())
    schedule = optimizers.make_schedule(
        config.optimizer, config.model.d_model, config.training.steps
    )
    optimizer = optimizers.make_optimizer(config.optimizer, schedule)
    initializer = state.Initializer(config, optimizer, mesh, sizes)
    before = initializer.abstract_state
    train_step = compiled_step.CompiledStep(
        config, initializer.graph, optimizer, schedule, mesh, [""] * sizes[0]
    )

    def update(before, batch) -> tuple:
        after, metrics = train_step.update(before, batch, train_step.seed, 0.0)
        return after, metrics["gradient_norm"]

    after, gradient_norm = jax.eval_shape(
        update, before, train_step.abstract_batch(largest_bucket(config))
    )

    def types(tree) -> list:
        return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)

    assert types(after) == types(before)
    assert {leaf.dtype for leaf in jax.tree.leaves(after.parameters)} == {jnp.dtype("float32")}
    assert gradient_norm.shape == ()
