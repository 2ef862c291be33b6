"""Trains a model: prepares data and tokenizer, trains, validates, saves checkpoints. Run again, it resumes.

python -m transformer.train --config=configs/X.py[:ARG] --workdir=DIR [--config.GROUP.KEY=VALUE ...] [--plan]
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path

from absl import logging

from transformer import cli, logs
from transformer.checkpoints.manager import Checkpoints
from transformer.config.loading import load_file
from transformer.data.batches.loader import Loader
from transformer.distributed import coordination
from transformer.distributed.launch import add_flags, distributed_run
from transformer.progress_bar import bar
from transformer.run.plan import describe
from transformer.run.preparation import Run, open_workdir, prepare
from transformer.run.record import Recorder, log_batches, log_training, log_validation
from transformer.run.rollback import Diverged, roll_back
from transformer.run.signals import Interrupted, Interruption
from transformer.run.watchdog import Watchdog
from transformer.training.metrics import TrainingWindow
from transformer.training.progress import Progress, due
from transformer.training.state import TrainState


def train(run: Run) -> None:
    """Trains to the last step, or until `training.patience` validations in a row have not improved the score.

    A signal ends it early: the run is saved and not marked complete. After Ctrl-C it raises KeyboardInterrupt. Raises
    UserError if training diverged and rolling back did not help.
    """
    with (
        Watchdog(run.config.training.stall_seconds) as watchdog,
        Interruption() as interruption,
        Checkpoints(run.workdir, run.config) as checkpoints,
    ):
        watchdog.pause()  # restoring may take long
        state, progress = run.restore_or_initialize(checkpoints)
        if progress.step:
            logging.info("Resuming from the checkpoint of step %d.", progress.step)
        while True:
            try:
                progress = train_from(state, progress, run, checkpoints, interruption, watchdog)
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
) -> Progress:
    """Trains until the run is finished or interrupted, and returns the progress in the last checkpoint.

    Raises Diverged if too many updates in a row were skipped.
    """
    config, training = run.config, run.config.training

    def between_batches() -> None:
        watchdog.beat()
        interruption.check()

    watchdog.pause()  # planning the first epoch may take long: subword sampling encodes the corpus
    with (
        Loader(run.corpus, config, progress.position) as loader,
        coordination.on_process_zero(Recorder, run.workdir, progress) as recorder,
        bar("Training", training.steps) as advance,
    ):
        advance(progress.step)
        log_batches(loader.plan)
        stop = progress.is_finished(training) or not warm_up(run, state, loader, interruption)
        watchdog.beat()
        window, started = TrainingWindow(progress.window), time.perf_counter() - progress.seconds
        while not stop:
            if not progress.validation_due(training):  # else the run resumes with an interrupted validation
                positions, batches, stats = zip(*itertools.islice(loader, training.accumulation), strict=True)
                if run.train_step.is_new(batches):
                    watchdog.pause()  # compiling may take long
                state, metrics = run.train_step(state, batches)
                watchdog.beat()
                progress = progress.after_update(positions[-1], stats, time.perf_counter() - started)
                window.add(metrics, stats)
                advance(1)
                if due(progress.step, training.log_every, training.steps):
                    if int(state.skipped) >= training.max_skipped:
                        raise Diverged(state, progress, batches)
                    if values := window.summary(loader.data_wait_seconds):
                        recorder.write("train", progress, values)
                        log_training(progress, values, training.steps)
                        window = TrainingWindow({}, loader.data_wait_seconds)
            if progress.validation_due(training):
                with window.pause():
                    progress = validate(state, progress, run, recorder, between_batches)
            # Once a step: a signal during the saving takes effect after the next step.
            stop = interruption.requested() or progress.is_finished(training)
            if stop or progress.is_best or due(progress.step, config.checkpoint.every, training.steps):
                with window.pause():
                    progress = dataclasses.replace(progress, window=window.totals(), skipped=int(state.skipped))
                    checkpoints.save(state, progress)
    return progress


def warm_up(run: Run, state: TrainState, loader: Loader, interruption: Interruption) -> bool:
    """Compiles and runs what needs most memory, so that it fails early. Returns False if the run is to stop."""
    run.train_step.compile_largest(state, loader.buckets)
    if interruption.requested():
        return False
    run.validation.warm_up(state.eval_parameters)
    return not interruption.requested()


def validate(
    state: TrainState, progress: Progress, run: Run, recorder: Recorder, between_batches: Callable[[], None]
) -> Progress:
    """Validates, records the scores and returns the new progress. It is unchanged if the validation is interrupted.

    `between_batches` raises Interrupted if the run is to stop.
    """
    metric = run.config.checkpoint.best_metric
    with contextlib.suppress(Interrupted):
        values = run.validation(state.eval_parameters, between_batches)
        progress = progress.after_validation(values[metric], metric)
        recorder.write("valid", progress, values)
        log_validation(progress, values)
    return progress


def main(arguments: argparse.Namespace) -> None:
    try:
        prepare_and_train(arguments)
    except cli.Terminated:  # before the loop, which handles signals itself, there is nothing to save
        logging.info("Terminated before the first step: run the same command to start again.")


def prepare_and_train(arguments: argparse.Namespace) -> None:
    with distributed_run(arguments):
        config = load_file(arguments.config, arguments.overrides)
        with open_workdir(Path(arguments.workdir), config) as workdir:
            coordination.on_process_zero(logs.to_file, workdir.log)
            run = prepare(config, workdir)
            if arguments.plan:
                for line in describe(run):
                    coordination.on_process_zero(functools.partial(print, line, flush=True))
            elif coordination.broadcast(workdir.is_complete(), config.data.wait_seconds):
                logging.info("This run is complete. Raise config.training.steps in a new workdir to train longer.")
            else:
                train(run)


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.train", __doc__, overrides="config")
    parser.add_argument("--config", required=True, metavar="FILE.py[:ARG]", help="the configuration")
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the folder of the run; created if missing")
    parser.add_argument("--plan", action="store_true", help="print what the run would do and cost, and stop")
    add_flags(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
