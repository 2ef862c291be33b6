"""`--plan` describes the run that training then makes."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.training.tiny import remove_layers
from transformer import train
from transformer.config import cli
from transformer.run import dry_run
from transformer.training.compiled_step import CompiledStep

TINY = [
    "--config=configs/quickstart.py",
    "--config.data.synthetic_examples=400",
    "--config.data.workers=1",
    "--config.data.max_length=64",
    "--config.tokenizer.vocab_size=200",
    "--config.batch.tokens=512",
    "--config.batch.max_buckets=2",
    "--config.model.num_layers=1",
    "--config.model.d_model=16",
    "--config.model.d_ff=32",
    "--config.model.num_heads=2",
    "--config.optimizer.warmup_steps=2",
    "--config.training.steps=4",
    "--config.training.eval_every=4",
    "--config.checkpoint.every=2",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def print_plan(tmp_path, cache, capsys):
    def print_plan(*argv: str) -> str:
        changed = {flag.partition("=")[0] for flag in argv}
        argv = [*(flag for flag in TINY if flag.partition("=")[0] not in changed), *argv, "--plan"]
        argv += [f"--workdir={tmp_path / 'run'}", f"--config.data.cache_dir={cache}"]
        assert cli.execute(train.make_parser(), train.main, argv) == 0
        return capsys.readouterr().out

    return print_plan


def test_the_plan_is_printed_and_nothing_is_trained(tmp_path, print_plan):
    plan = print_plan("--config.model.output_bias=true")
    pairs = plan.splitlines()[:4]
    assert [line[:16] for line in pairs] == ["pair        en: ", "pair        de: "] * 2
    assert max(map(len, pairs)) <= 80
    # Embedding 200 x 16; attention 4 x 16^2; FFN 2 x 16 x 32 + 32 + 16; two numbers a unit in each
    # norm.
    attention, feed_forward, norm = 4 * 16**2, 2 * 16 * 32 + 32 + 16, 2 * 16
    total = (
        200 * 16 + (attention + feed_forward + 2 * norm) + (2 * attention + feed_forward + 3 * norm)
    )
    total += 2 * norm  # final norms of the two pre-norm stacks
    total += 200  # the bias of the logits
    assert (
        "parameters  output_bias: 200\n" in plan
        and "parameters  decoder.embedding: 3,200\n" in plan
    )
    assert f"parameters  in all: {total:,}" in plan
    batches = sum(int(count) for count in re.findall(r"(\d+) per epoch", plan))
    steps = float(re.search(r"target tokens, ([\d.]+) steps", plan)[1])
    assert batches == steps
    assert float(re.search(r"4 steps, ([\d.]+) epochs", plan)[1]) == round(4 / steps, 1)
    assert re.search(r"largest     [\d,]+ MiB per device, [\d.]+ GFLOP", plan)
    # of steps 2 and 4
    assert "checkpoints at most 2, " in plan and " MiB in 2 of them for the optimizer, " in plan
    assert " 0 MiB" not in plan  # sizes below 1 MiB have two digits
    assert re.search(r"time        \d+:\d\d:\d\d of training left", plan)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_only_the_largest_batch_is_assembled(monkeypatch, print_plan):
    remove_layers(monkeypatch)
    assembled, assemble = [], dry_run.assemble_batch
    monkeypatch.setattr(
        dry_run,
        "assemble_batch",
        lambda pairs, batch: assembled.append(batch.bucket) or assemble(pairs, batch),
    )
    monkeypatch.setattr(
        dry_run.Loader, "__next__", lambda _: pytest.fail("iterates over the batches")
    )
    plan = print_plan("--config.tokenizer.subword_sampling=0.1")
    assert len(assembled) == 1 and str(assembled[0]) in plan
    assert re.search(r"padding in all: [\d.]+ % besides the length reserved for samples\n", plan)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("objective", "absent", "side", "language"),
    [("masked_lm", "target", "source", "en"), ("causal_lm", "source", "target", "de")],
)
def test_only_the_side_that_a_language_model_has_is_printed(
    print_plan, objective, absent, side, language
):
    flags = ["eval_bleu=false", f"objective={objective}"]
    flags = [f"--config.training.{flag}" for flag in flags] + [f"--config.data.{absent}_language="]
    plan = print_plan(*flags, "--config.checkpoint.best_metric=loss")
    assert re.search(rf"batches     \d+ rows x \d+ {side}: \d+ per epoch", plan)
    assert re.search(rf"epoch       400 sentences, [1-9][\d,]+ {side} tokens", plan)
    assert absent not in plan and f"{language}: " in plan


@pytest.fixture
def made(monkeypatch) -> list[int]:
    """The number of batches of each update that is made, without layers."""
    remove_layers(monkeypatch)
    update, counts = CompiledStep.__call__, []

    def call(step, state, batches):
        counts.append(len(batches))
        return update(step, state, batches)

    monkeypatch.setattr(CompiledStep, "__call__", call)
    return counts


@pytest.mark.slow
def test_the_number_of_batches_may_change(made, print_plan):
    plan = print_plan("--config.training.accumulation_changes=3:2,4:4")
    batches = sum(int(count) for count in re.findall(r"(\d+) per epoch", plan))
    per_epoch = (
        rf"{batches:.1f} steps \({batches / 2:.1f} from step 3 on, {batches / 4:.1f} "
        r"from step 4 on\)\n"
    )
    assert re.search(f"target tokens, {per_epoch}", plan)
    assert f"4 steps, {(1 + 1 + 2 + 4) / batches:.1f} epochs" in plan
    assert made == [count for count in (1, 2, 4) for _ in range(1 + dry_run.MEASURED_STEPS)]


def test_checkpoints_of_keep_every_are_counted(monkeypatch, print_plan):
    remove_layers(monkeypatch)
    settings = (
        "--config.training.steps=9",
        "--config.checkpoint.keep=2",
        "--config.checkpoint.keep_every=4",
    )
    # The multiples 4 and 8 of keep_every, the newest 6 and 8, the last 9, and 2 if 4 is the best.
    plan = print_plan(*settings)
    assert "checkpoints at most 5, " in plan and " MiB in 4 of them for the optimizer, " in plan


@pytest.mark.slow
def test_the_time_of_accumulated_updates_is_measured(made, print_plan):
    print_plan("--config.training.accumulation=3")
    assert made == [3] * (1 + dry_run.MEASURED_STEPS)


@pytest.mark.slow
def test_the_time_left_is_that_of_the_remaining_batches(monkeypatch, print_plan):
    remove_layers(monkeypatch)
    monkeypatch.setattr(dry_run, "seconds_per_position", lambda *_: 0.1)

    def seconds(plan: str) -> int:
        hours, minutes, rest = map(
            int, re.search(r"time        (\d+):(\d\d):(\d\d) of", plan).groups()
        )
        return 3600 * hours + 60 * minutes + rest

    plan = print_plan()
    of_buckets = re.findall(r"(\d+) rows x (\d+) source, (\d+) target: (\d+) per epoch", plan)
    positions = [int(rows) * (int(source) + int(target)) for rows, source, target, _ in of_buckets]
    batches = [int(count) for *_, count in of_buckets]
    mean = sum(one * count for one, count in zip(positions, batches, strict=True)) / sum(batches)
    assert seconds(plan) == pytest.approx(0.1 * mean * 4, abs=1)
    changing = print_plan("--config.training.accumulation_changes=3:2,4:4")
    assert seconds(changing) == pytest.approx(0.1 * mean * (1 + 1 + 2 + 4), abs=1)
    monkeypatch.setattr(dry_run, "steps_in", lambda folder: [3])
    assert seconds(print_plan()) == pytest.approx(0.1 * mean, abs=1)
    assert seconds(print_plan("--config.training.accumulation_changes=3:2,4:4")) == pytest.approx(
        0.4 * mean, abs=1
    )


@pytest.mark.parametrize(
    ("analysis", "cost"),
    [({"flops": 2e9}, ", 2.0 GFLOP per batch and device"), ({}, ""), (None, "")],
)
def test_operations_are_shown_if_the_backend_reports_them(monkeypatch, analysis, cost):
    program = jax.jit(lambda x: x @ x).lower(jnp.ones((512, 512))).compile()
    monkeypatch.setattr(jax.stages.Compiled, "cost_analysis", lambda _: analysis)
    assert dry_run.costs(program) == f"2 MiB per device{cost}"
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda _: None)
    assert dry_run.costs(program) == (
        cost.removeprefix(", ") or "compiled; this backend reports neither memory nor operations"
    )
