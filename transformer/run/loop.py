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
from transformer.training.progress import Progress, TrainingWindow, due
from transformer.training.state import TrainState

MIN_LOGGED_SECONDS = 1.0  # of a compilation


def train(
    run: Run, profiled: tuple[int, int] | None, interruption: Interruption | None = None
) -> None:
    """Trains to the last step, or until `training.patience` validations in a row have not improved
    the score.

    The steps from `profiled[0]` to `profiled[1]` are traced. `interruption` ends it early: it is
    saved, and not complete. Without one, signals do, and then it raises KeyboardInterrupt. Raises
    UserError if training diverges too often.
    """
    for line in pair_lines(run.config.data, run.tokenizer, run.corpus, columns=65):
        logging.info("pair  %s", line)
    training = run.config.training
    is_first = jax.process_index() == 0
    hooks = Hooks(
        interruption or Interruption(),
        Watchdog(training.stall_seconds),
        *([Profile(run.workdir.profile, *profiled)] if profiled and is_first else []),
        *([Recorder(run.workdir, run.config, run.corpus.names)] if is_first else []),
        Status(run.config),
    )
    with hooks, Checkpoints(run.workdir, run.config) as checkpoints:
        state, progress = run.restore_or_initialize(checkpoints)
        if progress.step:
            logging.info("Resuming from the checkpoint of step %d.", progress.step)
        while True:
            try:
                progress = train_from(state, progress, run, checkpoints, hooks)
                break
            except Diverged as diverged:
                with hooks.during("rolling back"):
                    state, progress = roll_back(run, checkpoints, diverged)
    if progress.is_finished(training):
        coordination.on_process_zero(run.workdir.mark_complete, progress.step)
        best = f"step {progress.best_step}, by checkpoint.best_metric={run.config.checkpoint.best_metric}"
        logging.info("Done: %d steps; the best checkpoint is %s.", progress.step, best)
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
    """Trains until the run is finished or interrupted, or raises Diverged.

    Returns the last checkpoint's progress.
    """
    if progress.is_finished(run.config.training):
        return progress
    with Loader(run.corpus, run.config, progress.position, run.train_step.mesh) as loader:
        logging.info(
            "Batches: %d per epoch, %.1f %% padding%s, %d shapes (--plan lists them).",
            len(loader.plan),
            100 * loader.plan.padding_fraction,
            run.padding_note,
            len(loader.plan.stats),
        )
        try:
            hooks.on_start(progress)
            compile_programs(run, state, loader.buckets, hooks)
        except Interrupted:
            return progress
        return loop(state, progress, run, loader, checkpoints, hooks)


def compile_programs(run: Run, state: TrainState, buckets: Sequence[Bucket], hooks: Hooks) -> None:
    """Compiles the missing programs in threads, and runs the validation's largest batch: what does
    not fit fails early.

    Raises the first error in the order of the programs, or one of `hooks.poll`, which is called
    after each program.
    """
    jobs = run.train_step.compilations(state, buckets) + run.validation.compilations(
        state.eval_parameters
    )
    started = time.perf_counter()
    with progress_bar.bar("Compiling programs", len(jobs)) as advance:
        call_all(jobs, lambda: (advance(1), hooks.poll()))
    if (seconds := time.perf_counter() - started) >= MIN_LOGGED_SECONDS:
        logging.info("Compiled %d programs in %.0f s.", len(jobs), seconds)
    run.validation.warm_up(state.eval_parameters)
    hooks.poll()


def loop(
    state: TrainState,
    progress: Progress,
    run: Run,
    loader: Loader,
    checkpoints: Checkpoints,
    hooks: Hooks,
) -> Progress:
    """Takes the steps of `train_from` with the batches of the loader."""
    training = run.config.training
    save_every = run.config.checkpoint.every
    window = TrainingWindow(progress.window)
    started = time.perf_counter() - progress.seconds
    stop = False
    while not stop:
        # else this start repeats the validation that was interrupted
        if not progress.validation_due(training):
            hooks.before_step(progress.step + 1)
            with hooks.during("wait for data"):
                num_batches = batches_at(progress.step + 1, training)
                positions, batches, stats = zip(*itertools.islice(loader, num_batches), strict=True)
            state, metrics = run.train_step(state, batches)
            progress = progress.after_update(positions[-1], stats, time.perf_counter() - started)
            hooks.after_step(progress, metrics)
            is_logged = due(progress.step, training.log_every, training.steps)
            # only here the loop waits for the device
            if is_logged and int(state.skipped) >= training.max_skipped:
                raise Diverged(state, progress, batches)
            window.add(metrics, stats)
            if is_logged and (values := window.summary(loader.data_wait_seconds)):
                hooks.on_log(progress, values)
                window = TrainingWindow({}, loader.data_wait_seconds)
        if progress.validation_due(training):
            with contextlib.suppress(Interrupted), window.pause(), hooks.during("validating"):
                values, samples = run.validation(state.eval_parameters, hooks.poll)
                progress = progress.after_validation(values, run.config.checkpoint.best_metric)
                hooks.on_validation(progress, values, samples)
        # Once a step: a signal during the saving takes effect after the next step.
        stop = hooks.stop_requested() or progress.is_finished(training)
        if stop or progress.is_best or due(progress.step, save_every, training.steps):
            with window.pause(), hooks.during("saving"):
                progress = dataclasses.replace(
                    progress, window=window.totals(), skipped=int(state.skipped)
                )
                checkpoints.save(state, progress)
    return progress
