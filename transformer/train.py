"""Trains a model: prepares data and tokenizer, trains, validates, checkpoints; run again, it goes on where it stopped.

python -m transformer.train --config=configs/X.py[:ARG] --workdir=DIR [--config.GROUP.KEY=VALUE ...] [--plan]
"""

import argparse
import dataclasses
import functools
import itertools
import math
import time
from pathlib import Path

from absl import logging

from transformer import command, distributed
from transformer import config as configuration
from transformer.data.loader import Loader
from transformer.data.progress import bar
from transformer.errors import UserError
from transformer.joining import add_flags, joined
from transformer.training.checkpoint import Checkpoints
from transformer.training.interruption import Interruption
from transformer.training.metrics import Record, Recorder, TrainingWindow, log_batches, log_training, log_validation
from transformer.training.plan import describe
from transformer.training.progress import Progress
from transformer.training.run import Run, open_workdir, prepare


def train(run: Run) -> None:
    """Trains until the configured step, or until validation has had no better score for `training.patience` times.

    Raises:
      KeyboardInterrupt: after Ctrl-C or SIGTERM, once the step under way is done and saved.
    """
    config, training = run.config, run.config.training
    with Checkpoints(run.workdir, config.checkpoint) as checkpoints:
        state, progress = checkpoints.restore(run.abstract_state) or (run.initial_state(), Progress())
        distributed.require_same("the checkpoint", {"the newest step": progress.step}, config.data.wait_seconds)
        if progress.step:
            logging.info("Going on from the checkpoint of step %d.", progress.step)
        with (
            Loader(run.corpus, config, progress.position) as loader,
            distributed.in_first(Recorder, run.workdir, progress.step) as recorder,
            Interruption() as interruption,
            bar("Training", training.steps) as advance,
        ):
            advance(progress.step)
            log_batches(loader.plan.uses, loader.plan.padding_fraction)
            run.train_step.compile_largest(state, loader.buckets)
            run.validation.rehearse(state.evaluated)
            agreed = distributed.Agreement()
            window, resumed_at = TrainingWindow(progress.window), time.perf_counter() - progress.seconds
            while not finished(progress, training):
                parts = list(itertools.islice(loader, training.accumulation))
                state, metrics = run.train_step(state, [arrays for _, arrays, _ in parts])
                progress = after(progress, parts, time.perf_counter() - resumed_at)
                window.add(metrics, [stats for _, _, stats in parts])
                advance(1)
                if due(progress.step, training.log_every, training.steps):
                    values = window.summary(loader.waited)
                    check_finite(progress, values)
                    recorder.write("train", progress, values)
                    log_training(progress, values, training.steps)
                    window.restart(loader.waited)
                if due(progress.step, training.eval_every, training.steps):
                    with window.pause():
                        values = run.validation(state.evaluated)
                    progress = progress.validated(values[config.checkpoint.best_metric], config.checkpoint.best_metric)
                    recorder.write("valid", progress, values)
                    log_validation(progress, values)
                # Once: a signal that comes during the saving waits for the next step's.
                asked = agreed(interruption.asked)
                stops = asked or finished(progress, training)
                if progress.is_best or stops or due(progress.step, config.checkpoint.every, training.steps):
                    with window.pause():
                        progress = dataclasses.replace(progress, window=window.totals())
                        checkpoints.save(state, progress)
                if asked:
                    raise KeyboardInterrupt(f"interrupted; step {progress.step} is saved: the same command goes on")
    distributed.in_first(run.workdir.mark_complete, progress.step)
    logging.info(
        "Done: %d steps; the best %s was at step %s.", progress.step, config.checkpoint.best_metric, progress.best_step
    )


def check_finite(progress: Progress, values: Record) -> None:
    """Raises UserError if training has diverged: nothing that follows would be worth keeping."""
    if not math.isfinite(values["loss"] + values["gradient_norm"]):
        raise UserError(
            f"step {progress.step}: loss {values['loss']}, gradient norm {values['gradient_norm']}: training diverged; "
            "lower optimizer.learning_rate, raise optimizer.warmup_steps or set optimizer.clip_norm, in a new workdir"
        )


def due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last


def finished(progress: Progress, training) -> bool:
    waited_enough = 0 < training.patience <= progress.validations_since_best
    return progress.step >= training.steps or waited_enough


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
    with joined(arguments):
        config = configuration.load_file(arguments.config, arguments.overrides)
        workdir = open_workdir(Path(arguments.workdir), config)
        distributed.in_first(command.log_to, workdir.log)
        run = prepare(config, workdir)
        if arguments.plan:
            for line in describe(run):
                distributed.in_first(functools.partial(print, line, flush=True))
        elif distributed.from_first(workdir.is_complete(), config.data.wait_seconds):
            logging.info("This run is complete. Raise config.training.steps in a new workdir to train longer.")
        else:
            train(run)


def make_parser() -> command.Parser:
    parser = command.Parser("transformer.train", __doc__, overrides="config")
    parser.add_argument("--config", required=True, metavar="FILE.py[:ARG]", help="what to train, and how")
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the whole record of the run; made if missing")
    parser.add_argument("--plan", action="store_true", help="print what would be done, with its costs, and stop")
    add_flags(parser)
    return parser


if __name__ == "__main__":
    command.run(make_parser(), main)
