"""Checks before a run starts: its processes, devices and data, and whether a run that has begun can
continue.
"""

import hashlib
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
from transformer.data.sources.mixture import held_out_sets, listed_corpora
from transformer.data.sources.source import decoded, open_source
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
PATHS = ("path=", "exclude=", "pair_weights=", "alignments=")  # in the texts of listed corpora


def process_facts(config: Config) -> dict[str, Any]:
    """Returns the facts that the processes of a run must agree on."""
    environment = describe_environment()
    ignored = keys_of(HOST)
    settings = {
        f"config.{key}": value for key, value in flatten(config).items() if key not in ignored
    }
    # The commit does not tell uncommitted changes apart, and is unknown outside a repository.
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    code = {
        "the commit": environment["commit"],
        "the code": digest,
        "Python": environment["python"],
    }
    if config.model.dtype == "auto":
        code["the dtype of model.dtype=auto"] = environment["auto_dtype"]
    return (
        settings
        | code
        | {f"the version of {name}": value for name, value in environment["packages"].items()}
    )


def warn_about_data(
    config: Config, vocabulary: Tokenizer, train: Corpus, sets: Sequence[Corpus]
) -> None:
    """Logs apparent mistakes in the data. Raises UserError if most characters of the training split
    are unknown.

    Compares only hashes of the test split, and counts its unknown characters.
    """

    def warn(lines: Iterable[str]) -> None:
        for line in lines:
            logging.warning("%s", line)

    warn(sanity_checks.find_untranslated(config, vocabulary, train))
    if OBJECTIVES[config.training.objective].translates:
        warn(sanity_checks.find_unreachable(config, train))
    held_out = list(held_out_sets(config).values())
    for split_config, corpus in zip([config, *held_out], [train, *sets], strict=True):
        split = "train" if corpus is train else "valid"
        name = open_source(split_config.data, split).name
        warn(
            sanity_checks.find_losses(
                split_config, vocabulary, name, corpus.report["losses"], split == "train"
            )
        )
    if config.data.source == "synthetic":  # its splits have no sentence in common
        return
    for data, split in (
        *((set_config.data, "valid") for set_config in held_out),
        (config.data, "test"),
    ):
        try:
            source = open_source(data, split)
            texts = list(decoded(source))
        except UserError as error:
            logging.warning(
                "%s; training does not need it, but transformer.evaluate --split=%s does",
                error,
                split,
            )
            continue
        if texts:
            warn(sanity_checks.find_shared(train, source, texts))
        if texts and split == "test" and config.data.source != "ids":
            losses = losses_of_pairs(vocabulary, texts)
            warn(sanity_checks.find_losses(config, vocabulary, source.name, losses, is_train=False))


def check_listed_corpora(config: Config) -> None:
    """Raises UserError if a corpus or a set does not fit the run, or names in the configuration
    have no such form.
    """
    sides = OBJECTIVES[config.training.objective].sides
    ids = config.tokenizer.kind == "ids"
    corpora = {
        f"the corpus {corpus.label} of data.mixture": corpus.data
        for corpus in listed_corpora(config.data)
    }
    corpora |= {
        f"the set {label} of data.valid_sets": each.data
        for label, each in held_out_sets(config).items()
    }
    directions = {
        (source_tag(data), data.source_language): data.target_language for data in corpora.values()
    }
    for name, data in corpora.items():
        if (bool(data.source_language), bool(data.target_language)) != sides:
            raise UserError(
                f"{name}: has other sides than training.objective={config.training.objective} reads"
            )
        if (data.source == "ids") != ids:
            raise UserError(
                f"{name}: source={data.source} does not go with tokenizer.kind={config.tokenizer.kind}"
            )
        target = data.target_language
        if data.source_language and directions[source_tag(data), data.source_language] != target:
            raise UserError(
                f"{name}: nothing tells the model to translate into {target}; set data.source_tag"
            )
    if (best := config.checkpoint.best_metric) not in (names := metric_names(config)):
        raise UserError(f"config.checkpoint.best_metric={best}: must be one of {', '.join(names)}")
    read_factors(config.optimizer.rate_factors)


def check_prefixes(flag: str, prefixes: Iterable[str], names: Collection[str]) -> None:
    """Raises UserError, which begins with `flag`, for a prefix that is no name or beginning, up to
    a dot, of a name.
    """
    for prefix in prefixes:
        if not any(begins_with(name, [prefix]) for name in names):
            modules = sorted({".".join(name.split(".")[:2]) for name in names})
            raise UserError(
                f"{flag}: no parameter's name is or begins with {prefix}; they begin with {', '.join(modules)}"
            )


