"""The training loop: data, steps, validation and checkpoints.

Hooks, listed in `train`, do everything else.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Sequence

import jax
from absl import logging

from transformer.checkpoints.manager import Checkpoints
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.batches.loader import Loader
from transformer.data.corpus.sanity_checks import pair_lines
from transformer.distributed import coordination
from transformer.hooks.endings import Interrupted, Interruption, Watchdog
from transformer.hooks.hook import Hooks
from transformer.hooks.profiling import Profile
from transformer.hooks.status import Status
from transformer.run.preparation import Run
from transformer.run.record import Recorder
from transformer.run.rollback import Diverged, roll_back
from transformer.support import progress_bar
from transformer.support.workers import call_all
from transformer.training.accumulation import batches_at
from transformer.training.progress import Progress, TrainingWindow, is_due
from transformer.training.state import TrainState

# Seconds of a compilation that is worth a log line.
MIN_LOGGED_SECONDS = 1.0


def train(
    run: Run, profiled: tuple[int, int] | None, interruption: Interruption | None = None
) -> None:
    """Trains to the last step, or until early stopping.

    Training stops early when `training.patience` validations in a row have not improved the
    score. The steps from `profiled[0]` to `profiled[1]` are traced. `interruption` ends training
    early: the state is saved, and the run is not complete. Without one, signals end it, and then
    it raises KeyboardInterrupt. Raises UserError if training diverges too often.
    """
    for line in pair_lines(run.config.data, run.tokenizer, run.corpus, columns=65):
        logging.info("pair  %s", line)

    # Only process 0 writes files. The loop calls the hooks in this order.
    training_config = run.config.training
    callbacks = [interruption or Interruption(), Watchdog(training_config.stall_seconds)]
    if jax.process_index() == 0:
        if profiled:
            callbacks.append(Profile(run.workdir.profile, *profiled))
        callbacks.append(Recorder(run.workdir, run.config, run.corpus.names))
    callbacks.append(Status(run.config))

    with Hooks(*callbacks) as hooks, Checkpoints(run.workdir, run.config) as checkpoints:
        state, progress = run.restore_or_initialize(checkpoints)
        if progress.step:
            logging.info("Resuming from the checkpoint of step %d.", progress.step)
        # Training starts again from an earlier checkpoint as often as `roll_back` allows.
        while True:
            try:
                progress = train_from(state, progress, run, checkpoints, hooks)
                break
            except Diverged as diverged:
                with hooks.during("rolling back"):
                    state, progress = roll_back(run, checkpoints, diverged)

    # Otherwise a signal has ended the loop, which has saved its last step.
    if progress.is_finished(training_config):
        coordination.on_process_zero(run.workdir.mark_complete, progress.step)
        logging.info(
            "Done: %d steps; the best checkpoint is step %s, by checkpoint.best_metric=%s.",
            progress.step,
            progress.best_step,
            run.config.checkpoint.best_metric,
        )
        return
    message = "interrupted before the first step: run the same command to start again"
    if progress.step:
        message = f"interrupted; step {progress.step} is saved: run the same command to resume"
    if interruption is None:
        raise KeyboardInterrupt(message)
    logging.info("%s", message.capitalize())


def train_from(
    state: TrainState, progress: Progress, run: Run, checkpoints: Checkpoints, hooks: Hooks
) -> Progress:
    """Trains from this state until the run is finished or interrupted.

    Returns the progress of the last checkpoint. Raises Diverged if too many updates in a row are
    not finite.
    """
    if progress.is_finished(run.config.training):
        return progress
    with Loader(run.corpus, run.config, progress.data_position, run.train_step.mesh) as loader:
        logging.info(
            "Batches: %d per epoch, %.1f %% padding%s, %d shapes (--plan lists them).",
            len(loader.epoch_plan),
            100 * loader.epoch_plan.padding_fraction,
            run.padding_note,
            len(loader.epoch_plan.stats),
        )
        # An interruption of the compilation leaves the checkpoint unchanged.
        try:
            hooks.on_start(progress)
            compile_programs(run, state, loader.buckets, hooks)
        except Interrupted:
            return progress
        return take_steps(state, progress, run, loader, checkpoints, hooks)


def compile_programs(run: Run, state: TrainState, buckets: Sequence[Bucket], hooks: Hooks) -> None:
    """Compiles the missing programs in threads, and runs the largest batch of the validation.

    A batch that does not fit into memory thus fails before the first step. Raises the first error
    in the order of the programs, or an error of `hooks.poll`, which is called after each program.
    """
    jobs = [
        *run.train_step.compilations(state, buckets),
        *run.validation.compilations(state.eval_parameters),
    ]
    started = time.perf_counter()
    with progress_bar.bar("Compiling programs", len(jobs)) as advance:

        def after_job() -> None:
            advance(1)
            hooks.poll()

        call_all(jobs, after_job)
    seconds = time.perf_counter() - started
    if seconds >= MIN_LOGGED_SECONDS:
        logging.info("Compiled %d programs in %.0f s.", len(jobs), seconds)
    run.validation.warm_up(state.eval_parameters)
    hooks.poll()


def take_steps(
    state: TrainState,
    progress: Progress,
    run: Run,
    loader: Loader,
    checkpoints: Checkpoints,
    hooks: Hooks,
) -> Progress:
    """Updates, validates and saves, as `train_from` describes, with the batches of the loader."""
    training_config = run.config.training
    last_step = training_config.steps
    window = TrainingWindow(progress.window)
    started = time.perf_counter() - progress.seconds
    stop = False
    while not stop:
        # An update. A run that resumes repeats an interrupted validation before its next update.
        if not progress.validation_due(training_config):
            step = progress.step + 1
            hooks.before_step(step)
            with hooks.during("wait for data"):
                items = itertools.islice(loader, batches_at(step, training_config))
                data_positions, batches, stats = zip(*items, strict=True)
            state, metrics = run.train_step(state, batches)
            seconds = time.perf_counter() - started
            progress = progress.after_update(data_positions[-1], stats, seconds)
            hooks.after_step(progress, metrics)
            window.add(metrics, stats)

            if is_due(step, training_config.log_every, last_step):
                # Reading the count waits for the device, so only the logged steps do it.
                if int(state.skipped) >= training_config.max_skipped:
                    raise Diverged(state, progress, batches)
                window = log(window, progress, loader, hooks)

        if progress.validation_due(training_config):
            with contextlib.suppress(Interrupted), window.pause(), hooks.during("validating"):
                progress = validate(state, progress, run, hooks, started)

        # The hooks are asked once per step: a signal during the saving stops after the next step.
        stop = hooks.stop_requested() or progress.is_finished(training_config)
        is_regular = is_due(progress.step, run.config.checkpoint.every, last_step)
        if stop or progress.is_best or is_regular:
            with window.pause(), hooks.during("saving"):
                totals = window.totals()
                progress = dataclasses.replace(progress, window=totals, skipped=int(state.skipped))
                checkpoints.save(state, progress)
    return progress


def log(window: TrainingWindow, progress: Progress, loader: Loader, hooks: Hooks) -> TrainingWindow:
    """Passes the values of a training line to the hooks, and returns the window of the next line.

    If all updates were skipped, there is no line, and the window continues.
    """
    values = window.summary(loader.data_wait_seconds)
    if values is None:
        return window
    hooks.on_log(progress, values)
    return TrainingWindow({}, loader.data_wait_seconds)


def validate(
    state: TrainState, progress: Progress, run: Run, hooks: Hooks, started: float
) -> Progress:
    """Validates, and returns the progress after it.

    `started` is the time at which the run began, without pauses between its starts. Raises
    Interrupted if a signal arrives.
    """
    # The devices have computed all updates by now, so their time is not counted here.
    validation_started = time.perf_counter()
    values, samples = run.validation(state.eval_parameters, hooks.poll)
    now = time.perf_counter()
    progress = dataclasses.replace(
        progress.after_validation(values, run.config.checkpoint.best_metric),
        seconds=now - started,
        validation_seconds=progress.validation_seconds + now - validation_started,
    )
    hooks.on_validation(progress, values, samples)
    return progress
