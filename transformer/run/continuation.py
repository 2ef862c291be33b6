"""Continuing a run: with more steps, or with other settings that do not change what it computes."""

import argparse
from pathlib import Path
from typing import Any

from absl import logging

from configs.rules import RESULT
from transformer import files
from transformer.checkpoints.restore import choose_step, read_progress, steps_in
from transformer.config import loading
from transformer.config.keys import flatten, keys_of
from transformer.config_types import Config
from transformer.environment import describe_environment, read_environment
from transformer.errors import UserError, first_of
from transformer.training.optimizer import count_updates, make_schedule
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.workdir import Workdir, open_existing

STEPS = "training.steps"


def extended_config(arguments: argparse.Namespace) -> Config:
    """Returns the configuration of --config, else that of the run in --workdir, with overrides and the new length.

    Raises UserError if there is no run, or the configuration is not allowed.
    """
    if STEPS in dict(arguments.overrides):
        raise UserError(f"--extend={arguments.extend}: becomes config.{STEPS}; remove --config.{STEPS}")
    workdir, recorded = open_existing(Path(arguments.workdir))
    # `load_file` reduces warm-up and intervals to a shorter length, which `check` then refuses.
    steps = max(arguments.extend, recorded.training.steps)
    return loading.load_file(arguments.config or str(workdir.config), [*arguments.overrides, (STEPS, str(steps))])


def check(workdir: Workdir, config: Config, extend: int | None = None) -> None:
    """Raises UserError if the run in the workdir cannot continue with this configuration.

    Without `extend`, the length that --extend names, `training.steps` may also be an earlier length.
    """
    if workdir.averaged.exists():
        raise UserError(
            f"--workdir={workdir.path}: holds a mean of checkpoints, without an optimizer; train from it in another "
            f"--workdir with --config.training.init_from={workdir.path}"
        )
    recorded = loading.load(workdir.path)
    changes = [start["changes"] for start in _read_environment(workdir)["resumed"]]
    earlier_lengths = [changed[STEPS][0] for changed in changes if STEPS in changed]
    if extend is not None:
        _check_extension(workdir, config, extend, recorded.training.steps)
    refused = {key: values for key, values in loading.difference(recorded, config).items() if key in keys_of(RESULT)}
    if extend is not None or config.training.steps in earlier_lengths:
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


def _check_extension(workdir: Workdir, config: Config, extend: int, length: int) -> None:
    """Raises UserError if `extend` is less than the run's length or the steps done, or its patience is exhausted."""
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
    """Records a new start of a run that has begun, with the settings that it changes, also in `config.json`.

    A run whose new settings give it more to do is no longer complete. A kill between two writes is harmless:
    `config.json` decides which settings a run has, and the next start removes the mark of a complete run.
    """
    if not workdir.has_begun():
        return
    recorded = loading.load(workdir.path)
    before, after, difference = flatten(recorded), flatten(config), loading.difference(recorded, config)
    changes = {key: [before[key], after[key]] for key in difference}
    steps = steps_in(workdir.checkpoints)
    record = _read_environment(workdir)
    start = describe_environment() | {"step": max(steps, default=0), "changes": changes}
    if STEPS in changes:
        start["schedule"] = f"{config.optimizer.schedule} of {after[STEPS]} steps from update {start['step'] + 1} on"
    diffs = [earlier.get("diff") for earlier in (record, *record["resumed"])]
    if "diff" in start and start["diff"] in diffs:
        start["diff"] = f"that of start {diffs.index(start['diff'])}, where 0 is the first"
    files.write_json(workdir.environment, record | {"resumed": [*record["resumed"], start]})
    if changes:
        listed = "; ".join(f"{key}: {values}" for key, values in difference.items())
        logging.info("Settings that change at step %d: %s.", start["step"], listed)
        loading.save(config, workdir.path)
    if workdir.is_complete() and steps and not _last_progress(workdir).is_finished(config.training):
        workdir.complete.unlink()


def log_extension(workdir: Workdir, config: Config, state: TrainState) -> None:
    """Logs how the learning rate continues if the start that `record_start` has recorded extends the run."""
    changes = _read_environment(workdir)["resumed"][-1]["changes"]
    if STEPS not in changes:
        return
    updates, lengths = int(count_updates(state.optimizer_state)), changes[STEPS]
    before, after = (make_schedule(config.optimizer, config.model.d_model, steps) for steps in lengths)
    logging.info(
        "Extended from %d to %d steps: the learning rate follows the %s schedule of the new length, "
        "%.3g at the last update and %.3g at the next.",
        *(*lengths, config.optimizer.schedule, before(updates - 1), after(updates)),
    )


def _last_progress(workdir: Workdir) -> Progress:
    return read_progress(workdir.checkpoints / str(choose_step(workdir.path, "last")))


def _read_environment(workdir: Workdir) -> dict[str, Any]:
    """Returns `environment.json`, a new one if it was deleted."""
    return read_environment(workdir.environment) or describe_environment() | {"resumed": []}
