"""Implementation of `transformer.train`: the training loop. transformer/train.py defines its flags."""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

from absl import logging
from jax.profiler import TraceAnnotation

from transformer import cli, locks, logs
from transformer.checkpoints.manager import Checkpoints
from transformer.config.loading import load_file
from transformer.config_types import Config
from transformer.data.batches.loader import Loader
from transformer.data.corpus.inspection import pair_lines
from transformer.distributed import coordination
from transformer.distributed.launch import distributed_run
from transformer.errors import UserError
from transformer.run import continuation
from transformer.run.plan import describe
from transformer.run.preparation import Run, open_workdir, prepare
from transformer.run.profiling import Profile
from transformer.run.record import Recorder, log_batches, log_training, log_validation
from transformer.run.rollback import Diverged, roll_back
from transformer.run.signals import Interrupted, Interruption
from transformer.run.status import TrainingStatus
from transformer.run.warm_up import WarmUp
from transformer.run.watchdog import Watchdog
from transformer.training.metrics import TrainingWindow
from transformer.training.progress import Progress, due
from transformer.training.state import TrainState

ZERO_BLEU = (
    "step %d: validation BLEU is still 0, so the best checkpoint is the one of the lowest loss. BLEU counts sequences "
    "of four tokens: if outputs are shorter or their script has no spaces, resume with "
    "--config.data.bleu_tokenizer=char, or start another run with --config.checkpoint.best_metric=loss."
)


def train(run: Run, profiled: tuple[int, int] | None) -> None:
    """Trains to the last step, or until `training.patience` validations in a row have not improved the score.

    The steps from `profiled[0]` to `profiled[1]` are traced.

    A signal ends it early: the run is saved and not marked complete. After Ctrl-C it raises KeyboardInterrupt. Raises
    UserError if training diverged and rolling back did not help.
    """
    for line in pair_lines(run.config.data, run.tokenizer, run.corpus, columns=65):
        logging.info("pair  %s", line)
    with (
        Watchdog(run.config.training.stall_seconds) as watchdog,
        Interruption() as interruption,
        Checkpoints(run.workdir, run.config) as checkpoints,
    ):
        watchdog.pause()  # restoring may take long
        state, progress = run.restore_or_initialize(checkpoints)
        if progress.step:
            logging.info("Resuming from the checkpoint of step %d.", progress.step)
            coordination.on_process_zero(continuation.log_extension, run.workdir, run.config, state)
        with Profile(run.workdir.profile, profiled, progress.step, run.config.training.steps) as profile:
            while True:
                try:
                    progress = train_from(state, progress, run, checkpoints, interruption, watchdog, profile)
                    break
                except Diverged as diverged:
                    watchdog.pause()
                    state, progress = roll_back(run, checkpoints, diverged)
    if progress.is_finished(run.config.training):
        coordination.on_process_zero(run.workdir.mark_complete, progress.step)
        metric, best = run.config.checkpoint.best_metric, progress.best_step
        logging.info("Done: %d steps; the best %s was at step %s.", progress.step, metric, best)
        return
    message = f"interrupted; step {progress.step} is saved: run the same command to resume"
    if not progress.step:
        message = "interrupted before the first step: run the same command to start again"
    if interruption.signal == signal.SIGINT:
        raise KeyboardInterrupt(message)
    logging.info("%s", message.capitalize())


