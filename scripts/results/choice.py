"""Choice of the evaluations to compare: one for each workdir, or the one whose .json file is given."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from scripts.results.evaluations import (
    Evaluation,
    evaluate_command,
    name_split,
    own_languages,
    read_evaluation,
    read_evaluations,
)
from transformer.checkpoints import restore
from transformer.config import loading
from transformer.evaluate import evaluate, make_parser
from transformer.support.errors import UserError
from transformer.workdir import open_existing


def choose(paths: Sequence[Path], arguments: argparse.Namespace) -> list[Evaluation]:
    """Returns one evaluation for each workdir or .json file in `paths`.

    For a workdir it is the only evaluation that agrees with the flags. If several agree, it is the
    one that transformer.evaluate makes with the same flags. `arguments.evaluate` makes those that
    are missing, at the end. Raises UserError if a path does not exist, or not exactly one
    evaluation of a workdir qualifies.
    """
    evaluations = [_find(path, arguments) for path in paths]
    for number, path in enumerate(paths):
        if evaluations[number] is None:
            made = evaluate(make_parser().parse([f"--workdir={path}", *_flags(arguments)]))
            made.save()
            evaluations[number] = read_evaluation(Path(f"{made.path}.json"))
    return evaluations


def _find(path: Path, arguments: argparse.Namespace) -> Evaluation | None:
    """Returns the evaluation of a workdir or file, or None if it is missing and to be made."""
    if path.suffix == ".json" and not path.is_dir():
        return read_evaluation(path)
    workdir, config = open_existing(path, "WORKDIR")
    wanted = loading.override(config, arguments.overrides).decoding.to_dict()
    keys = [key.removeprefix("decoding.") for key, _ in arguments.overrides]
    step = None if arguments.checkpoint is None else restore.choose_step(path, arguments.checkpoint)
    split = name_split(arguments.split, arguments.data)
    flags = _flags(arguments)
    evaluations = read_evaluations(workdir)
    agreeing = [
        evaluation
        for evaluation in evaluations
        if evaluation.split == split
        and step in (None, evaluation.result["step"])
        and arguments.average in (None, evaluation.average)
        and all(evaluation.decoding[key] == wanted[key] for key in keys)
    ]
    if not agreeing and arguments.evaluate:
        return None
    settings = wanted, arguments.average or 1, own_languages(config)
    own = [each for each in agreeing if (each.decoding, each.average, each.languages) == settings]
    for chosen in (agreeing, own):
        if len(chosen) == 1:
            return chosen[0]
    names = ", ".join(evaluation.path.stem for evaluation in agreeing or evaluations) or "none"
    if agreeing:
        raise UserError(
            f"{path}: has {len(agreeing)} evaluations with {shlex.join(flags)}, {names}; choose with "
            "--checkpoint=STEP, --average=N and --decoding.KEY=VALUE, or give the .json file of one instead"
        )
    raise UserError(
        f"{path}: has no evaluation with {shlex.join(flags)} (it has {names}); add --evaluate, or run "
        f"{evaluate_command(path, flags)}"
    )


def _flags(arguments: argparse.Namespace) -> list[str]:
    """Returns the flags of transformer.evaluate that make the evaluation, without the workdir."""
    given = {name: getattr(arguments, name) for name in ("split", "data", "checkpoint", "average")}
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return flags + [f"--{key}={text}" for key, text in arguments.overrides]


def check_comparable(evaluations: Sequence[Evaluation]) -> None:
    """Raises UserError if the evaluations have different references or signatures."""
    first = evaluations[0]
    for evaluation in evaluations:
        path = evaluation.path
        paths = f"{first.path} and {evaluation.path}"
        if isinstance(evaluation.result.get("references"), list):
            raise UserError(
                f"{path}: has several references, must have one; evaluate with one --reference=FILE"
            )
        if evaluation.references != first.references:
            raise UserError(f"{paths}: have different references, must have the same")
        if evaluation.signatures != first.signatures:
            raise UserError(f"{paths}: have different signatures; run transformer.evaluate again")
