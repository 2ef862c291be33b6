"""Writes the mean of a run's last checkpoints as the checkpoint of a new workdir.

python -m scripts.average --workdir=DIR [--average=N] [--checkpoint=best|last|STEP] [--output=DIR]

All commands take the new workdir (`transformer.evaluate --workdir=DIR-average5`), and so does `training.init_from`. It
has the configuration, vocabularies and record of the run, and one checkpoint: the parameters that the run has with
`--average=N`, without an optimizer. The run itself is only read, so it resumes and keeps its checkpoints as before.
"""

import argparse
import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from absl import logging

from transformer import cli, files, fingerprints
from transformer.files import check_new, new_folder
from transformer.workdir import Workdir, open_existing

if TYPE_CHECKING:
    from transformer.checkpoints.trained import Trained


def main(arguments: argparse.Namespace) -> None:
    from transformer.checkpoints import trained

    source, config = open_existing(Path(arguments.workdir))
    last = config.checkpoint.keep if arguments.average is None else arguments.average
    output = Path(arguments.output or f"{source.path}-average{last}")
    check_new(output)  # before the checkpoints are read, which takes longer
    models = trained.load([str(source.path)], arguments.checkpoint, last, [])
    with new_folder(output) as unfinished:
        write_workdir(unfinished, models)
    steps = ", ".join(map(str, models.checkpoints[0].averaged))
    logging.info("%s: the mean of the checkpoints %s of %s.", output, steps, source.path)
    print(output)


def write_workdir(path: Path, models: "Trained") -> None:
    """Writes the files that describe the run, and one checkpoint with the first model's parameters, into a folder."""
    import jax

    from transformer.checkpoints.manager import Checkpoints
    from transformer.checkpoints.restore import read_progress
    from transformer.training.state import TrainState

    source, workdir = models.workdir, Workdir(path)
    described = (source.config, source.environment, source.data, source.metrics, source.parent, source.events)
    vocabularies = source.path.glob("tokenizer*.model")
    others = source.complete, source.shortlist, source.path / fingerprints.FILE_NAME
    for file in (*described, *others, *vocabularies):
        if file.exists():
            shutil.copy2(file, path)
    checkpoint = models.checkpoints[0]
    # Without a best step, --checkpoint=best takes the only checkpoint there is.
    recorded = read_progress(source.checkpoints / str(checkpoint.step))
    progress = dataclasses.replace(recorded, best_step=None, best_score=None, best_loss=None)
    step, skipped = (jax.numpy.int32(value) for value in (progress.step, progress.skipped))
    with Checkpoints(workdir, models.config) as checkpoints:
        checkpoints.save(TrainState(step, skipped, models.parameters[0], None, None), progress)
    files.write_json(workdir.averaged, {"workdir": str(source.path.resolve()), "steps": checkpoint.averaged})


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.average", __doc__)
    parser.add_argument("--workdir", required=True, metavar="DIR", help="workdir of the run")
    parser.add_argument("--average", type=int, metavar="N", help="number of checkpoints (checkpoint.keep of the run)")
    parser.add_argument("--checkpoint", default="last", metavar="best|last|STEP", help="the last of them (last)")
    parser.add_argument("--output", metavar="DIR", help="the new workdir (DIR-averageN beside the run)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
