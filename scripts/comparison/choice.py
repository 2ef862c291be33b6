"""Choice of the evaluations to compare: one for each workdir, or the one whose .json file is given."""

import argparse
import shlex
from pathlib import Path

from scripts.evaluations import Evaluation, read_evaluation, read_evaluations
from transformer.config import loading
from transformer.errors import UserError
from transformer.workdir import open_existing

SPLIT = "valid"  # the default: test data are not for choosing among systems


def choose(arguments: argparse.Namespace) -> list[Evaluation]:
    """Returns one evaluation for each workdir or .json file in `arguments.workdirs`.

    For a workdir it is the only evaluation that agrees with the flags. If several agree, it is the one that
    transformer.evaluate makes with the same flags.

    Raises:
      UserError: a workdir or file does not exist, or not exactly one evaluation of a workdir qualifies.
    """
    return [_choose_one(Path(name), arguments) for name in arguments.workdirs]


def _choose_one(path: Path, arguments: argparse.Namespace) -> Evaluation:
    if path.suffix == ".json" and not path.is_dir():
        evaluation = read_evaluation(path)
        if not _agrees(evaluation, arguments, arguments.split or evaluation.result["split"]):
            raise UserError(f"{path}: was not made with {_flags(arguments)}; leave out the flags or the file")
        return evaluation
    workdir, config = open_existing(path)
    loading.override(config, arguments.overrides, flag="--")  # reports bad flags even if there is no evaluation
    own = read_evaluations(workdir)
    agreeing = [each for each in own if _agrees(each, arguments, arguments.split or SPLIT)]
    if not agreeing:
        others = f" (it has {', '.join(each.name for each in own)})" if own else ""
        command = f"python -m transformer.evaluate {shlex.quote(f'--workdir={path}')} {_flags(arguments)}"
        raise UserError(f"{path}: has no evaluation with {_flags(arguments)}{others}; run {command}")
    chosen = [each for each in agreeing if _is_made_by(each, arguments)] if len(agreeing) > 1 else agreeing
    if len(chosen) != 1:
        names = ", ".join(each.name for each in agreeing)
        raise UserError(
            f"{path}: has {len(agreeing)} evaluations with {_flags(arguments)}, {names}; choose with "
            "--average=N and --decoding.KEY=VALUE, or give the .json file of one instead"
        )
    return chosen[0]


def _agrees(evaluation: Evaluation, arguments: argparse.Namespace, split: str) -> bool:
    """Returns whether the evaluation is of the split and agrees with all flags that are given."""
    wanted = loading.override(evaluation.config, arguments.overrides, flag="--").decoding
    keys = [key.removeprefix("decoding.") for key, _ in arguments.overrides]
    same = all(evaluation.decoding.get(key) == wanted[key] for key in keys)
    result = evaluation.result
    return same and result["split"] == split and arguments.average in (None, result["averaged"])


def _is_made_by(evaluation: Evaluation, arguments: argparse.Namespace) -> bool:
    """Returns whether transformer.evaluate makes an evaluation with these settings when run with these flags."""
    wanted = loading.override(evaluation.config, arguments.overrides, flag="--").decoding
    return evaluation.decoding == wanted.to_dict() and evaluation.result["averaged"] == (arguments.average or 1)


def _flags(arguments: argparse.Namespace) -> str:
    average = [] if arguments.average is None else [f"--average={arguments.average}"]
    overrides = [f"--{key}={text}" for key, text in arguments.overrides]
    return shlex.join([f"--split={arguments.split or SPLIT}", *average, *overrides])
