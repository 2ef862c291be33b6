"""Trains a model: prepares data and tokenizer, trains, validates, checkpoints; run again, it goes on where it stopped.

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
from transformer.config import loading as configuration
from transformer.data.batches.loader import Loader
from transformer.distributed import coordination as distributed
from transformer.distributed.launch import add_flags, distributed_run
from transformer.progress_bar import bar
from transformer.run.plan import describe
from transformer.run.preparation import Run, prepare, workdir_of
from transformer.run.rollback import Diverged, roll_back
from transformer.run.signals import Interrupted, Interruption
from transformer.run.watchdog import Watchdog
from transformer.training.metrics import Recorder, TrainingWindow, log_batches, log_training, log_validation
from transformer.training.progress import Progress, due
from transformer.training.state import TrainState


def train(run: Run) -> None:
    """Trains until the configured step, or until validation has had no better score for `training.patience` times.

    Ends early, and saved, after SIGTERM: the workdir is then not marked complete.

    Raises:
      KeyboardInterrupt: after Ctrl-C, once the step under way is done and saved.
      UserError: training diverged, and going back did not help.
    """
    with (
        Watchdog(run.config.training.stall_seconds) as watchdog,
        Interruption() as interruption,
        Checkpoints(run.workdir, run.config) as checkpoints,
    ):
        state, progress = run.newest(checkpoints)
        if progress.step:
            logging.info("Going on from the checkpoint of step %d.", progress.step)
        while True:
            try:
                progress = train_from(state, progress, run, checkpoints, interruption, watchdog)
                break
            except Diverged as diverged:
                state, progress = roll_back(run, checkpoints, diverged)
    if not finished(progress, run.config.training):
        if progress.step:
            message = f"interrupted; step {progress.step} is saved: the same command goes on"
        else:
            message = "interrupted before the first step; the same command starts it again"
        if interruption.signal == signal.SIGINT:
            raise KeyboardInterrupt(message)
        logging.info("%s", message.capitalize())
        return
    distributed.on_process_zero(run.workdir.mark_complete, progress.step)
    metric, best = run.config.checkpoint.best_metric, progress.best_step
    logging.info("Done: %d steps; the best %s was at step %s.", progress.step, metric, best)


def train_from(
    state: TrainState,
    progress: Progress,
    run: Run,
    checkpoints: Checkpoints,
    interruption: Interruption,
    watchdog: Watchdog,
) -> Progress:
    """Updates, validations and checkpoints until the run is finished or interrupted: the progress that was saved last.

    Raises:
      Diverged: too many updates in a row had to be skipped.
    """
    config, training = run.config, run.config.training
    watchdog.pause()  # with subword sampling the loader encodes an epoch anew
    with (
        Loader(run.corpus, config, progress.position) as loader,
        distributed.on_process_zero(Recorder, run.workdir, progress) as recorder,
        bar("Training", training.steps) as advance,
    ):
        advance(progress.step)
        log_batches(loader.plan.uses, loader.plan.padding_fraction)
        stops = finished(progress, training) or not compile_ahead(run, state, loader, interruption)
        watchdog.beat()
        window, resumed_at = TrainingWindow(progress.window), time.perf_counter() - progress.seconds
        while not stops:
            if not validation_due(progress, training):  # one that was interrupted comes first
                parts = list(itertools.islice(loader, training.accumulation))
                batches = [arrays for _, arrays, _ in parts]
                if run.train_step.is_new(batches):
                    watchdog.pause()  # compiling may take its time
                state, metrics = run.train_step(state, batches)
                watchdog.beat()
                progress = after(progress, parts, time.perf_counter() - resumed_at)
                window.add(metrics, [stats for _, _, stats in parts])
                advance(1)
                if due(progress.step, training.log_every, training.steps):
                    if int(state.skipped) >= training.max_skipped:
                        raise Diverged(state, progress, batches)
                    if values := window.summary(loader.waited):
                        recorder.write("train", progress, values)
                        log_training(progress, values, training.steps)
                        window.restart(loader.waited)
            if validation_due(progress, training):
                with window.pause():
                    progress = validate(state, progress, run, recorder, lambda: (watchdog.beat(), interruption.check()))
            # Once: a signal that comes during the saving waits for the next step's.
            stops = interruption.requested() or finished(progress, training)
            if progress.is_best or stops or due(progress.step, config.checkpoint.every, training.steps):
                with window.pause():
                    progress = dataclasses.replace(progress, window=window.totals(), skipped=int(state.skipped))
                    checkpoints.save(state, progress)
    return progress


def compile_ahead(run: Run, state: TrainState, loader: Loader, interruption: Interruption) -> bool:
    """Makes ready what may take minutes, and as much memory as there will ever be. False if it is time to stop."""
    run.train_step.compile_largest(state, loader.buckets)
    if interruption.requested():
        return False
    run.validation.warm_up(state.eval_parameters)
    return not interruption.requested()


def validate(
    state: TrainState, progress: Progress, run: Run, recorder: Recorder, between: Callable[[], object]
) -> Progress:
    """Progress after a validation, which is recorded; as it was, and the validation still owed, if it is interrupted.

    `between` is called between batches, and raises Interrupted when it is time to stop.
    """
    metric = run.config.checkpoint.best_metric
    with contextlib.suppress(Interrupted):
        values = run.validation(state.eval_parameters, between)
        progress = progress.validated(values[metric], metric)
        recorder.write("valid", progress, values)
        log_validation(progress, values)
    return progress


def validation_due(progress: Progress, training) -> bool:
    return progress.validated_step < progress.step and due(progress.step, training.eval_every, training.steps)


def finished(progress: Progress, training) -> bool:
    waited_enough = 0 < training.patience <= progress.validations_since_best
    return (progress.step >= training.steps and not validation_due(progress, training)) or waited_enough


def after(progress: Progress, parts: list, seconds: float) -> Progress:
    """Progress after an update made from these parts, as the loader gave them."""
    position = parts[-1][0]
    return dataclasses.replace(
        progress,
        step=progress.step + 1,
        epoch=position.epoch,
        batch=position.batch,
        examples=progress.examples + sum(stats.sentences for _, _, stats in parts),
        tokens=progress.tokens + sum(stats.target_pieces for _, _, stats in parts),
        seconds=seconds,
    )


def main(arguments: argparse.Namespace) -> None:
    try:
        start(arguments)
    except cli.Terminated:  # the loop notes signals, and saves; before it there is nothing to save
        logging.info("Terminated before the first step: the same command goes on.")


def start(arguments: argparse.Namespace) -> None:
    with distributed_run(arguments):
        config = configuration.load_file(arguments.config, arguments.overrides)
        with workdir_of(Path(arguments.workdir), config) as workdir:
            distributed.on_process_zero(logs.to_file, workdir.log)
            run = prepare(config, workdir)
            if arguments.plan:
                for line in describe(run):
                    distributed.on_process_zero(functools.partial(print, line, flush=True))
            elif distributed.broadcast(workdir.is_complete(), config.data.wait_seconds):
                logging.info("This run is complete. Raise config.training.steps in a new workdir to train longer.")
            else:
                train(run)


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.train", __doc__, overrides="config")
    parser.add_argument("--config", required=True, metavar="FILE.py[:ARG]", help="what to train, and how")
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the whole record of the run; made if missing")
    parser.add_argument("--plan", action="store_true", help="print what would be done, with its costs, and stop")
    add_flags(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
