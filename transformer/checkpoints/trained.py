"""Trained models, ready to decode with: one model, or several as an ensemble."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
from absl import logging
from flax import nnx

from transformer.checkpoints.restore import choose_steps, load_parameters
from transformer.config.loading import override, with_values
from transformer.config.types import Config
from transformer.data.languages import source_tag
from transformer.data.sources.lines import parse_number
from transformer.data.sources.mixture import check_direction
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.batches import Replicas
from transformer.decoding.decoders import make_decoder
from transformer.decoding.reranking import Scorer
from transformer.decoding.shortlist import Shortlist
from transformer.decoding.strategies import SAMPLING, STRATEGIES
from transformer.decoding.text_decoder import TextDecoder
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.objectives import OBJECTIVES
from transformer.training.state import abstract_init
from transformer.workdir import Workdir, open_existing


@dataclass(frozen=True)
class Checkpoint:
    """The source of a model's parameters: the mean over the steps `averaged`, of which `step` is
    the last.
    """

    workdir: str
    step: int
    averaged: tuple[int, ...]


@dataclass(frozen=True)
class Trained:
    """Models with the workdir, configuration, tokenizer and shortlist of the first one, and
    parameters in NumPy.
    """

    workdir: Workdir
    config: Config
    tokenizer: Tokenizer
    graphs: tuple[nnx.GraphDef, ...]
    parameters: tuple[dict, ...]
    checkpoints: tuple[Checkpoint, ...]
    shortlist: Shortlist | None
    scorers: tuple[Scorer, ...]

    def decoder(self, takes_controls: bool = False) -> tuple[TextDecoder, Replicas]:
        """Returns a decoder on all local devices, and the parameters as its methods take them: see
        `make_decoder`.
        """
        fields = (
            self.graphs,
            self.tokenizer,
            self.config.decoding,
            jax.local_devices(),
            self.shortlist,
        )
        decoder = make_decoder(
            self.config, *fields, scorers=self.scorers, takes_controls=takes_controls
        )
        return decoder, decoder.place(self.parameters)


def check_translates(config: Config, workdir: str) -> None:
    """Raises UserError, which names --workdir, if the models of a configuration generate no text."""
    objective = config.training.objective
    if "translate" not in OBJECTIVES[objective].methods:
        raise UserError(
            f"--workdir={workdir}: a model of training.objective={objective} generates no text"
        )


def check_translates_sentences(config: Config, workdir: str) -> None:
    """Raises UserError, which names --workdir, if the models do not translate each sentence by
    itself.
    """
    check_translates(config, workdir)
    if config.data.context:
        raise UserError(
            f"--workdir={workdir}: its data.context needs whole documents; use transformer.translate"
        )


def load(
    workdirs: Sequence[str], which: str, average: int, overrides: Sequence[tuple[str, str]]
) -> Trained:
    """Loads the model of one workdir, or those of several with the same tokenizer as an ensemble.

    `which` and `average` choose the checkpoints of each workdir: see `choose_steps`. `overrides`
    are decoding keys and languages with their values, as typed, for the first workdir's
    configuration. Raises UserError if the models cannot be loaded, or do not know the languages.
    """
    opened = [open_existing(Path(name)) for name in workdirs]
    first, first_config = opened[0]
    config = override(first_config, overrides)
    _warn_about_unread_keys(config, overrides)
    tokenizers = [Tokenizer.load(workdir.path, run_config) for workdir, run_config in opened]
    decoding = {f"decoding.{key}": value for key, value in config.decoding.items()}
    for (workdir, run_config), tokenizer in zip(opened, tokenizers, strict=True):
        try:
            check_direction(run_config.data, config.data)
        except UserError as error:
            raise UserError(f"--workdir={workdir.path}: {error}") from None
        if tokenizer.fingerprint != tokenizers[0].fingerprint:
            raise UserError(
                f"--workdir={','.join(workdirs)}: {first.path} and {workdir.path} have different tokenizers; models "
                "that translate together need the same (give the second run the first one's by "
                "--config.tokenizer.model_file)"
            )
        for group, key in (("training", "objective"), ("model", "ctc_frames")):
            if run_config[group][key] != config[group][key]:
                raise UserError(
                    f"--workdir={','.join(workdirs)}: {first.path} has {group}.{key}={config[group][key]} and "
                    f"{workdir.path} has {run_config[group][key]}; the models of an ensemble need the same"
                )
        try:
            with_values(run_config, decoding)
        except UserError as error:
            raise UserError(
                f"{workdir.path}: cannot be decoded with the settings of {first.path}: {error}"
            ) from None
    size = config.decoding.shortlist
    shortlist = Shortlist.load(first.shortlist, tokenizers[0], size) if size else None
    scorers = load_scorers(config)
    loaded = []
    for workdir, run_config in opened:
        steps = choose_steps(workdir.path, which, average, run_config.checkpoint.every)
        graph, expected = abstract_init(run_config, *tokenizers[0].vocab_sizes)
        checkpoint = Checkpoint(
            str(workdir.path), steps[-1], tuple(workdir.averaged_steps() or steps)
        )
        loaded.append(
            (graph, load_parameters(workdir.path, steps, expected, run_config), checkpoint)
        )
        noun = "step" if len(steps) == 1 else "the mean of steps"
        logging.info("%s: loaded %s %s.", workdir.path, noun, ", ".join(map(str, steps)))
    models = zip(*loaded, strict=True)  # graphs, parameters and checkpoints
    return Trained(
        first, config, tokenizers[0].tagged(source_tag(config.data)), *models, shortlist, scorers
    )


def _warn_about_unread_keys(config: Config, overrides: Sequence[tuple[str, str]]) -> None:
    """Logs a warning for keys of sampling that are set for a strategy without samples."""
    chosen = config.decoding.strategy
    unread = [
        f"--{key}={value}" for key, value in overrides if key.removeprefix("decoding.") in SAMPLING
    ]
    if unread and not STRATEGIES[chosen].samples:
        logging.warning(
            "%s: decoding.strategy=%s draws no samples; try decoding.strategy=sample.",
            unread[0],
            chosen,
        )


def load_scorers(config: Config) -> tuple[Scorer, ...]:
    """Loads the models of `decoding.rerank` at their best checkpoints.

    Raises UserError if one cannot rerank.
    """
    scorers = []
    for item in filter(None, config.decoding.rerank.split(",")):
        path, _, text = item.rpartition(":")
        name = path and str(files.expanded(path))
        weight = parse_number(text)
        if not name or not math.isfinite(weight):
            raise UserError(
                f"--decoding.rerank={item}: must be WORKDIR:WEIGHT with a number, such as runs/de-en:0.5"
            )
        arrange = choose_arrangement(
            open_existing(Path(name), "--decoding.rerank")[1], config, name
        )
        outer = {"rerank": "", "shortlist": "0", "dtype": config.decoding.dtype}
        models = load(
            [name], "best", 1, [(f"decoding.{key}", value) for key, value in outer.items()]
        )
        scorers.append(Scorer(name, weight, arrange, *models.decoder()))
    return tuple(scorers)


def choose_arrangement(
    config: Config, searched: Config, name: str
) -> Callable[[str, str], tuple[str, str]]:
    """Returns `Scorer.arrange` of the model in the workdir `name`.

    Raises UserError unless it can score the texts.
    """
    source = searched.data.source_language
    target = searched.data.target_language
    arrangements = {
        (source, target): lambda text, hypothesis: (text, hypothesis),
        (target, source): lambda text, hypothesis: (hypothesis, text),
        ("", target): lambda text, hypothesis: ("", hypothesis),
    }
    sides = config.data.source_language, config.data.target_language
    objective = config.training.objective
    if sides not in arrangements or objective not in ("translation", "causal_lm"):
        raise UserError(
            f"--decoding.rerank={name}: a model of training.objective={objective} from {sides[0]!r} to {sides[1]!r}; "
            f"must be a translation model from {target} to {source}, or the other way, or a language model of {target}"
        )
    return arrangements[sides]
