"""Trained models, ready to decode with: one model, or several as an ensemble."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_collections
from absl import logging
from flax import nnx

from transformer import fingerprints
from transformer.checkpoints.restore import choose_steps, load_parameters
from transformer.config.loading import override, with_values
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.shortlist import Shortlist
from transformer.errors import UserError
from transformer.training.state import abstract_init
from transformer.workdir import Workdir, open_existing, read_averaged_steps


@dataclass(frozen=True)
class Checkpoint:
    """The source of a model's parameters: the mean over the steps `averaged`, of which `step` is the last."""

    workdir: str
    step: int
    averaged: tuple[int, ...]


@dataclass(frozen=True)
class Trained:
    """Models with the workdir, configuration, tokenizer and shortlist of the first one.

    The parameters are NumPy arrays, as `nnx.to_pure_dict` returns them. Without `decoding.shortlist` there is none.
    """

    workdir: Workdir
    config: ml_collections.FrozenConfigDict
    tokenizer: Tokenizer
    graphs: tuple[nnx.GraphDef, ...]
    parameters: tuple[dict, ...]
    checkpoints: tuple[Checkpoint, ...]
    shortlist: Shortlist | None


def load(workdirs: Sequence[str], which: str, average: int, overrides: Sequence[tuple[str, str]]) -> Trained:
    """Loads the model of one workdir, or those of several workdirs as an ensemble. Raises UserError if that fails.

    Args:
      workdirs: of one run, or of several runs with the same tokenizer.
      which: "best", "last" or a step, in each workdir.
      average: the number of checkpoints to average in each workdir: see `choose_steps`.
      overrides: decoding keys and their values, as typed, applied to the first workdir's configuration.
    """
    opened = [open_existing(Path(name)) for name in workdirs]
    first, first_config = opened[0]
    config = override(first_config, overrides)
    tokenizers = [Tokenizer.load(each.path, settings) for each, settings in opened]
    decoding = {f"decoding.{key}": value for key, value in config.decoding.items()}
    for (other, settings), tokenizer in zip(opened, tokenizers, strict=True):
        fingerprints.check(other.path, {fingerprints.VOCABULARY: tokenizer.fingerprint})
        if tokenizer.fingerprint != tokenizers[0].fingerprint:
            raise UserError(
                f"--workdir={','.join(workdirs)}: {first.path} and {other.path} have different tokenizers; models that "
                "translate together need the same (give the second run the first one's by "
                "--config.tokenizer.model_file)"
            )
        for group, key in (("training", "objective"), ("model", "ctc_frames")):
            if settings[group][key] != config[group][key]:
                raise UserError(
                    f"--workdir={','.join(workdirs)}: {first.path} has {group}.{key}={config[group][key]} and "
                    f"{other.path} has {settings[group][key]}; the models of an ensemble need the same"
                )
        try:
            with_values(settings, decoding)
        except UserError as error:
            raise UserError(f"{other.path}: cannot be decoded with the settings of {first.path}: {error}") from None
    size = config.decoding.shortlist
    shortlist = Shortlist.load(first.shortlist, tokenizers[0], size) if size else None
    sizes = tokenizers[0].vocab_sizes
    graphs, parameters, checkpoints = [], [], []
    for each, settings in opened:
        steps = choose_steps(each.path, which, average, settings.checkpoint.every)
        graph, expected = abstract_init(settings, *sizes)
        graphs.append(graph)
        parameters.append(load_parameters(each.path, steps, expected, settings))
        checkpoints.append(Checkpoint(str(each.path), steps[-1], tuple(read_averaged_steps(each) or steps)))
        logging.info("%s: loaded step %s.", each.path, " and ".join(map(str, steps)))
    return Trained(first, config, tokenizers[0], tuple(graphs), tuple(parameters), tuple(checkpoints), shortlist)
