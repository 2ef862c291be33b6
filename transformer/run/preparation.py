"""Everything that a run needs before its first step."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_collections
from absl import logging

from transformer import fingerprints as contents
from transformer import workdir as workdirs
from transformer.checkpoints.manager import Checkpoints
from transformer.compilation_cache import enable_compilation_cache
from transformer.config import loading as configuration
from transformer.config.keys import flatten
from transformer.data.corpus import corpus as corpora
from transformer.data.corpus.corpus import Corpus
from transformer.data.tokenizers import tokenizer as tokenizers
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.distributed import coordination as distributed
from transformer.distributed.sharding import make_mesh
from transformer.errors import UserError
from transformer.training.optimizer import make_optimizer, make_schedule
from transformer.training.pretrained_embeddings import check_files, pretrained_tables
from transformer.training.progress import Progress
from transformer.training.state import Initializer, TrainState, abstract_model, with_embeddings
from transformer.training.step import TrainStep
from transformer.training.validation import Validation
from transformer.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Run:
    config: ml_collections.FrozenConfigDict
    workdir: Workdir
    tokenizer: Tokenizer
    corpus: Corpus
    initializer: Initializer
    train_step: TrainStep
    validation: Validation

    def newest(self, checkpoints: Checkpoints) -> tuple[TrainState, Progress]:
        """What the run goes on from: its newest checkpoint that is whole, else what it starts with."""
        return checkpoints.restore(self.abstract_state) or (self.initial_state(), Progress())

    @property
    def abstract_state(self) -> TrainState:
        """Shapes, types and places of the state's arrays."""
        return self.initializer.abstract_state

    def initial_state(self) -> TrainState:
        state = self.initializer()
        tables = pretrained_tables(self.config.model, self.tokenizer)
        return with_embeddings(state, tables)


@contextlib.contextmanager
def workdir_of(path: Path, config: ml_collections.FrozenConfigDict) -> Iterator[Workdir]:
    """The workdir of a run, which process 0 makes or takes up, once all processes agree on config and code.

    It is this run's alone while the block runs. Raises UserError if another run has it, or the processes do not agree
    or do not all see it, or as `workdirs.create` does.
    """
    distributed.require_same("config and code", lambda: identity(config), config.data.wait_seconds)
    with distributed.on_process_zero(workdirs.lock, path):
        with distributed.process_zero_first(f"the workdir {path}", config.data.wait_seconds):
            distributed.on_process_zero(workdirs.create, path, config)
            if not (path / configuration.FILE_NAME).exists():
                raise UserError(
                    f"--workdir={path}: is not what process 0 made; all must share the file system it is on"
                )
        yield Workdir(path)


def identity(config: ml_collections.FrozenConfigDict) -> dict[str, Any]:
    """What makes two processes parts of the same run."""
    environment = workdirs.environment()
    settings = {f"config.{key}": value for key, value in flatten(config).items() if key not in workdirs.HOST}
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py"))))
    versions = {f"the version of {name}": version for name, version in environment["packages"].items()}
    of_code = {"the commit": environment["commit"], "the code": code.hexdigest(), "Python": environment["python"]}
    return settings | of_code | versions


def prepare(config: ml_collections.FrozenConfigDict, workdir: Workdir) -> Run:
    """Trains or loads the tokenizer, encodes the corpus unless that is done, and sets up model and step.

    Raises UserError for data, mesh or vectors that cannot be used, or data that is not the same in all processes, or
    not what the run began with.
    """
    check_files(config.model)
    enable_compilation_cache(config.data.cache_dir)
    mesh = make_mesh(config, jax.devices())
    with distributed.process_zero_first("tokenizer and corpus", config.data.wait_seconds):
        tokenizer = tokenizers.prepare(config, workdir.path)
        contents.check(workdir.path, {contents.VOCABULARY: tokenizer.fingerprint})  # before hours of encoding with it
        corpus = corpora.prepare(config, tokenizer, "train")
        held_out = corpora.prepare(config, tokenizer, "valid")
    found = {
        contents.VOCABULARY: tokenizer.fingerprint,
        contents.TRAINING_CORPUS: corpus.report["digest"],
        contents.VALIDATION_CORPUS: held_out.report["digest"],
    }
    distributed.require_same("the data", lambda: found, config.data.wait_seconds)
    contents.check(workdir.path, found)
    distributed.on_process_zero(contents.record, workdir.path, found)
    distributed.on_process_zero(workdirs.record_data_path, workdir, config)
    sizes = tokenizer.vocab_sizes
    graph = abstract_model(config, *sizes)
    schedule = make_schedule(config.optimizer, config.model.d_model, config.training.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    initializer = Initializer(config, optimizer, mesh, sizes)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(initializer.abstract_state.parameters))
    logging.info("Model: %d parameters; vocabulary %d and %d; %d device(s).", parameters, *sizes, mesh.size)
    return Run(
        config=config,
        workdir=workdir,
        tokenizer=tokenizer,
        corpus=corpus,
        initializer=initializer,
        train_step=TrainStep(config, graph, optimizer, schedule, mesh),
        validation=Validation(config, graph, mesh, tokenizer, held_out),
    )