def train_from(
    state: TrainState,
    progress: Progress,
    run: Run,
    checkpoints: Checkpoints,
    interruption: Interruption,
    watchdog: Watchdog,
    profile: Profile,
) -> Progress:
    """Trains until the run is finished or interrupted, and returns the progress in the last checkpoint.

    Raises Diverged if too many updates in a row were skipped.
    """
    config, training = run.config, run.config.training

    def between_batches() -> None:
        watchdog.beat()
        interruption.check()

    watchdog.pause()  # planning the epoch of a large corpus may take long
    with (
        Loader(run.corpus, config, progress.position, run.train_step.mesh, run.workdir.plans) as loader,
        coordination.on_process_zero(Recorder, run.workdir, progress) as recorder,
        TrainingStatus(progress.step, training.steps) as status,
        WarmUp(run.train_step, run.validation, run.initializer.abstract_state) as warm_up,
    ):
        log_batches(loader.plan, run.corpus)
        with status.doing("compiling"):
            start = functools.partial(warm_up.start, state.eval_parameters, loader.buckets)
            stop = progress.is_finished(training) or not start(interruption.requested, status.show_compiled)
        watchdog.beat()
        window, started = TrainingWindow(progress.window), time.perf_counter() - progress.seconds
        while not stop:
            if not progress.validation_due(training):  # else the run resumes with an interrupted validation
                with profile.step(progress.step + 1):
                    # The plan of the next epoch may take longer than a step may.
                    with TraceAnnotation("wait for data"), locks.progress_reported_to(watchdog.extend):
                        positions, batches, stats = zip(*itertools.islice(loader, training.accumulation), strict=True)
                    state, metrics = run.train_step(state, batches)
                profile.after_step(progress.step + 1, metrics)
                watchdog.beat()
                progress = progress.after_update(positions[-1], stats, time.perf_counter() - started)
                window.add(metrics, stats)
                status.advance()
                if due(progress.step, training.log_every, training.steps):
                    if int(state.skipped) >= training.max_skipped:
                        raise Diverged(state, progress, batches)
                    if values := window.summary(loader.data_wait_seconds):
                        recorder.write("train", progress, values)
                        status.show_scores(values["loss"], values["tokens_per_second"])
                        log_training(progress, values, status.time_left)
                        window = TrainingWindow({}, loader.data_wait_seconds)
            if warm_up.is_compiled():
                with window.pause():
                    warm_up.finish(state.eval_parameters)
            if progress.validation_due(training):
                with window.pause(), status.doing("validating"):
                    progress = validate(state, progress, run, recorder, status, warm_up, between_batches)
            # Once a step: a signal during the saving takes effect after the next step.
            stop = interruption.requested() or progress.is_finished(training)
            if stop or progress.is_best or due(progress.step, config.checkpoint.every, training.steps):
                with window.pause(), TraceAnnotation("saving"):
                    progress = dataclasses.replace(progress, window=window.totals(), skipped=int(state.skipped))
                    checkpoints.save(state, progress)
    return progress


def validate(
    state: TrainState,
    progress: Progress,
    run: Run,
    recorder: Recorder,
    status: TrainingStatus,
    warm_up: WarmUp,
    between_batches: Callable[[], None],
) -> Progress:
    """Validates, records the scores and returns the new progress.

    `between_batches` raises Interrupted if the run is to stop. Then the progress is returned unchanged.
    """
    metric = run.config.checkpoint.best_metric
    with contextlib.suppress(Interrupted):
        warm_up.wait(between_batches)
        values, samples = run.validation(state.eval_parameters, between_batches)
        if metric == "bleu" and values[metric] == progress.best_score == 0:
            # Once in a process: a run that resumes says it again.
            logging.log_first_n(logging.WARNING, ZERO_BLEU, 1, progress.step)
        progress = progress.after_validation(values, metric)
        recorder.write("valid", progress, values)
        recorder.write_samples(progress.step, samples)
        status.show_validation(values, samples)
        log_validation(progress, values)
    return progress


def main(arguments: argparse.Namespace) -> None:
    try:
        prepare_and_train(arguments)
    except cli.Terminated:  # before the loop, which handles signals itself, there is nothing to save
        logging.info("Terminated before the first step of this start: run the same command again.")


def prepare_and_train(arguments: argparse.Namespace) -> None:
    with distributed_run(arguments):
        given = read_config(arguments)
        with open_workdir(Path(arguments.workdir), given, arguments.extend, arguments.plan) as (workdir, config):
            if not arguments.plan:
                coordination.on_process_zero(logs.to_file, workdir.log)
            run = prepare(config, workdir)
            if arguments.plan:
                for line in describe(run):
                    coordination.on_process_zero(functools.partial(print, line, flush=True))
                return
            coordination.on_process_zero(continuation.record_start, workdir, config)
            if coordination.broadcast(workdir.is_complete(), config.data.wait_seconds):
                command = f"python -m transformer.train --workdir={shlex.quote(arguments.workdir)} --extend=STEPS"
                logging.info("This run is complete. To continue it until step STEPS: %s", command)
            else:
                train(run, arguments.profile)


def read_config(arguments: argparse.Namespace) -> Config:
    if arguments.extend is not None:
        return continuation.extended_config(arguments)
    if arguments.config is None:
        raise UserError("--config: is required, except with --extend (--help lists the flags)")
    return load_file(arguments.config, arguments.overrides)
