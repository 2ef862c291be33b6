"""Every key of configs/base.py is read by the code, in tiny runs of the commands that take each
branch.
"""

import functools
import hashlib
import subprocess
import sys
from pathlib import Path

import ml_collections
import pytest

from configs import base
from scripts.results.runs import describe_note
from tests.data.sources.test_tfds import WRITE as WRITE_TFDS
from tests.training.tiny import remove_layers
from transformer import evaluate, train
from transformer.config import cli, loading
from transformer.config.keys import flatten
from transformer.data.batches.epoch_plan import Bucket
from transformer.run import preparation

pytestmark = pytest.mark.long

DEFAULTS = base.get_config()
PACKAGE = Path(cli.__file__).parents[1]


@pytest.fixture
def reads(monkeypatch):
    """The keys that transformer/, outside of config/, reads by `group.key` or `group[key]`."""
    reads: set[str] = set()
    groups = {frozenset(DEFAULTS): ""}
    groups |= {frozenset(group): f"{name}." for name, group in DEFAULTS.items() if name != "seed"}

    @functools.cache
    def is_counted(file: str) -> bool:
        # types.py reads keys for several parts of the package; the rest of the folder only checks
        # them.
        checks = PACKAGE / "config" in Path(file).parents and Path(file).name != "types.py"
        return PACKAGE in Path(file).parents and not checks

    def record(method: str) -> None:
        original = getattr(ml_collections.ConfigDict, method)

        def recording(self, name: str):
            if is_counted(sys._getframe(1).f_code.co_filename):
                reads.add(groups.get(frozenset(self), "") + name)
            return original(self, name)

        monkeypatch.setattr(ml_collections.ConfigDict, method, recording)

    record("__getattr__")
    record("__getitem__")
    return reads


TINY = """
data.workers=1 data.max_length=64 batch.tokens=512 batch.max_buckets=1
model.num_layers=1 model.d_model=16 model.d_ff=16 model.num_heads=2 model.max_positions=128
model.dtype=float32
optimizer.warmup_steps=1 training.steps=2 training.log_every=1 training.eval_every=2
training.eval_sentences=4 checkpoint.every=1 checkpoint.keep=1 decoding.max_source_length=16
decoding.max_extra_length=4
"""


def settings_of(folder: Path, settings: str, more: dict[str, str]) -> dict[str, str]:
    values = dict(setting.split("=") for setting in (TINY + settings).split())
    return values | more | {"data.cache_dir": str(folder / "cache")}


def run_training(folder: Path, settings: str, more: dict[str, str], code: int = 0) -> None:
    """Trains without the layers; `trace` and the evaluations read what layers read."""
    flags = [
        f"--config.{key}={value}" for key, value in settings_of(folder, settings, more).items()
    ]
    argv = ["--config=configs/base.py", f"--workdir={folder / 'run'}", *flags]
    with pytest.MonkeyPatch.context() as monkeypatch:
        remove_layers(monkeypatch)
        assert cli.execute(train.make_parser(), train.main, argv) == code


def trace(folder: Path, name: str, settings: str, more: dict[str, str], target_length: int) -> None:
    """Prepares a run and traces its step, which reads their keys, and trains nothing."""
    config = loading.load_file("configs/base.py", list(settings_of(folder, settings, more).items()))
    with preparation.open_workdir(folder / name, config) as (workdir, config):
        run = preparation.prepare(config, workdir)
    step, state = run.train_step, run.initializer.abstract_state
    function, *arguments = step.batch_call(
        state, Bucket(8, 16, target_length), is_accumulating=False
    )
    function.lower(*arguments)


def run_evaluation(folder: Path, flags: str) -> None:
    argv = [f"--workdir={folder / 'run'}", "--split=test", *flags.split()]
    assert cli.execute(evaluate.make_parser(), evaluate.main, argv) == 0


def synthetic(folder: Path) -> None:
    settings = """
    data.source=synthetic data.synthetic_examples=300 tokenizer.vocab_size=200
    training.ema_decay=0.5
    training.patience=9
    """
    run_training(folder, settings, {})
    run_evaluation(folder, "--decoding.beam_size=2")


