"""Checks before a run starts, of its processes and data, and before an existing run continues."""

import hashlib
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from configs.rules import HOST, RESULT
from transformer.checkpoints.restore import choose_step, named_leaves, read_progress, steps_in
from transformer.config import loading
from transformer.config.keys import flatten, keys_of
from transformer.config.types import Config, names_in
from transformer.data.corpus import sanity_checks
from transformer.data.corpus.corpus import Corpus
from transformer.data.languages import source_tag
from transformer.data.sources.mixture import ANNOTATIONS, held_out_sets, listed_corpora
from transformer.data.sources.source import decode_pairs, open_source
from transformer.data.tokenizers.tokenizer import Tokenizer, losses_of_pairs
from transformer.support import files
from transformer.support.environment import describe_environment, read_environment
from transformer.support.errors import UserError, first_of
from transformer.training.held_out import metric_names
from transformer.training.objectives import OBJECTIVES
from transformer.training.optimizer import begins_with, read_factors
from transformer.training.progress import Progress
from transformer.workdir import Workdir

STEPS = "training.steps"
PATHS = ("path=", "exclude=", *(f"{key}=" for key in ANNOTATIONS))  # in the texts of listed corpora


def process_facts(config: Config) -> dict[str, Any]:
    """Returns the facts that the processes of a run must agree on."""
    host_keys = keys_of(HOST)
    facts = {
        f"config.{key}": value for key, value in flatten(config).items() if key not in host_keys
    }
    environment = describe_environment()
    facts["the commit"] = environment["commit"]
    # The commit misses uncommitted changes, and is unknown outside a repository.
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    code = b"".join(path.read_bytes() for path in sources)
    facts["the code"] = hashlib.sha256(code).hexdigest()
    facts["Python"] = environment["python"]
    if config.model.dtype == "auto":
        facts["the dtype of model.dtype=auto"] = environment["auto_dtype"]
    for name, version in environment["packages"].items():
        facts[f"the version of {name}"] = version
    return facts


def warn_about_data(
    config: Config, vocabulary: Tokenizer, train: Corpus, valid_sets: Sequence[Corpus]
) -> None:
    """Logs apparent mistakes in the data.

    The test split is only compared by hashes, and checked for text that the vocabulary loses or
    that other tools have left. Raises UserError if most characters of the training split are
    unknown.
    """

    def warn(lines: Iterable[str]) -> None:
        for line in lines:
            logging.warning("%s", line)

    warn(sanity_checks.find_untranslated(config, vocabulary, train))
    if OBJECTIVES[config.training.objective].has_both_sides:
        warn(sanity_checks.find_unreachable(config, train))

    # Unknown characters and dropped pairs, in training and validation.
    valid_configs = list(held_out_sets(config).values())
    for split_config, corpus in zip([config, *valid_configs], [train, *valid_sets], strict=True):
        losses = corpus.report["losses"]
        is_train = corpus is train
        warn(sanity_checks.find_losses(split_config, vocabulary, corpus.name, losses, is_train))

    # Held-out pairs that are also in the training data. Synthetic splits share none.
    if config.data.source == "synthetic":
        return
    splits = [(valid_config.data, "valid") for valid_config in valid_configs]
    for data, split in [*splits, (config.data, "test")]:
        try:
            source = open_source(data, split)
            texts = list(decode_pairs(source))
        except UserError as error:
            logging.warning(
                "%s; training does not need it, but transformer.evaluate --split=%s does",
                error,
                split,
            )
            continue
        if not texts:
            continue
        warn(sanity_checks.find_shared(train, source, texts))
        if split == "test" and config.data.source != "ids":
            losses = losses_of_pairs(vocabulary, texts)
            warn(sanity_checks.find_losses(config, vocabulary, source.name, losses, is_train=False))


