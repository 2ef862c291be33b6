"""Workdirs with random models, without training."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs import base
from transformer.checkpoints.manager import Checkpoints
from transformer.config import cli, loading
from transformer.data.tokenizers import tokenizer
from transformer.support import files
from transformer.support.environment import VOCABULARY
from transformer.training.progress import Progress
from transformer.training.state import TrainState, init_model
from transformer.workdir import create_workdir

SOURCES = ["1 2 3", "4 5", "6", "7 7 7 1", "2 3 4 5 6"]
REFERENCES = ["3 2 1", "5 4", "6", "1 7 7 7", "6 5 4 3 2"]
SETTINGS = {
    "model.num_layers": "1",
    "model.d_model": "8",
    "model.d_ff": "8",
    "model.num_heads": "2",
    "model.dtype": "float32",
    "data.source": "ids",
    "data.source_language": "in",
    "data.target_language": "out",
    "data.valid_split": "valid",
    "tokenizer.kind": "ids",
    "tokenizer.vocab_size": "12",
    "checkpoint.every": "10",
    "decoding.beam_size": "2",
    "decoding.max_extra_length": "3",
    "decoding.max_source_length": "16",
    "decoding.batch_tokens": "128",
}


def make_workdir(
    path: Path, seed: int = 0, steps: tuple[int, ...] = (10, 20, 30), **changes: str
) -> Path:
    """Creates the workdir of a run that reverses numbers, with random parameters; checkpoint 20 is
    the best.
    """
    data = path.parent / "data"
    data.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (data / f"{split}.in").write_text("".join(f"{line}\n" for line in SOURCES))
        (data / f"{split}.out").write_text("".join(f"{line}\n" for line in REFERENCES))
    settings = {**SETTINGS, "data.path": str(data), "seed": str(seed)} | changes
    config = loading.override(base.get_config(), settings.items())
    workdir = create_workdir(path, config)
    vocabulary = tokenizer.prepare(config, path)
    files.write_json(workdir.contents, {VOCABULARY: vocabulary.fingerprint})
    sizes = vocabulary.vocab_sizes
    shapes = jax.eval_shape(lambda: init_model(config, *sizes)[1])
    with Checkpoints(workdir, config) as checkpoints:
        for step in steps:
            random = np.random.default_rng((seed, step))
            parameters = jax.tree.map(
                lambda leaf, random=random: random.normal(size=leaf.shape) * 0.6, shapes
            )
            parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), parameters)
            state = TrainState(
                jnp.array(step), jnp.array(0), parameters, optax.sgd(0.1).init(parameters), None
            )
            best = (
                {"best_score": 9.0, "best_step": 20}
                if step >= 20
                else {"best_score": 1.0, "best_step": 10}
            )
            checkpoints.save(state, Progress(step=step, **best))
    return path


def run(module, *flags: str) -> int:
    """Runs a command in this process and returns its exit code."""
    return cli.execute(module.make_parser(), module.main, flags)
