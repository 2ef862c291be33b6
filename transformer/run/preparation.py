"""Preparation of a run: its workdir, tokenizer, corpora, model and step."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_collections
from absl import logging

from transformer import fingerprints
from transformer.checkpoints.manager import Checkpoints
from transformer.compilation_cache import enable_compilation_cache
from transformer.config.keys import flatten
from transformer.data.corpus import corpus
from transformer.data.corpus.corpus import Corpus
from transformer.data.tokenizers import tokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.distributed import coordination
from transformer.distributed.mesh import make_mesh
from transformer.environment import describe_environment
from transformer.errors import UserError
from transformer.training.optimizer import make_optimizer, make_schedule
from transformer.training.pretrained_embeddings import check_files, load_pretrained_embeddings
from transformer.training.progress import Progress
from transformer.training.state import Initializer, TrainState, abstract_model, with_embeddings
from transformer.training.step import TrainStep
from transformer.training.validation import Validation
from transformer.workdir import HOST_KEYS, Workdir, create_workdir, lock_workdir, record_data_path


@dataclasses.dataclass(frozen=True)
class Run:
    """All parts of a run that are ready before its first step."""

    config: ml_collections.FrozenConfigDict
    workdir: Workdir
    tokenizer: Tokenizer
    corpus: Corpus
    initializer: Initializer
    train_step: TrainStep
    validation: Validation

    def restore_or_initialize(self, checkpoints: Checkpoints) -> tuple[TrainState, Progress]:
        """Returns the newest undamaged checkpoint, or the initial state if there is none."""
        return checkpoints.restore(self.abstract_state) or (self.initial_state(), Progress())

    @property
    def abstract_state(self) -> TrainState:
        """The shapes, types and shardings of the state."""
        return self.initializer.abstract_state

    def initial_state(self) -> TrainState:
        state = self.initializer()
        return with_embeddings(state, load_pretrained_embeddings(self.config.model, self.tokenizer))


@contextlib.contextmanager
def open_workdir(path: Path, config: ml_collections.FrozenConfigDict) -> Iterator[Workdir]:
    """Locks the workdir of a run during the block. Process 0 creates it or records the new start.

    Raises UserError if another run uses the workdir, the processes differ in config or code, they do not share the file
    system, or `create_workdir` refuses.
    """
    coordination.require_same("config and code", lambda: identity(config), config.data.wait_seconds)
    with coordination.on_process_zero(lock_workdir, path):
        with coordination.process_zero_first(f"the workdir {path}", config.data.wait_seconds):
            coordination.on_process_zero(create_workdir, path, config)
            if not Workdir(path).config.exists():
                raise UserError(
                    f"--workdir={path}: this process does not see what process 0 wrote; all must share the file system"
                )
        yield Workdir(path)


def identity(config: ml_collections.FrozenConfigDict) -> dict[str, Any]:
    """Returns the facts that the processes of a run must agree on."""
    environment = describe_environment()
    settings = {f"config.{key}": value for key, value in flatten(config).items() if key not in HOST_KEYS}
    # The commit does not tell uncommitted changes apart, and is unknown outside a repository.
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    versions = {f"the version of {name}": version for name, version in environment["packages"].items()}
    code = {"the commit": environment["commit"], "the code": digest, "Python": environment["python"]}
    return settings | code | versions


def prepare(config: ml_collections.FrozenConfigDict, workdir: Workdir) -> Run:
    """Prepares the tokenizer and the corpora, unless they are cached, and constructs the model and its step.

    Raises UserError if data, mesh or pretrained embeddings cannot be used, or if the data differs between processes or
    from that at the start of the run.
    """
    check_files(config.model)
    enable_compilation_cache(config.data.cache_dir)
    mesh = make_mesh(config, jax.devices())
    with coordination.process_zero_first("tokenizer and corpus", config.data.wait_seconds):
        vocabulary = tokenizer.prepare(config, workdir.path)
        fingerprints.check(workdir.path, {fingerprints.VOCABULARY: vocabulary.fingerprint})  # encoding may take hours
        train, valid = (corpus.prepare(config, vocabulary, split) for split in ("train", "valid"))
    found = {
        fingerprints.VOCABULARY: vocabulary.fingerprint,
        fingerprints.TRAINING_CORPUS: train.report["digest"],
        fingerprints.VALIDATION_CORPUS: valid.report["digest"],
    }
    coordination.require_same("the data", lambda: found, config.data.wait_seconds)
    fingerprints.check(workdir.path, found)
    coordination.on_process_zero(fingerprints.record, workdir.path, found)
    coordination.on_process_zero(record_data_path, workdir, config)
    sizes = vocabulary.vocab_sizes
    graph = abstract_model(config, *sizes)
    schedule = make_schedule(config.optimizer, config.model.d_model, config.training.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    initializer = Initializer(config, optimizer, mesh, sizes)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(initializer.abstract_state.parameters))
    logging.info("Model: %d parameters; vocabulary %d and %d; %d device(s).", parameters, *sizes, mesh.size)
    return Run(
        config=config,
        workdir=workdir,
        tokenizer=vocabulary,
        corpus=train,
        initializer=initializer,
        train_step=TrainStep(config, graph, optimizer, schedule, mesh),
        validation=Validation(config, graph, mesh, vocabulary, valid),
    )
