"""The three commands, as a user starts them: from sentences to a score; and the errors of training.

The errors of the other two are in test_evaluate.py and test_translate.py.
"""

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import XLA_FLAGS
from tests.training.tiny import flags
from transformer import evaluate, train
from transformer.config import cli, loading

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[1]
# in the fast suite too
OPTIMIZED = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": XLA_FLAGS}
RESULT = {
    *(
        "bleu",
        "chrf",
        "bleu_signature",
        "chrf_signature",
        "exact_match",
        "sentences",
        "split",
        "step",
        "averaged",
    ),
    *("decoding", "hypotheses", "seconds", "output_tokens_per_second", "bleu_lowercase_tokenized"),
}

QUICK = """
data.source=synthetic data.synthetic_examples=5000 data.workers=1 data.max_length=80
data.valid_split=valid tokenizer.vocab_size=800 batch.tokens=1024 batch.max_buckets=1
model.num_layers=1 model.d_model=64 model.d_ff=128 model.num_heads=4 model.dropout=0.0
model.dtype=float32
optimizer.schedule=linear optimizer.learning_rate=0.005 optimizer.warmup_steps=50
training.steps=400 training.eval_every=200 training.eval_sentences=40 training.log_every=50
training.samples=0
checkpoint.every=200 checkpoint.keep=2 decoding.max_source_length=80 decoding.max_extra_length=8
"""


