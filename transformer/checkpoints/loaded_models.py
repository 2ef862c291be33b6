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
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.decoders import make_decoder
from transformer.decoding.reranking import CommandScorer, Scorer
from transformer.decoding.scorer import FIELDS, check_command
from transformer.decoding.shortlist import Shortlist
from transformer.decoding.strategies import SAMPLING, STRATEGIES
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.objectives import OBJECTIVES
from transformer.training.state import abstract_init
from transformer.workdir import Workdir, open_existing


@dataclass(frozen=True)
class Checkpoint:
    """The source of a model's parameters: the mean over the steps in `averaged`."""

    workdir: str
    step: int  # the last of `averaged`
    averaged: tuple[int, ...]


@dataclass(frozen=True)
class LoadedModels:
    """Models with their parameters in NumPy.

    Workdir, configuration, tokenizer and shortlist belong to the first model.
    """

    workdir: Workdir
    config: Config
    tokenizer: Tokenizer
    graphs: tuple[nnx.GraphDef, ...]
    parameters: tuple[dict, ...]
    checkpoints: tuple[Checkpoint, ...]
    shortlist: Shortlist | None
    scorers: tuple[Scorer | CommandScorer, ...]

    def decoder(self) -> tuple[ControlledDecoder, Replicas]:
        """Returns a decoder on all local devices, and the parameters for its methods.

        See `make_decoder`.
        """
        decoder = make_decoder(
            self.config,
            self.config.decoding,
            scorers=self.scorers,
            graphs=self.graphs,
            tokenizer=self.tokenizer,
            devices=jax.local_devices(),
            shortlist=self.shortlist,
        )
        return decoder, decoder.place(self.parameters)


def check_translates(config: Config, workdir: str) -> None:
    """Raises UserError, which names --workdir, if the models generate no text."""
    objective = config.training.objective
    if "translate" not in OBJECTIVES[objective].methods:
        raise UserError(
            f"--workdir={workdir}: a model of training.objective={objective} generates no text"
        )


def check_translates_sentences(config: Config, workdir: str) -> None:
    """Raises UserError, which names --workdir, if the models need more than single sentences."""
    check_translates(config, workdir)
    if config.data.context:
        raise UserError(
            f"--workdir={workdir}: its data.context needs whole documents; "
            "use transformer.translate"
        )


def load(
    workdirs: Sequence[str], which: str, average: int, overrides: Sequence[tuple[str, str]]
) -> LoadedModels:
    """Loads the model of a workdir, or the models of several workdirs as an ensemble.

    Models of an ensemble have the same tokenizer. `which` and `average` choose the checkpoints of
    each workdir: see `choose_steps`. `overrides` are decoding keys and languages with their values,
    as typed, for the first workdir's configuration. Raises UserError if the models cannot be
    loaded, or do not know the languages.
    """
    # The first run's configuration decides how all models are decoded.
    runs = [open_existing(Path(name)) for name in workdirs]
    first, first_config = runs[0]
    config = override(first_config, overrides)
    _warn_about_unread_keys(config, overrides)
    tokenizers = [Tokenizer.load(workdir.path, run_config) for workdir, run_config in runs]
    tokenizer = tokenizers[0]
    for (workdir, run_config), run_tokenizer in zip(runs, tokenizers, strict=True):
        try:
            check_direction(run_config.data, config.data)
        except UserError as error:
            raise UserError(f"--workdir={workdir.path}: {error}") from None
        # An ensemble averages probabilities token by token.
        if run_tokenizer.fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"--workdir={','.join(workdirs)}: {first.path} and {workdir.path} have different "
                "tokenizers; models that translate together need the same (give the second run "
                "the first one's by --config.tokenizer.model_file)"
            )
        _check_member(workdir, run_config, first, config, workdirs)

    # All checks are done before the first model is loaded.
    size = config.decoding.shortlist
    shortlist = Shortlist.load(first.shortlist, tokenizer, size) if size else None
    scorers = load_scorers(config)
    members = [_load_member(*run, tokenizer.vocab_sizes, which, average) for run in runs]
    graphs, parameters, checkpoints = zip(*members, strict=True)
    return LoadedModels(
        workdir=first,
        config=config,
        tokenizer=tokenizer.with_tag(source_tag(config.data)),
        graphs=graphs,
        parameters=parameters,
        checkpoints=checkpoints,
        shortlist=shortlist,
        scorers=scorers,
    )