def check_listed_corpora(config: Config) -> None:
    """Raises UserError for a corpus or validation set that does not fit the run.

    Also for `best_metric` and `rate_factors`, which depend on other keys.
    """
    objective = config.training.objective
    kind = config.tokenizer.kind
    corpora = {}
    for corpus in listed_corpora(config.data):
        corpora[f"the corpus {corpus.label} of data.mixture"] = corpus.data
    for label, set_config in held_out_sets(config).items():
        corpora[f"the set {label} of data.valid_sets"] = set_config.data

    # The last target language of each tag and source language: all corpora must have the same.
    targets = {}
    for data in corpora.values():
        targets[source_tag(data), data.source_language] = data.target_language
    for name, data in corpora.items():
        sides = (bool(data.source_language), bool(data.target_language))
        if sides != OBJECTIVES[objective].sides:
            raise UserError(f"{name}: has other sides than training.objective={objective} reads")
        if objective == "span_corruption" and source_tag(data):
            raise UserError(f"{name}: span_corruption predicts whole texts; leave source_tag empty")
        if (data.source == "ids") != (kind == "ids"):
            raise UserError(f"{name}: source={data.source} does not go with tokenizer.kind={kind}")
        target = data.target_language
        if data.source_language and targets[source_tag(data), data.source_language] != target:
            raise UserError(
                f"{name}: nothing tells the model to translate into {target}; set data.source_tag"
            )

    best_metric = config.checkpoint.best_metric
    names = metric_names(config)
    if best_metric not in names:
        raise UserError(
            f"config.checkpoint.best_metric={best_metric}: must be one of {', '.join(names)}"
        )
    read_factors(config.optimizer.rate_factors)


def check_prefixes(flag: str, prefixes: Iterable[str], names: Collection[str]) -> None:
    """Raises UserError, which begins with `flag`, for a prefix of no name.

    A prefix is a whole name, or its beginning up to a dot.
    """
    # Parameters have long names, so the message lists the modules.
    for prefix in prefixes:
        if not any(begins_with(name, [prefix]) for name in names):
            modules = sorted({".".join(name.split(".")[:2]) for name in names})
            raise UserError(
                f"{flag}: no parameter's name is or begins with {prefix}; "
                f"they begin with {', '.join(modules)}"
            )


def check_trained_names(config: Config, parameters: dict) -> None:
    """Raises UserError if a factor or `training.freeze` names no parameter, or all are frozen."""
    sizes = {name: leaf.size for name, leaf in named_leaves(parameters).items()}
    rate_factors = config.optimizer.rate_factors
    factor_names = [name for name, _ in read_factors(rate_factors)]
    check_prefixes(f"config.optimizer.rate_factors={rate_factors}", factor_names, sizes)

    # A run that trains nothing is a mistake.
    flag = f"config.training.freeze={config.training.freeze}"
    frozen = names_in(config.training.freeze)
    check_prefixes(flag, frozen, sizes)
    trained_sizes = [size for name, size in sizes.items() if not begins_with(name, frozen)]
    if not trained_sizes:
        raise UserError(f"{flag}: these are all parameters; leave out those to be trained")
    if frozen:
        count = sum(trained_sizes)
        logging.info(f"Training changes {count:,} of {sum(sizes.values()):,} parameters.")


