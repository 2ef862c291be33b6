"""The lines of code that run in the tours of docs/code.md. As a program, it prints them as JSON.

    python -m tests.executed_lines FOLDER

The runs have tiny models and the settings of configs/base.py for all else. Each starts without
JAX's caches, so that Python executes the lines of its programs.
"""

import importlib
import json
import pkgutil
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import transformer
from configs import base
from tests.decoding.models import tiny_model
from tests.model.models import tiny_config
from tests.training import tiny
from transformer.config import loading
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.batches.loader import DataPosition, Loader
from transformer.data.corpus import corpus
from transformer.data.tokenizers import tokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding.text_decoder import TextDecoder
from transformer.distributed.mesh import make_mesh
from transformer.model.transformer import Transformer
from transformer.training.optimizer import make_optimizer, make_schedule

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = f"{REPOSITORY / 'transformer'}/"
VOCAB_SIZE = 12
TEXT = {
    "data__source": "text",
    "data__path": str(REPOSITORY / "tests/fixtures/multi30k"),
    "data__valid_split": "valid",
    "data__max_length": 64,
    "tokenizer__kind": "bpe",
    "tokenizer__vocab_size": 200,
    "training__steps": 4,
}

Lines = dict[str, list[int]]


class Tracer:
    """Collects the lines of transformer/ that this thread and the threads it starts execute."""

    def __init__(self) -> None:
        self._lines: dict[str, set[int]] = defaultdict(set)

    def __enter__(self) -> "Tracer":
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    @property
    def lines(self) -> Lines:
        """The numbers of the lines, by the path of the file in the repository."""
        return {
            str(Path(file).relative_to(REPOSITORY)): sorted(lines)
            for file, lines in sorted(self._lines.items())
        }

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Callable | None:
        return self._on_line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Callable:
        if event == "line":
            self._lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._on_line


def model(folder: Path, tracer: Tracer) -> None:
    """Constructs a model and computes the shapes of its logits in training."""
    config = tiny_config(num_layers=1)

    def logits(source: jax.Array, target_input: jax.Array) -> jax.Array:
        model = Transformer(config, VOCAB_SIZE, VOCAB_SIZE, rngs=nnx.Rngs(0))
        return model(source, target_input, rngs=nnx.Rngs(dropout=jax.random.key(0)))

    tokens = jnp.ones((2, 5), jnp.int32)
    with tracer:
        assert jax.eval_shape(logits, tokens, tokens).shape == (2, 5, VOCAB_SIZE)


def step(folder: Path, tracer: Tracer) -> None:
    """Traces the initialization of a model and one update."""
    config = tiny.tiny_config()
    with tracer:
        schedule = make_schedule(config.optimizer, config.model.d_model, config.training.steps)
        optimizer = make_optimizer(config.optimizer, schedule, config.training.freeze)
        setup = tiny.setup(config, optimizer, schedule=schedule)
        update, *arguments = setup.step.batch_call(
            setup.initializer.abstract_state, Bucket(2, 5, 5), False
        )
        update.trace(*arguments)


def data(folder: Path, tracer: Tracer) -> None:
    """Prepares vocabulary and tokens of parallel text files, and reads the first batches."""
    prefix = "--config."
    flags = [
        flag.removeprefix(prefix)
        for flag in tiny.flags(folder / "run", **TEXT)
        if flag.startswith(prefix)
    ]
    config = loading.load_file("configs/base.py", [tuple(flag.split("=", 1)) for flag in flags])
    with tracer:
        vocabulary = tokenizer.prepare(config, folder)
        train = corpus.prepare(config, vocabulary, "train")
        corpus.prepare_validation(config, vocabulary)
        with Loader(train, config, DataPosition(0, 0), make_mesh(config, jax.devices())) as loader:
            for _ in range(2):
                next(loader)


def loop(folder: Path, tracer: Tracer) -> None:
    """Trains, validates and saves checkpoints, with the tokens that `data` has cached."""
    with tracer:
        assert tiny.run(folder / "run", **TEXT) == 0


def search(folder: Path, tracer: Tracer) -> None:
    """Translates two lines."""
    decoding_config = base.get_config().decoding
    decoding_config.update({"max_extra_length": 4, "max_source_length": 8, "batch_tokens": 64})
    graph, parameters = tiny_model(VOCAB_SIZE, seed=0)
    vocabulary = Tokenizer(IdsVocabulary(VOCAB_SIZE), IdsVocabulary(VOCAB_SIZE))
    with tracer:
        decoder = TextDecoder([graph], vocabulary, decoding_config, jax.local_devices())
        assert len(decoder.translate(decoder.place([parameters]), ["1 2 3", "4 5"])) == 2


RUNS = {
    "The model": model,
    "The loss and the step": step,
    "The data": data,
    "The training loop": loop,
}
RUNS |= {"The search": search}


def main(folder: Path) -> None:
    # else a run may execute definitions
    for module in pkgutil.walk_packages(transformer.__path__, "transformer."):
        importlib.import_module(module.name)
    executed: dict[str, Lines] = {}
    for tour, run in RUNS.items():
        jax.clear_caches()
        tracer = Tracer()
        run(folder, tracer)
        executed[tour] = tracer.lines
    print(json.dumps(executed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