def _check_member(
    workdir: Workdir, run_config: Config, first: Workdir, config: Config, workdirs: Sequence[str]
) -> None:
    """Raises UserError if a model cannot be decoded together with the first one."""
    for group, key in (("training", "objective"), ("model", "ctc_frames")):
        if run_config[group][key] != config[group][key]:
            raise UserError(
                f"--workdir={','.join(workdirs)}: {first.path} has "
                f"{group}.{key}={config[group][key]} and {workdir.path} has "
                f"{run_config[group][key]}; the models of an ensemble need the same"
            )
    try:
        with_values(
            run_config, {f"decoding.{key}": value for key, value in config.decoding.items()}
        )
    except UserError as error:
        raise UserError(
            f"{workdir.path}: cannot be decoded with the settings of {first.path}: {error}"
        ) from None


def _load_member(
    workdir: Workdir, config: Config, vocab_sizes: tuple[int, int], which: str, average: int
) -> tuple[nnx.GraphDef, dict, Checkpoint]:
    """Returns the structure and the parameters of one model, and the steps they are the mean of."""
    path = workdir.path
    steps = choose_steps(path, which, average, config.checkpoint.every)
    graph, expected = abstract_init(config, *vocab_sizes)
    parameters = load_parameters(path, steps, expected, config)
    noun = "step" if len(steps) == 1 else "the mean of steps"
    logging.info("%s: loaded %s %s.", path, noun, ", ".join(map(str, steps)))
    # scripts.average has already averaged the steps of its workdirs.
    averaged = tuple(workdir.averaged_steps() or steps)
    return graph, parameters, Checkpoint(str(path), steps[-1], averaged)


def _warn_about_unread_keys(config: Config, overrides: Sequence[tuple[str, str]]) -> None:
    """Logs a warning for keys of sampling that are set for a strategy without samples."""
    # Otherwise a user would believe that, for example, a temperature has an effect.
    strategy = config.decoding.strategy
    if STRATEGIES[strategy].samples:
        return
    for key, value in overrides:
        if key.removeprefix("decoding.") in SAMPLING:
            logging.warning(
                "--%s=%s: decoding.strategy=%s draws no samples; try decoding.strategy=sample.",
                key,
                value,
                strategy,
            )
            return


def load_scorers(config: Config) -> tuple[Scorer | CommandScorer, ...]:
    """Loads the models of `decoding.rerank` at their best checkpoints.

    Raises UserError if one cannot rerank.
    """
    scorers: list[Scorer | CommandScorer] = []
    if config.decoding.scorer:
        # A list of hypotheses has no references.
        fields = ("source", "hypothesis") if config.decoding.rerank else FIELDS
        check_command("--decoding.scorer", config.decoding.scorer, fields)
    # Each item is WORKDIR:WEIGHT, where the folder may contain colons.
    for item in filter(None, config.decoding.rerank.split(",")):
        path, _, text = item.rpartition(":")
        name = path and str(files.expand_user(path))
        weight = parse_number(text)
        if not name or not math.isfinite(weight):
            raise UserError(
                f"--decoding.rerank={item}: must be WORKDIR:WEIGHT with a number, "
                "such as runs/de-en:0.5"
            )
        if name == "scorer":
            scorers.append(CommandScorer(config.decoding.scorer, weight))
            continue
        _, scorer_config = open_existing(Path(name), "--decoding.rerank")
        arrange = choose_arrangement(scorer_config, config, name)
        # A scorer neither reranks nor uses a shortlist, and computes in the dtype of the search.
        overrides = [
            ("decoding.rerank", ""),
            ("decoding.shortlist", "0"),
            ("decoding.dtype", config.decoding.dtype),
        ]
        models = load([name], "best", 1, overrides)
        scorers.append(Scorer(name, weight, arrange, *models.decoder()))
    return tuple(scorers)


def choose_arrangement(
    scorer_config: Config, config: Config, name: str
) -> Callable[[str, str], tuple[str, str]]:
    """Returns `Scorer.arrange` of the model in the workdir `name`.

    `config` is the configuration of the search. Raises UserError unless the model can score its
    texts.
    """
    # By the languages of the model: forward, backward, or a language model of the target.
    source = config.data.source_language
    target = config.data.target_language
    arrangements = {
        (source, target): lambda text, hypothesis: (text, hypothesis),
        (target, source): lambda text, hypothesis: (hypothesis, text),
        ("", target): lambda text, hypothesis: ("", hypothesis),
    }
    sides = (scorer_config.data.source_language, scorer_config.data.target_language)
    objective = scorer_config.training.objective
    if sides not in arrangements or objective not in ("translation", "causal_lm"):
        raise UserError(
            f"--decoding.rerank={name}: a model of training.objective={objective} from "
            f"{sides[0]!r} to {sides[1]!r}; must be a translation model from {target} to {source}, "
            f"or the other way, or a language model of {target}"
        )
    return arrangements[sides]
