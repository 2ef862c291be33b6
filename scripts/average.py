"""Writes the mean of a run's last checkpoints as the checkpoint of a new workdir.

    python -m scripts.average --workdir=DIR [--average=N] [--checkpoint=best|last|STEP]
        [--output=DIR]

All commands take the new workdir (`transformer.evaluate --workdir=DIR-average5`), and so does
`training.init_from`. It has the configuration, vocabularies and record of the run. Its checkpoint
has the parameters of the run with `--average=N`, without an optimizer. The run itself does not
change: it resumes and keeps its checkpoints as before.
"""

import argparse
import dataclasses
import shutil
from pathlib import Path

from absl import logging

from transformer.config import cli
from transformer.support import files
from transformer.workdir import Workdir, open_existing


def main(arguments: argparse.Namespace) -> None:
    import jax.numpy as jnp

    from transformer.checkpoints import loaded_models
    from transformer.checkpoints.manager import Checkpoints
    from transformer.checkpoints.restore import read_progress
    from transformer.training.state import TrainState

    source, config = open_existing(Path(arguments.workdir))
    count = config.checkpoint.keep if arguments.average is None else arguments.average
    output = Path(arguments.output or f"{source.path}-average{count}")
    # A wrong flag is an error before the checkpoints are read.
    files.check_new(output)
    models = loaded_models.load([str(source.path)], arguments.checkpoint, count, [])
    checkpoint = models.checkpoints[0]
    # Without a best step, --checkpoint=best takes the only checkpoint there is.
    recorded = read_progress(source.checkpoints / str(checkpoint.step))
    progress = dataclasses.replace(recorded, best_step=None, best_score=None, best_loss=None)
    # Commands that resume a run need an optimizer state, commands that load a model do not.
    step = jnp.int32(progress.step)
    skipped = jnp.int32(progress.skipped)
    state = TrainState(step, skipped, models.parameters[0], None, None)

    # The new workdir has all files of the run but its logs and checkpoints.
    with files.new_folder(output) as folder:
        for file in source.output_paths:
            if file.is_file() and file not in (source.log, source.trackers):
                shutil.copy2(file, folder)
        workdir = Workdir(folder)
        with Checkpoints(workdir, models.config) as checkpoints:
            checkpoints.save(state, progress)
        origin = {"workdir": str(source.path.resolve()), "steps": checkpoint.averaged}
        files.write_json(workdir.averaged, origin)
    steps = ", ".join(map(str, checkpoint.averaged))
    logging.info("%s: the mean of the checkpoints %s of %s.", output, steps, source.path)
    print(output)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.average", __doc__)
    parser.add_argument("--workdir", required=True, help="workdir of the run")
    parser.add_number("--average", None, "number of checkpoints (checkpoint.keep of the run)")
    parser.add_argument(
        "--checkpoint", default="last", metavar="best|last|STEP", help="the last of them (last)"
    )
    parser.add_argument("--output", help="the new workdir (DIR-averageN beside the run)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