def check_continuation(workdir: Workdir, config: Config, extend: int | None = None) -> None:
    """Raises UserError if the run cannot continue with this configuration.

    `extend` is the value of --extend.
    """
    if workdir.averaged.exists():
        raise UserError(
            f"--workdir={workdir.path}: holds a mean of checkpoints, without an optimizer; train "
            f"from it in another --workdir with --config.training.init_from={workdir.path}"
        )
    old_config = loading.load(workdir.path)
    if extend is not None:
        _check_extension(workdir, config, extend, old_config.training.steps)

    # Keys of other scopes may change, and so may the places of the files of listed corpora.
    result_keys = keys_of(RESULT)
    changes = loading.difference(old_config, config)
    changes = {key: values for key, values in changes.items() if key in result_keys}
    for key in ("mixture", "valid_sets"):
        if _without_paths(old_config.data[key]) == _without_paths(config.data[key]):
            changes.pop(f"data.{key}", None)

    # The length before an extension is also valid.
    steps = config.training.steps
    starts = _read_environment(workdir)["resumed"]
    earlier_steps = [start["changes"][STEPS][0] for start in starts if STEPS in start["changes"]]
    if extend is not None or steps in earlier_steps:
        changes.pop(STEPS, None)

    if changes:
        texts = [f"{key}: {values}" for key, values in changes.items()]
        is_longer = list(changes) == [STEPS] and steps > old_config.training.steps
        advice = f"extend it with --extend={steps}, " if is_longer else ""
        raise UserError(
            f"--workdir={workdir.path}: holds a run of another config ({first_of(texts, 5)}); "
            f"{advice}resume it with --config={workdir.config} and without these keys, which are "
            "fixed for the run, or start a new run in another --workdir, from this one with "
            f"--config.training.init_from={workdir.path}"
        )


def _without_paths(texts: Sequence[str]) -> list[list[str]]:
    """Returns the words of listed corpora, without files and folders.

    These may move, since fingerprints identify their contents.
    """
    return [[word for word in shlex.split(text) if not word.startswith(PATHS)] for text in texts]


def _check_extension(workdir: Workdir, config: Config, extend: int, steps: int) -> None:
    progress = _last_progress(workdir)
    least = max(progress.step, steps)
    if extend < least:
        raise UserError(
            f"--extend={extend}: this run has done {progress.step} of {steps} steps; "
            f"name at least {least}, or more to extend it"
        )
    if extend > progress.step and progress.is_finished(config.training):
        raise UserError(
            f"config.training.patience={config.training.patience}: "
            f"{progress.validations_since_best} validations in a row have not improved the score, "
            "so the run has ended; also set --config.training.patience=0 or raise it"
        )


def record_start(workdir: Workdir, config: Config) -> None:
    """Records a new start and the settings that it changes.

    Removes the mark of a complete run if it has more steps to do, or no checkpoint any more.
    """
    if not workdir.has_begun():
        return
    old_config = loading.load(workdir.path)
    old_values = flatten(old_config)
    values = flatten(config)
    difference = loading.difference(old_config, config)
    steps = steps_in(workdir.checkpoints)
    is_done = (
        workdir.is_complete()
        and bool(steps)
        and _last_progress(workdir).is_finished(config.training)
    )
    start = describe_environment() | {
        "step": max(steps, default=0),
        "changes": {key: [old_values[key], values[key]] for key in difference},
    }

    # Other code or another dtype may explain a change in the curves.
    record = _read_environment(workdir)
    last_start = [record, *record["resumed"]][-1]
    facts = ["commit"]
    if config.model.dtype == "auto":
        facts.append("auto_dtype")
    for fact in facts:
        old_value = last_start.get(fact, start[fact])
        if start[fact] != old_value:
            logging.warning(
                "Since the last start, %s has changed from %s to %s.", fact, old_value, start[fact]
            )
    # Without a further step, no code of this start takes part in the run.
    if not is_done:
        files.write_json(workdir.environment, record | {"resumed": [*record["resumed"], start]})

    if difference:
        texts = "; ".join(f"{key}: {change}" for key, change in difference.items())
        logging.info("Settings that change at step %d: %s.", start["step"], texts)
        loading.save(config, workdir.path)
    if workdir.is_complete() and not is_done:
        workdir.complete.unlink()


def _last_progress(workdir: Workdir) -> Progress:
    return read_progress(workdir.checkpoints / str(choose_step(workdir.path, "last")))


def _read_environment(workdir: Workdir) -> dict[str, Any]:
    """Returns `environment.json`, or a new record if it was deleted."""
    return read_environment(workdir.environment) or describe_environment() | {"resumed": []}
