"""A step too small to wait for, batches for it, and the settings of runs that take seconds."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import ml_collections
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from configs import base
from scripts.verify_resume import read_untimed
from transformer import train
from transformer.config import cli
from transformer.distributed.mesh import make_mesh
from transformer.model.dropout import dropout
from transformer.model.transformer import Transformer
from transformer.support.special_tokens import BOS, EOS, PAD
from transformer.training import columns
from transformer.training.compiled_step import CompiledStep
from transformer.training.state import Initializer, TrainState

VOCAB_SIZE = 24
RATE_OF_ONE = optax.constant_schedule(1.0)


def tiny_config(**changes) -> ml_collections.ConfigDict:
    """The base config with a model of one layer; `changes` are keys with "__" for the dot."""
    config = base.get_config()
    config.model.update(
        {"num_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2, "dtype": "float32"}
    )
    config.update_from_flattened_dict(
        {key.replace("__", "."): value for key, value in changes.items()}
    )
    return config


@dataclasses.dataclass
class Setup:
    """An initializer and a train step of the same model."""

    initializer: Initializer
    step: CompiledStep

    def after(self, *updates: Sequence[dict]) -> tuple[TrainState, dict]:
        """The state after these updates, each from a list of batches, and the last one's metrics,
        as NumPy arrays.
        """
        state = self.initializer.create()
        for batches in updates:
            state, metrics = self.step(state, batches)
        return jax.device_get((state, metrics))

    def compiled_update(self, state: TrainState, batch: dict) -> jax.stages.Compiled:
        """The compiled update from single batches of this shape. Arrays may be abstract."""
        step = self.step
        return step.programs.compile(step.update, state, batch, step.seed, np.float32(1.0))


def setup(
    config: ml_collections.ConfigDict,
    optimizer: optax.GradientTransformation | None = None,
    mesh: Mesh | None = None,
    schedule: optax.Schedule = RATE_OF_ONE,
    vocab_size: int = VOCAB_SIZE,
    pieces: Sequence[str] = (),
) -> Setup:
    """Returns a setup with this optimizer, whose schedule is given too; by default an update
    subtracts the gradient.
    """
    optimizer, mesh = optimizer or optax.sgd(schedule), mesh or make_mesh(config, jax.devices())
    initializer = Initializer(config, optimizer, mesh, (vocab_size, vocab_size))
    return Setup(
        initializer, CompiledStep(config, initializer.graph, optimizer, schedule, mesh, pieces)
    )


def make_batch(
    lengths: Sequence[tuple[int, int]], rows: int, width: int, seed: int
) -> dict[str, np.ndarray]:
    """Returns a batch of random sentences of these lengths, EOS not counted; the other rows are
    filler.
    """
    random = np.random.default_rng(seed)
    names = ("source", "target_input", "target_output")
    batch = {name: np.full((rows, width), PAD, np.int32) for name in names}
    for row, (source, target) in enumerate(lengths):
        pieces = [random.integers(EOS + 1, VOCAB_SIZE, length) for length in (source, target)]
        values = ([*pieces[0], EOS], [BOS, *pieces[1]], [*pieces[1], EOS])
        for name, value in zip(names, values, strict=True):
            batch[name][row, : len(value)] = value
    return batch


def distance(tree, reference) -> float:
    """Returns the largest difference between two trees of arrays, relative to the largest value."""
    values, expected = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(y)]) for y in (tree, reference)
    )
    return float(np.max(np.abs(values - expected)) / np.max(np.abs(values)))


RUN = """
data.source=synthetic data.synthetic_examples=300 data.workers=1 data.max_length=32
tokenizer.kind=word tokenizer.vocab_size=100 batch.tokens=512 batch.max_buckets=1
model.num_layers=1 model.d_model=8 model.d_ff=16 model.num_heads=2 model.dtype=float32
optimizer.warmup_steps=4 optimizer.learning_rate=0.5
training.log_every=2 training.eval_every=4 training.eval_bleu=false
checkpoint.every=3 checkpoint.keep=2 checkpoint.best_metric=loss
"""


def flags(workdir: Path, **changes) -> list[str]:
    """Returns flags of `transformer.train` for a run of seconds; `changes` as in `tiny_config`."""
    settings = dict(setting.split("=") for setting in RUN.split())
    settings |= {"data.cache_dir": workdir.parent / "cache"}
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    return ["--config=configs/base.py", f"--workdir={workdir}", *overrides]


def run(workdir: Path, **changes) -> int:
    """The exit code of `transformer.train`, in this process."""
    return cli.execute(train.make_parser(), train.main, flags(workdir, **changes))


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> None:
    """Does `action` when the update after this step is about to be made."""
    update = CompiledStep.__call__

    def call(self, state, batches):
        if state.step == step:
            action()
        return update(self, state, batches)

    monkeypatch.setattr(CompiledStep, "__call__", call)


def set_chunk(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """Sets the size of a chunk of the loss, whatever the size of the table."""
    monkeypatch.setitem(columns.CHUNK_BYTES, "cpu", num_bytes)
    monkeypatch.setattr(columns, "CPU_BYTES_PER_TABLE_BYTE", math.inf)


def remove_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes models predict each token only from the one before it.

    Their runs trace and compile little.
    """

    def hidden(self, source, target_input, rngs=None, **_):
        return dropout(self.decoder.embedding(target_input), 0.1, rngs)

    monkeypatch.setattr(Transformer, "hidden", hidden)


def record(workdir: Path) -> list[dict]:
    """The lines of `metrics.jsonl`, without what a clock measured."""
    return read_untimed(workdir / "metrics.jsonl")