def text_by_download(folder: Path) -> None:
    triples = []
    for source in sorted(Path("tests/fixtures/multi30k").resolve().glob("*.[ed][en]")):
        triples.append(
            (source.name, source.as_uri(), hashlib.sha256(source.read_bytes()).hexdigest())
        )
    settings = """
    data.source=text data.valid_split=valid data.test_split=test2016 tokenizer.kind=unigram
    tokenizer.vocab_size=100
    tokenizer.subword_sampling=0.1 batch.plan=packed batch.packed_length=64 training.accumulation=2
    training.r_drop=1
    optimizer.name=adamw optimizer.schedule=cosine optimizer.weight_decay=0.1 optimizer.clip_norm=1
    model.positions=learned
    """
    run_training(
        folder, settings, {"data.name": "captions", "data.downloads": repr(tuple(triples))}
    )
    run_evaluation(
        folder,
        "--decoding.strategy=mbr --decoding.top_k=5 --decoding.top_p=0.9 "
        "--decoding.temperature=0.8",
    )


def ids(folder: Path) -> None:
    for stem in ("train", "validation", "test"):
        for language in ("en", "de"):
            (folder / f"{stem}.{language}").write_text(
                "".join(f"{i % 7} {i % 5}\n" for i in range(40))
            )
    (folder / "links").write_text("0-0\n" * 40)
    settings = """
    data.source=ids tokenizer.kind=ids tokenizer.vocab_size=20 model.positions=rotary
    optimizer.name=adafactor
    tokenizer.shared=false model.share_embeddings=target training.guided_heads=1.1
    model.attention_implementation=plain
    """
    mixture = f"('weight=2 alignments={folder / 'links'}',)"
    trace(folder, "run", settings, {"data.path": str(folder), "data.mixture": mixture}, 16)
    describe_note(loading.load(folder / "run"))


def candidates(folder: Path) -> None:
    for stem in ("train", "validation", "test"):
        for language, count in (("en", 20), ("de", 40)):
            texts = "".join(f"{i * count // 40 % 7} 1\n" for i in range(40))
            (folder / f"{stem}.{language}").write_text(texts)
    (folder / "rewards").write_text("0\n1\n" * 20)
    settings = """
    data.source=ids tokenizer.kind=ids tokenizer.vocab_size=20
    batch.plan=groups batch.candidates=2 batch.row_multiple=1 training.likelihood_weight=1
    """
    more = {"data.path": str(folder), "data.mixture": "('rewards=rewards',)"}
    for name in ("minimum_risk", "contrastive"):
        trace(folder, name, settings + f"training.candidate_loss={name}", more, 16)


def diverging_tfds(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITE_TFDS, str(folder)], check=True, capture_output=True)
    # The first update makes the parameters overflow, so every later update is skipped.
    settings = """
    data.source=tfds data.name=tiny_translate data.test_split=validation tokenizer.kind=char
    tokenizer.vocab_size=60
    tokenizer.shared=false model.share_embeddings=none training.eval_bleu=false
    checkpoint.best_metric=loss
    optimizer.learning_rate=1e38 training.steps=9 training.eval_every=9 training.max_skipped=2
    training.max_rollbacks=1
    """
    # It starts from parameters of another branch that do not depend on the vocabulary.
    parent = {"training.init_from": str(folder.parent / "synthetic" / "run")}
    parent |= {"training.init_skip": "encoder,decoder.embedding,projection"}
    run_training(folder, settings, {"data.path": str(folder), **parent}, code=2)


def objectives(folder: Path) -> None:
    settings = (
        "data.source=synthetic data.synthetic_examples=300 tokenizer.vocab_size=200 "
        "training.eval_bleu=false "
    )
    settings += "checkpoint.best_metric=loss "
    masked = "training.objective=masked_lm data.target_language= optimizer.name=ademamix"
    trace(folder, "masked", settings + masked, {}, 0)
    spans = "training.objective=span_corruption data.target_language= "
    trace(folder, "spans", settings + spans, {"tokenizer.user_symbols": "('<extra_id_0>',)"}, 8)
    trace(folder, "ctc", settings + CTC + MUP, {}, 16)


CTC = "training.objective=ctc decoding.strategy=ctc training.label_smoothing=0.0"
MUP = " model.parameterization=mup model.base_d_model=8 model.base_d_k=4 optimizer.schedule=linear"


@pytest.mark.slow
def test_every_key_is_read(reads, tmp_path):
    for branch in (synthetic, text_by_download, ids, objectives, candidates, diverging_tfds):
        (tmp_path / branch.__name__).mkdir()
        branch(tmp_path / branch.__name__)
    assert set(flatten(DEFAULTS)) - reads == set()
