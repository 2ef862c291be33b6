"""The loss and perplexity of a trained model on a held-out split."""

import jax
from jax.sharding import NamedSharding, PartitionSpec

from transformer.checkpoints.trained import Trained
from transformer.config.loading import with_values
from transformer.data.corpus import corpus
from transformer.distributed.mesh import make_mesh
from transformer.training.eval_step import EvalStep, check_lengths
from transformer.training.metrics import Record
from transformer.training.objectives import inputs_of


def held_out_means(models: Trained, split: str) -> Record:
    """Returns the means over the tokens of a split of the run's data, computed as validation does, on one device.

    Raises UserError if the data is missing, or all its sentences are longer than `data.max_length`.
    """
    config = with_values(models.config, {"mesh.data": 1, "mesh.fsdp": 1, "mesh.tensor": 1})
    found = corpus.prepare(config, models.tokenizer, split)
    check_lengths(config, models.tokenizer, found, split)
    mesh = make_mesh(config, jax.local_devices()[:1])
    step = EvalStep(config, models.graphs[0], mesh, inputs_of(config, models.tokenizer.source.pieces))
    parameters = jax.device_put(models.parameters[0], NamedSharding(mesh, PartitionSpec()))
    return step.over_corpus(parameters, found, lambda: None)
