"""Preparation of a run: its workdir, tokenizer, corpora, model and step."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax
from absl import logging

from transformer.checkpoints.manager import Checkpoints
from transformer.config import loading
from transformer.config.types import Config
from transformer.data.corpus import corpus
from transformer.data.sources.source import read_origin
from transformer.data.tokenizers import tokenizer
from transformer.distributed import coordination
from transformer.distributed.mesh import make_mesh
from transformer.model.matmul import matmul_dtype
from transformer.run import checks, fine_tuning
from transformer.run.trackers import check_trackers
from transformer.support import files
from transformer.support.cache import enable_compilation_cache
from transformer.support.environment import (
    TRAINING_CORPUS,
    VALIDATION_CORPUS,
    VOCABULARY,
    check_fingerprints,
)
from transformer.support.errors import UserError
from transformer.training.compiled_step import CompiledStep
from transformer.training.objectives import OBJECTIVES
from transformer.training.optimizer import make_schedule
from transformer.training.parameterization import make_run_optimizer
from transformer.training.progress import Progress
from transformer.training.state import Initializer, TrainState
from transformer.training.validation import Validation
from transformer.workdir import Workdir, create_workdir, linked_workdir, lock_workdir


@dataclasses.dataclass(frozen=True)
class Run:
    """All parts of a run that are ready before its first step."""

    config: Config
    workdir: Workdir
    tokenizer: tokenizer.Tokenizer
    corpus: corpus.Corpus
    initializer: Initializer
    train_step: CompiledStep
    validation: Validation
    # None if the run starts from random parameters, or resumes.
    parent: fine_tuning.Parent | None

    @property
    def padding_note(self) -> str:
        """The end of a report of the padding. Subword sampling adds more padding."""
        return " besides the length reserved for samples" if self.corpus.sampler is not None else ""

    def restore_or_initialize(self, checkpoints: Checkpoints) -> tuple[TrainState, Progress]:
        """Returns the newest undamaged checkpoint, or the initial state if there is none."""
        restored = checkpoints.restore(self.initializer.abstract_state)
        return restored or (self.initial_state(), Progress())

    def initial_state(self) -> TrainState:
        """Returns the state before the first step.

        Its parameters are random, or come from the run `training.init_from`.
        """
        if not self.config.training.init_from:
            return self.initializer.create()
        parent = self.parent or fine_tuning.open_parent(self.config, self.workdir)
        # Only the parameters of the random state stay in memory.
        random_parameters = self.initializer.create().parameters
        parameters = parent.initial_parameters(random_parameters, self.tokenizer)
        state = self.initializer.start_from(parameters)
        if self.config.training.init_optimizer:
            optimizer_state = parent.initial_optimizer_state(state.optimizer_state)
            state = state.replace(optimizer_state=optimizer_state)
        return state


@contextlib.contextmanager
def open_workdir(
    path: Path, config: Config, extend: int | None = None, is_dry_run: bool = False
) -> Iterator[tuple[Workdir, Config]]:
    """Locks the workdir of a run during the block, and creates it or checks the run in it.

    Yields the workdir, or with `is_dry_run` a temporary folder that looks like it, and the
    configuration with the length of an earlier extension.

    Raises UserError if another run uses the workdir, or the run there cannot continue with this
    configuration. Also if a listed corpus does not fit, or the processes differ in config or code,
    or do not share the file system.
    """
    wait_seconds = config.data.wait_seconds
    # Processes that differ would hang in their first collective.
    coordination.require_same("config and code", lambda: checks.process_facts(config), wait_seconds)
    checks.check_listed_corpora(config)
    with contextlib.ExitStack() as stack:
        if is_dry_run:
            path = stack.enter_context(linked_workdir(path))
            workdir = Workdir(path)
            create_or_check(workdir, config, extend)
        else:
            coordination.on_process_zero(Workdir(path).check_ownership)
            stack.enter_context(coordination.on_process_zero(lock_workdir, path))
            with coordination.process_zero_first(f"the workdir {path}", wait_seconds):
                coordination.on_process_zero(create_or_check, Workdir(path), config, extend)
            workdir = Workdir(path)
            if not workdir.config.exists():
                raise UserError(
                    f"--workdir={path}: is not what process 0 sees; "
                    "all processes must share the file system"
                )

        # After --extend, the original command continues with the longer run. Its patience may have
        # been used up already.
        extended = loading.load(path).training
        if extend is None and config.training.steps != extended.steps:
            logging.info(
                "This run has been extended from %d to %d steps.",
                config.training.steps,
                extended.steps,
            )
            values = {f"training.{key}": extended[key] for key in ("steps", "patience")}
            config = loading.with_values(config, values)
        yield workdir, config


def create_or_check(workdir: Workdir, config: Config, extend: int | None) -> None:
    """Creates the workdir, or raises UserError if the run in it cannot continue."""
    if workdir.has_begun() or extend is not None:
        checks.check_continuation(workdir, config, extend)
        return
    origin = read_origin(config.data)
    create_workdir(workdir.path, config)
    if origin is not None:
        files.write_json(workdir.data, origin)


def prepare(config: Config, workdir: Workdir) -> Run:
    """Prepares tokenizer and corpora, unless they are cached, and constructs model and step.

    Raises UserError if an input cannot be used, differs between processes, or has changed since
    the start of the run.
    """
    check_trackers(config)

    enable_compilation_cache(config.data.cache_dir)
    mesh = make_mesh(config, jax.devices())
    with coordination.process_zero_first("tokenizer and corpus", config.data.wait_seconds):
        parent = fine_tuning.prepare(config, workdir)
        vocabulary = tokenizer.prepare(config, workdir.path)
        make_corpus = OBJECTIVES[config.training.objective].make_corpus
        train = make_corpus(corpus.prepare(config, vocabulary, "train"), config, vocabulary)
        valid_sets = [
            make_corpus(valid, config, vocabulary)
            for valid in corpus.prepare_validation(config, vocabulary)
        ]

    # All processes, and all starts of the run, must have the same data.
    contents = {
        VOCABULARY: vocabulary.fingerprint,
        TRAINING_CORPUS: train.report["digest"],
        VALIDATION_CORPUS: " ".join(valid.report["digest"] for valid in valid_sets),
    }
    facts = contents | {"the initial parameters": parent and parent.checksum}
    coordination.require_same("the data", lambda: facts, config.data.wait_seconds)
    check_fingerprints(workdir.path, contents)
    coordination.on_process_zero(files.write_json, workdir.contents, contents)
    coordination.on_process_zero(checks.warn_about_data, config, vocabulary, train, valid_sets)
    if parent:
        coordination.on_process_zero(fine_tuning.record, workdir, parent)

    # The model, its optimizer, and the functions that compute with them.
    schedule = make_schedule(config.optimizer, config.model.d_model, config.training.steps)
    optimizer = make_run_optimizer(config, schedule)
    initializer = Initializer(config, optimizer, mesh, vocabulary.vocab_sizes)
    graph = initializer.graph
    parameters = initializer.abstract_state.parameters
    checks.check_trained_names(config, parameters)
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    source_size, target_size = vocabulary.vocab_sizes
    logging.info(
        f"Model: {num_parameters:,} parameters; vocabulary {source_size} and {target_size}; "
        f"matmuls in {matmul_dtype(config.model.dtype)}; devices: {mesh.size}."
    )
    pieces = vocabulary.source.pieces
    return Run(
        config=config,
        workdir=workdir,
        tokenizer=vocabulary,
        corpus=train,
        initializer=initializer,
        train_step=CompiledStep(config, graph, optimizer, schedule, mesh, pieces),
        validation=Validation(config, graph, mesh, vocabulary, valid_sets, train),
        parent=parent,
    )