def check_trained_names(config: Config, parameters: dict) -> None:
    """Raises UserError if a factor or `training.freeze` names no parameter, or all are frozen."""
    names = named_leaves(parameters)
    frozen = names_in(config.training.freeze)
    factors = [name for name, _ in read_factors(config.optimizer.rate_factors)]
    check_prefixes(f"config.optimizer.rate_factors={config.optimizer.rate_factors}", factors, names)
    check_prefixes(freeze := f"config.training.freeze={config.training.freeze}", frozen, names)
    trained = [name for name in names if not begins_with(name, frozen)]
    if not trained:
        raise UserError(f"{freeze}: these are all parameters; leave out those to be trained")
    if frozen:
        count, total = (sum(names[name].size for name in some) for some in (trained, names))
        logging.info("Training changes %s of %s parameters.", f"{count:,}", f"{total:,}")


def check_continuation(workdir: Workdir, config: Config, extend: int | None = None) -> None:
    """Raises UserError if the run cannot continue with this configuration; `extend` is the value of
    --extend.
    """
    if workdir.averaged.exists():
        raise UserError(
            f"--workdir={workdir.path}: holds a mean of checkpoints, without an optimizer; train from it in another "
            f"--workdir with --config.training.init_from={workdir.path}"
        )
    recorded = loading.load(workdir.path)
    if extend is not None:
        _check_extension(workdir, config, extend, recorded.training.steps)
    refused = {
        key: values
        for key, values in loading.difference(recorded, config).items()
        if key in keys_of(RESULT)
    }
    for key in ("mixture", "valid_sets"):
        if _without_paths(recorded.data[key]) == _without_paths(config.data[key]):
            refused.pop(f"data.{key}", None)
    changes = [start["changes"] for start in _read_environment(workdir)["resumed"]]
    if extend is not None or config.training.steps in [
        change[STEPS][0] for change in changes if STEPS in change
    ]:
        refused.pop(STEPS, None)
    if refused:
        listed = [f"{key}: {values}" for key, values in refused.items()]
        is_longer = [*refused] == [STEPS] and config.training.steps > recorded.training.steps
        raise UserError(
            f"--workdir={workdir.path}: holds a run of another config ({first_of(listed, 5)}); "
            f"{f'extend it with --extend={config.training.steps}, ' if is_longer else ''}"
            f"resume it with --config={workdir.config} and without these keys, which are fixed for the run, or start a "
            f"new run in another --workdir, from this one with --config.training.init_from={workdir.path}"
        )


def _without_paths(texts: Sequence[str]) -> list[list[str]]:
    """Returns the words of listed corpora, without files and folders: these may move, and
    fingerprints know them.
    """
    return [[word for word in text.split() if not word.startswith(PATHS)] for text in texts]


def _check_extension(workdir: Workdir, config: Config, extend: int, length: int) -> None:
    progress = _last_progress(workdir)
    least = max(progress.step, length)
    if extend < least:
        raise UserError(
            f"--extend={extend}: this run has done {progress.step} of {length} steps; name at least {least}, "
            "or more to extend it"
        )
    if extend > progress.step and progress.is_finished(config.training):
        raise UserError(
            f"config.training.patience={config.training.patience}: {progress.validations_since_best} validations in "
            "a row have not improved the score, so the run has ended; also set --config.training.patience=0 or raise it"
        )


def record_start(workdir: Workdir, config: Config) -> None:
    """Records a new start and the settings that it changes.

    A run with more to do is no longer complete.
    """
    if not workdir.has_begun():
        return
    recorded = loading.load(workdir.path)
    record = _read_environment(workdir)
    steps = steps_in(workdir.checkpoints)
    before = flatten(recorded)
    after = flatten(config)
    difference = loading.difference(recorded, config)
    changes = {key: [before[key], after[key]] for key in difference}
    start = describe_environment() | {"step": max(steps, default=0), "changes": changes}
    last = [record, *record["resumed"]][-1]
    for fact in ("commit", *(["auto_dtype"] if config.model.dtype == "auto" else [])):
        if start[fact] != last.get(fact, start[fact]):
            logging.warning(
                "Since the last start, %s has changed from %s to %s.", fact, last[fact], start[fact]
            )
    files.write_json(workdir.environment, record | {"resumed": [*record["resumed"], start]})
    if changes:
        listed = "; ".join(f"{key}: {values}" for key, values in difference.items())
        logging.info("Settings that change at step %d: %s.", start["step"], listed)
        loading.save(config, workdir.path)
    if workdir.is_complete() and steps and not _last_progress(workdir).is_finished(config.training):
        workdir.complete.unlink()


def _last_progress(workdir: Workdir) -> Progress:
    return read_progress(workdir.checkpoints / str(choose_step(workdir.path, "last")))


def _read_environment(workdir: Workdir) -> dict[str, Any]:
    """Returns `environment.json`, a new one if it was deleted."""
    return read_environment(workdir.environment) or describe_environment() | {"resumed": []}