def start(module: str, *argv: str, text: str = "") -> subprocess.CompletedProcess:
    """Runs a command in a new process, compiled as users compile it.

    Its output is UTF-8 in every locale.
    """
    argv = [sys.executable, "-m", f"transformer.{module}", *argv]
    return subprocess.run(
        argv, cwd=REPOSITORY, env=OPTIMIZED, input=text.encode(), capture_output=True
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("quick")
    overrides = [
        f"--config.{setting}" for setting in [*QUICK.split(), f"data.cache_dir={folder / 'cache'}"]
    ]
    done = start("train", "--config=configs/base.py", f"--workdir={folder / 'run'}", *overrides)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()
    return folder / "run"


@pytest.mark.slow
def test_a_workdir_is_the_whole_record(quick, tmp_path):
    there = {path.name for path in quick.iterdir()}
    expected = {
        "config.json",
        "environment.json",
        "contents.json",
        "tokenizer.model",
        "metrics.jsonl",
        "checkpoints",
    }
    assert there == expected | {"tensorboard", "log.txt", "complete.json", ".lock"}
    lines = [json.loads(line) for line in (quick / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(50, 401, 50))
    assert [line["step"] for line in lines if line["split"] == "valid" and "bleu" in line] == [
        200,
        400,
    ]


@pytest.mark.slow
def test_a_file_in_another_script_is_evaluated_with_a_warning(quick, tmp_path):
    (tmp_path / "greek").write_text("\u03ad\u03bd\u03b1\n", encoding="utf-8")
    files = [f"--{side}={tmp_path}/greek" for side in ("source", "reference")]
    done = start(
        "evaluate", f"--workdir={quick}", f"--output={tmp_path}", *files, "--decoding.beam_size=1"
    )
    assert done.returncode == 0, done.stderr.decode()
    warning = (
        "greek, en: 100.0% of the characters are unknown to the vocabulary; '\u03ad\u03bd\u03b1'"
    )
    assert warning in done.stderr.decode()


@pytest.mark.slow
def test_what_was_learned_is_evaluated(quick):
    done = start("evaluate", f"--workdir={quick}", "--split=test", "--decoding.beam_size=2")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert done.stdout.count(b"\n") == 1 and set(result) >= RESULT
    assert result["bleu"] > 60 and result["chrf"] > 80
    assert (result["split"], result["sentences"], result["averaged"]) == ("test", 200, 1)
    assert result["decoding"]["beam_size"] == 2
    hypotheses = Path(result["hypotheses"]).read_text().splitlines()
    assert len(hypotheses) == 200


@pytest.mark.slow
def test_what_was_learned_is_translated(quick):
    source = "I must find a clock.\n\nHe must draw a clock.\n"
    done = start("translate", f"--workdir={quick}", text=source)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split("\n") == [
        "Ich muss eine Uhr finden.",
        "",
        "Er muss eine Uhr zeichnen.",
        "",
    ]


@pytest.mark.slow
def test_the_documented_fine_tuning_in_small(quick, tmp_path, capsys):
    page = (REPOSITORY / "docs" / "training.md").read_text()
    section = page.partition("\n## Fine-tune\n")[2].partition("\n## ")[0]
    lines = (
        section.replace("runs/multi30k", str(quick))
        .replace("runs/finetune", str(tmp_path / "run"))
        .splitlines()
    )
    (_, training, *_), evaluations = (
        [line for line in lines if f"-m transformer.{name}" in line]
        for name in ("train", "evaluate")
    )
    model = loading.load(quick).model
    settings = {f"model.{key}": value for key, value in model.items()} | {
        "tokenizer.shared": True,
        "batch.tokens": 512,
    }
    settings |= {
        "training.init_from": quick,
        "training.steps": 10,
        "training.log_every": 5,
        "training.r_drop": 0,
    }
    settings |= {
        "data.cache_dir": tmp_path / "cache",
        "data.workers": 1,
        "training.eval_bleu": False,
    }
    settings |= {"checkpoint.best_metric": "loss", "batch.max_buckets": 1}
    settings |= {"decoding.max_source_length": 64, "decoding.max_extra_length": 8}
    flags = [
        *shlex.split(training)[3:],
        *(f"--config.{key}={value}" for key, value in settings.items()),
    ]
    assert cli.execute(train.make_parser(), train.main, flags) == 0
    # A random model of 300 tokens begins at ln 300 = 5.7.
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])["nll"] < 2
    capsys.readouterr()
    (line,) = (line for line in evaluations if f"--data={quick}" in line)
    assert (
        cli.execute(
            evaluate.make_parser(),
            evaluate.main,
            [*shlex.split(line)[3:], "--decoding.beam_size=1"],
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["data"] == f"test of {quick}" and result["bleu"] > 60


def refusal(argv: list[str], capsys) -> str:
    """Runs training in this process and returns its error message."""
    capsys.readouterr()
    code = cli.execute(train.make_parser(), train.main, argv)
    output, errors = capsys.readouterr()
    # Log lines of what went well before it may precede the error.
    *before, last = errors.splitlines()
    assert (code, output) == (2, "")
    assert last.startswith("error: ") and not any(
        "error" in line or "Traceback" in line for line in before
    )
    return last


def text_flags(folder: Path, **changes) -> list[str]:
    return flags(
        folder / "run", data__source="text", data__path=folder, data__valid_split="valid", **changes
    )


def write_text(folder: Path, stem: str, english: bytes, german: bytes) -> None:
    (folder / f"{stem}.en").write_bytes(english)
    (folder / f"{stem}.de").write_bytes(german)


def test_data_that_cannot_be_trained_on(tmp_path, capsys):
    def says(**changes) -> str:
        message = refusal(text_flags(tmp_path, training__steps=8, **changes), capsys)
        assert not (tmp_path / "run").exists()
        return message

    assert (
        f"data.train_split=train: no train.en or train.en.gz in {tmp_path}; found: no file"
        in says()
    )
    write_text(tmp_path, "train", b"one\ntwo\n" * 20, b"eins\nzwei\n" * 20)
    assert (
        f"data.valid_split=valid: no valid.en or valid.en.gz in {tmp_path}; found: train" in says()
    )
    write_text(tmp_path, "valid", b"one\n", b"eins\n")
    write_text(tmp_path, "train", b"", b"")
    assert (
        f"{tmp_path / 'train.en'} and train.de: no line can train tokenizer.kind=word; " in says()
    )
    write_text(tmp_path, "train", b"one\ntwo\n", b"eins\n")
    assert (
        f"{tmp_path / 'train.en'} has 2 lines and {tmp_path / 'train.de'} has 1: line N of one must"
        in says()
    )
    write_text(tmp_path, "train", b"one\ntwo\n" * 20, b"eins\nzwei\n" * 20)
    values = (
        "batch.tokens=8",
        "batch.row_multiple=8",
        "batch.length_multiple=8",
        "data.max_length=32",
    )
    assert all(f"config.{value}" in says(batch__tokens=8) for value in values)
    assert "mesh.data=1 mesh.fsdp=2 mesh.tensor=1: the product must be 1, " in says(
        mesh__data=1, mesh__fsdp=2
    )


def test_configs_that_cannot_be_trained(tmp_path, capsys):
    def says(*argv: str) -> str:
        message = refusal([*argv, f"--workdir={tmp_path / 'run'}"], capsys)
        assert not (tmp_path / "run").exists()
        return message

    assert "configs/bas.py: no such file; did you mean configs/base.py?" in says(
        "--config=configs/bas.py"
    )
    (tmp_path / "broken.py").write_text("def get_config(:\n")
    assert "broken.py: SyntaxError" in says(f"--config={tmp_path / 'broken.py'}")
    (tmp_path / "config.json").write_text("{")
    assert "damaged (" in says(f"--config={tmp_path / 'config.json'}")
    assert "did you mean" in says("--config=configs/base.py", "--config.model.dmodel=64")
    assert "model.d_model=large: must be" in says(
        "--config=configs/base.py", "--config.model.d_model=large"
    )
    assert "d_model must be divisible" in says(
        "--config=configs/base.py", "--config.model.d_model=100"
    )


def test_a_workdir_that_cannot_be_made(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    assert f"cannot be made (Not a directory: {tmp_path / 'file' / 'run'})" in refusal(
        flags(tmp_path / "file" / "run"), capsys
    )
    assert "cannot be made (Not a directory: " in refusal(
        flags(Path("/dev/null/run"), data__cache_dir=tmp_path), capsys
    )

    def forbidden(path: Path, **_) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    message = refusal(flags(tmp_path / "run"), capsys)
    assert f"--workdir={tmp_path / 'run'}: cannot be made (Permission denied: " in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
