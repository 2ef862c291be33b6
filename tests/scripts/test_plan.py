"""The report on a tiny model, whose programs XLA compiles for this machine's CPU in place of the
accelerator.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import jax
import pytest

from scripts import plan
from scripts.planning import accelerator_estimate, devices, lengths, report
from scripts.planning.accelerator_estimate import AcceleratorEstimate, estimate_run
from scripts.planning.devices import parse_target
from tests.checkpoints.workdirs import run
from transformer.config.loading import load_file, with_values
from transformer.data.tokenizers import tokenizer
from transformer.workdir import create_workdir

TINY = [
    "--config=configs/base.py",
    "--device=h100",
    "--lengths=20000:10:11",
    "--config.data.max_length=32",
    "--config.tokenizer.vocab_size=256",
    "--config.batch.tokens=512",
    "--config.batch.max_buckets=3",
    "--config.model.num_layers=1",
    "--config.model.d_model=16",
    "--config.model.d_ff=32",
    "--config.model.num_heads=2",
    "--config.model.dropout=0",
    "--config.training.accumulation=2",
]
HAVE_COMPILERS = all(map(devices.is_installed, devices.MODULES))
ELSEWHERE = [flag for flag in TINY if not flag.startswith("--device")]
WITHOUT_LENGTHS = [flag for flag in TINY if "--lengths" not in flag]


@pytest.fixture(scope="module")
def estimated() -> AcceleratorEstimate:
    """Returns the estimate that the command makes, compiled once for all tests."""
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "find_devices", lambda target: jax.devices()[: target.count])
        patch.setattr(
            accelerator_estimate,
            "estimate_run",
            lambda *arguments: results.append(estimate_run(*arguments)) or results[0],
        )
        assert run(plan, *TINY) == 0
    return results[0]


@pytest.fixture
def print_plan(estimated, monkeypatch, capsys):
    def print_plan(*argv: str, flags: Sequence[str] = TINY) -> str:
        monkeypatch.setattr(devices, "find_devices", lambda target: jax.devices()[: target.count])
        monkeypatch.setattr(accelerator_estimate, "estimate_run", lambda *_: estimated)
        assert run(plan, *flags, *argv) == 0
        return capsys.readouterr().out

    return print_plan


@pytest.mark.slow
def test_the_report_in_words(print_plan):
    text = print_plan()
    attention, feed_forward, norm = 4 * 16**2, 2 * 16 * 32 + 32 + 16, 2 * 16
    total = (
        256 * 16 + (attention + feed_forward + 2 * norm) + (2 * attention + feed_forward + 3 * norm)
    )
    assumed = (
        "lengths     assumed: 20,000 pairs, log-normal lengths with means of 10 source "
        "and 11 target tokens;"
    )
    for line in (
        f"parameters  {total:,}\n",
        re.escape(assumed),
        r"memory      fits: [\d.]+ of 75.15 GiB per device, for batches of \d+ rows x",
        r"memory      parameters 0.00 GiB, optimizer state 0.00 GiB; activations, gradients "
        r"and other temporaries",
        r"roofline    [\d.]+ ms at least: kernels [\d.]+, memory [\d.]+, wire 0.0",
        r"run         100,000 steps of [\d.]+ ms on average; [\d,]+ source and target tokens/s",
    ):
        assert re.search(f"^{line}", text, re.MULTILINE), line
    assert len(re.findall("^kernel  ", text, re.MULTILINE)) == 10
    assert "collective" not in text


@pytest.mark.slow
def test_times_in_the_report(print_plan, estimated):
    values = json.loads(print_plan("--format=json"))
    times, step = values["run"], values["step"]
    bounds = [shape.cost.seconds for shape in (estimated.typical, estimated.largest)]
    assert 0 < times["mean_step_seconds"] <= 1.001 * max(bounds)
    assert times["hours"] == pytest.approx(100_000 * times["mean_step_seconds"] / 3600, rel=1e-4)
    assert times["hours_at_70_percent"] == pytest.approx(times["hours"] / 0.7, rel=1e-4)
    assert step["seconds"] == max(step[f"{part}_seconds"] for part in ("kernel", "memory", "wire"))
    assert step["utilization"] == pytest.approx(
        step["flops"] / step["seconds"] / 989.4e12, rel=1e-4
    )


@pytest.mark.slow
def test_the_products_in_the_report_are_those_of_the_model(print_plan):
    step = json.loads(print_plan("--format=json"))["step"]
    rows, s, t = (step["shape"][name] for name in ("rows", "source_length", "target_length"))
    d, ff, vocab = 16, 32, 256
    sublayers = (s + t) * (4 * d * d + 2 * d * ff) + 2 * d * d * (s + t) + t * d * vocab
    attention = 2 * d * (s * s + t * t + s * t)
    forward = 2 * rows * (sublayers + attention)
    # Backward takes twice as much, and accumulation has two batches.
    assert step["flops"] == pytest.approx(2 * 3 * forward, rel=0.1)


@pytest.mark.slow
def test_the_cost_is_the_mean_over_all_steps_if_the_number_of_batches_changes(estimated):
    target = parse_target("h100")

    def estimate_of(*flags: str) -> AcceleratorEstimate:
        overrides = [flag.removeprefix("--config.").split("=") for flag in (*TINY[3:], *flags)]
        config = load_file("configs/base.py", list(map(tuple, overrides)))
        return estimate_run(
            config, target, jax.devices()[:1], lengths.assume(config, "20000:10:11")
        )

    single, triple = (
        estimate_of("--config.training.accumulation=1"),
        estimate_of("--config.training.accumulation=3"),
    )
    # 100,000 steps: a quarter from one batch, then from three.
    mixed = estimate_of(
        "--config.training.accumulation=1", "--config.training.accumulation_changes=25001:3"
    )
    assert mixed.step_tokens == pytest.approx(2.5 * single.step_tokens)
    assert mixed.step_seconds == pytest.approx(
        0.25 * single.step_seconds + 0.75 * triple.step_seconds
    )
    assert (mixed.typical.batches, mixed.typical.cost.flops) == (3, triple.typical.cost.flops)


def test_the_memory_in_the_report(print_plan, estimated):
    memory = json.loads(print_plan("--format=json"))["memory"]
    assert memory["state"] == {
        "parameters": 4 * estimated.parameters,
        "optimizer state": 8 * estimated.parameters + 8,
    }
    assert memory["used"] == sum(memory["state"].values()) + memory["temporaries"]
    assert memory["temporaries"] > 0


def with_memory(estimated: AcceleratorEstimate, **changes: int) -> AcceleratorEstimate:
    """Returns the estimate with another memory of its largest shape."""
    memory = estimated.largest.memory._replace(**changes)
    return estimated._replace(largest=estimated.largest._replace(memory=memory))


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.7, "fits"), (0.8, "fits with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95"), (0.96, "does not fit")],
)
def test_the_verdict_names_the_share_of_a_gpu_that_jax_needs(estimated, share, verdict):
    target = parse_target("h100")
    changed = with_memory(estimated, used=int(share * target.kind.memory))
    values = report.training_to_json(load_file("configs/base.py", []), target, "", changed)
    lines = report.training_to_lines(target, changed, values)
    assert any(line.startswith(f"memory      {verdict}: ") for line in lines)


def test_the_report_of_a_search(monkeypatch, capsys):
    monkeypatch.setattr(devices, "find_devices", lambda target: jax.devices()[: target.count])
    flags = [flag.replace("h100", "h100:2") for flag in TINY]
    assert run(plan, *flags, "--search", "--config.decoding.batch_tokens=1024") == 0
    text = capsys.readouterr().out
    for line in (
        r"memory      fits: 0.00 of 75.15 GiB per device, for batches of 8 sentences x 16",
        r"search      of 8 sentences x 16, 4 hypotheses each, outputs of at most 24 tokens",
        r"start       0.00 TFLOP of products, .*; [\d.]+ ms at least",
        r"batch       [\d.]+ tokens in [\d.]+ steps, [\d.]+ ms at least",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), line

    # Both devices translate, each its own batches.
    tokens, milliseconds = re.search(r"^batch +(\d+) .*, ([\d.]+) ms", text, re.MULTILINE).groups()
    speed = re.search(r"^speed       ([\d,]+) output tokens/s", text, re.MULTILINE)[1]
    expected = 2 * float(tokens) / float(milliseconds) * 1000
    assert float(speed.replace(",", "")) == pytest.approx(expected, rel=0.1)


def test_a_search_that_does_not_fit_names_the_key(monkeypatch, capsys):
    monkeypatch.setattr(devices, "find_devices", lambda target: jax.devices()[: target.count])
    kind = devices.ACCELERATORS["h100"]._replace(memory=100_000)
    monkeypatch.setitem(devices.ACCELERATORS, "h100", kind)
    assert run(plan, *TINY, "--search") == 2
    output = capsys.readouterr()
    assert "memory      does not fit: " in output.out
    advice = "lower config.decoding.batch_tokens=8192"
    assert re.search(
        f"^error: --device=h100: the search does not fit .*; {advice}$", output.err, re.M
    )


def test_a_run_gives_its_own_lengths_and_vocabularies(print_plan, monkeypatch, tmp_path):
    settings = {
        "data.source": "text",
        "data.name": "few",
        "data.path": str(tmp_path),
        "data.train_split": "few",
    }
    settings |= {"tokenizer.kind": "char", "data.cache_dir": str(tmp_path / "cache")}
    for language, text in (("en", "ab\nabc\n"), ("de", "b\nabcd\n")):
        (tmp_path / f"few.{language}").write_text(text)
    create_workdir(tmp_path / "run", with_values(load_file("configs/base.py", []), settings))
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    report = print_plan(*flags, f"--workdir={tmp_path / 'run'}", flags=WITHOUT_LENGTHS)
    # with the marks of beginning and end
    means = "2 sentences with means of 4.5 source and 4.5 target tokens"
    assert f"lengths     of {tmp_path / 'run'}: {means}; vocabulary of 9" in report


def test_the_vocabularies_are_those_of_the_run_and_pairs_that_do_not_count_are_told(tmp_path):
    config = load_file("configs/base.py", [])
    settings = {"data.source": "text", "data.path": str(tmp_path), "data.train_split": "few"}
    settings |= {"tokenizer.kind": "char", "data.cache_dir": str(tmp_path / "cache")}
    for language in ("en", "de"):
        (tmp_path / f"few.{language}").write_text("ab\n")
    made = with_values(config, settings)
    create_workdir(tmp_path / "run", made)
    tokenizer.prepare(made, tmp_path / "run")
    before = sorted(tmp_path.glob("run/*"))
    lengths.read(
        with_values(made, {"tokenizer.shared": False, "model.share_embeddings": "target"}),
        tmp_path / "run",
    )
    assert sorted(tmp_path.glob("run/*")) == before
    assumed = lengths.assume(config, "1000:200:200")
    share = len(assumed.corpus) / 1000
    assert (
        0.5 < share < 0.9
        and f"; {share:.0%} of the pairs fit in max_length=256, and only" in assumed.description
    )


def test_what_does_not_fit_says_what_takes_the_memory(print_plan, estimated, monkeypatch, capsys):
    print_plan()
    monkeypatch.setattr(
        accelerator_estimate, "estimate_run", lambda *_: with_memory(estimated, available=100_000)
    )
    assert run(plan, *TINY) == 2
    report = capsys.readouterr()
    assert "memory      does not fit: " in report.out
    needs = (
        r"^error: --device=h100: a step of \d+ rows x .* does not fit \(.* of 0.00 GiB per "
        r"device: parameters .*"
    )
    advice = "lower config.batch.tokens=512 and raise config.training.accumulation in return"
    assert re.search(f"{needs}{advice}", report.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            [flag.replace("h100", "h1000") for flag in TINY],
            r"--device=h1000: no such device; .*; did you mean h100\?",
        ),
        (
            [*WITHOUT_LENGTHS, "--lengths=9:400:400"],
            r"--lengths=9:400:400: no pair fits in config.data.max_length=32",
        ),
        ([*WITHOUT_LENGTHS, "--lengths=5"], r"--lengths=5: must be PAIRS:SOURCE:TARGET"),
        (
            [*TINY, "--config.mesh.fsdp=3"],
            r"mesh.data=-1 mesh.fsdp=3 mesh.tensor=1: the product must be 1, the number",
        ),
        ([*TINY, "--workdir=x"], r"argument --workdir: not allowed with argument --lengths"),
        ([*WITHOUT_LENGTHS, "--workdir=x"], r"--workdir=x: no such folder"),
        (["--config=configs/base.py"], r"the following arguments are required: --device"),
    ],
)
def test_unusable_flags_are_one_line(monkeypatch, capsys, argv, message):
    monkeypatch.setattr(devices, "find_devices", lambda target: jax.devices()[: target.count])
    assert run(plan, *argv) == 2
    output = capsys.readouterr()
    assert (
        output.out == ""
        and re.search(f"^error: {message}", output.err)
        and output.err.count("\n") == 1
    )


@pytest.mark.slow
@pytest.mark.skipif(not HAVE_COMPILERS, reason="XLA's compilers for accelerators are not installed")
@pytest.mark.parametrize("device", ["h100:2", "v5e:2x2"])
def test_programs_are_compiled_for_absent_devices(device):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [
        sys.executable,
        "-m",
        "scripts.plan",
        *ELSEWHERE,
        f"--device={device}",
        "--format=json",
    ]
    command.append("--config.mesh.fsdp=2")
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert {collectives["kind"] for collectives in report["step"]["collectives"]} >= {"all-reduce"}
    assert report["step"]["flops"] > 0 and report["memory"]["fits"]
