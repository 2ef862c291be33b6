"""Everything that a run needs before its first step."""

import dataclasses

import jax
import ml_collections
from absl import logging

from transformer.compilation import keep_programs
from transformer.data import corpus as corpora
from transformer.data import tokenizer as tokenizers
from transformer.data.corpus import Corpus
from transformer.data.tokenizer import Tokenizer
from transformer.training.optimizer import make_optimizer, make_schedule
from transformer.training.sharding import make_mesh
from transformer.training.state import Initializer, TrainState, abstract_model, with_embeddings
from transformer.training.step import TrainStep
from transformer.training.validation import Validation
from transformer.training.vectors import pretrained_tables
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

    @property
    def abstract_state(self) -> TrainState:
        """Shapes, types and places of the state's arrays."""
        return self.initializer.abstract_state

    def initial_state(self) -> TrainState:
        state = self.initializer()
        tables = pretrained_tables(self.config.model, self.tokenizer)
        return with_embeddings(state, tables)


def prepare(config: ml_collections.FrozenConfigDict, workdir: Workdir) -> Run:
    """Trains or loads the tokenizer, encodes the corpus unless that is done, and sets up model and step.

    Raises UserError for data, mesh or vectors that cannot be used.
    """
    keep_programs(config.data)
    mesh = make_mesh(config.mesh)
    tokenizer = tokenizers.prepare(config, workdir.path)
    corpus = corpora.prepare(config, tokenizer, "train")
    held_out = corpora.prepare(config, tokenizer, "valid")
    sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
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
