"""Choice of the evaluations to compare: one for each workdir or .json file on the command line."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from scripts.results.evaluations import (
    Evaluation,
    config_languages,
    evaluate_command,
    name_split,
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
    one that transformer.evaluate makes with the same flags. With `arguments.evaluate`, missing
    evaluations are made after all paths have been checked.

    Raises UserError if a path does not exist, or if no evaluation or several qualify.
    """
    # Mistakes in any path appear before the first evaluation is made, which takes long.
    evaluations = [_choose_existing(path, arguments) for path in paths]
    for i, path in enumerate(paths):
        if evaluations[i] is None:
            flags = [f"--workdir={path}", *_flags(arguments)]
            new = evaluate(make_parser().parse(flags))
            new.save()
            evaluations[i] = read_evaluation(Path(f"{new.path}.json"))
    return evaluations


def _choose_existing(path: Path, arguments: argparse.Namespace) -> Evaluation | None:
    """Returns the evaluation of a workdir or file; None if it is missing and to be made."""
    # A file is chosen by its name, whatever the flags.
    if path.suffix == ".json" and not path.is_dir():
        return read_evaluation(path)
    workdir, config = open_existing(path, "WORKDIR")

    # The values of the flags. An evaluation must agree only with given flags.
    decoding = loading.override(config, arguments.overrides).decoding.to_dict()
    keys = [key.removeprefix("decoding.") for key, _ in arguments.overrides]
    step = None if arguments.checkpoint is None else restore.choose_step(path, arguments.checkpoint)
    split = name_split(arguments.split, arguments.data)
    evaluations = read_evaluations(workdir)

    agreeing = [
        evaluation
        for evaluation in evaluations
        if evaluation.split == split
        and step in (None, evaluation.result["step"])
        and arguments.average in (None, evaluation.average)
        and all(evaluation.decoding[key] == decoding[key] for key in keys)
    ]
    if not agreeing and arguments.evaluate:
        return None

    # The evaluations that transformer.evaluate makes with the same flags. Without a flag, the value
    # of the run counts.
    average = arguments.average or 1
    languages = config_languages(config)
    by_same_flags = [
        evaluation
        for evaluation in agreeing
        if evaluation.decoding == decoding
        and evaluation.average == average
        and evaluation.languages == languages
    ]

    # The only evaluation that agrees, or else the only one made by the same flags.
    for candidates in (agreeing, by_same_flags):
        if len(candidates) == 1:
            return candidates[0]

    flags = _flags(arguments)
    names = ", ".join(evaluation.path.stem for evaluation in agreeing or evaluations) or "none"
    if agreeing:
        raise UserError(
            f"{path}: has {len(agreeing)} evaluations with {shlex.join(flags)}, {names}; choose "
            "with --checkpoint=STEP, --average=N and --decoding.KEY=VALUE, or give the .json file "
            "of one instead"
        )
    raise UserError(
        f"{path}: has no evaluation with {shlex.join(flags)} (it has {names}); add --evaluate, "
        f"or run {evaluate_command(path, flags)}"
    )


def _flags(arguments: argparse.Namespace) -> list[str]:
    """Returns the flags of transformer.evaluate that make the evaluation, without the workdir."""
    flags = []
    for name in ("split", "data", "checkpoint", "average"):
        value = getattr(arguments, name)
        if value is not None:
            flags.append(f"--{name}={value}")
    return flags + [f"--{key}={text}" for key, text in arguments.overrides]


def check_comparable(evaluations: Sequence[Evaluation]) -> None:
    """Raises UserError if the evaluations have different references or signatures."""
    first = evaluations[0]
    for evaluation in evaluations:
        path = evaluation.path
        paths = f"{first.path} and {path}"
        if isinstance(evaluation.result.get("references"), list):
            raise UserError(
                f"{path}: has several references, must have one; evaluate with one --reference=FILE"
            )
        if evaluation.references != first.references:
            raise UserError(f"{paths}: have different references, must have the same")
        # Only some evaluations may have the scores of other programs.
        signatures = evaluation.signatures
        for name in first.signatures.keys() & signatures.keys():
            if signatures[name] != first.signatures[name]:
                raise UserError(
                    f"{paths}: have different signatures of {name}; run transformer.evaluate "
                    "again, or give the same --scorer or --scores"
                )
