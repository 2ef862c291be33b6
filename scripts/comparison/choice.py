"""Which evaluations are compared: one of each workdir, or the one whose .json file is named."""

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_collections
from absl import logging

from scripts import evaluations
from scripts.evaluations import EVALUATION
from transformer import workdir as workdirs
from transformer.config import loading as configuration
from transformer.data.sources.lines import read_text_file
from transformer.errors import UserError

SPLIT = "valid"  # selection is by validation
KINDS = EVALUATION | {"sentences": int}


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one run, as `transformer.evaluate` saved it in `path`, a .json file."""

    path: Path
    workdir: Path
    config: ml_collections.FrozenConfigDict
    commit: str
    saved: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".json")

    @property
    def decoding(self) -> dict[str, Any]:
        return {**self.config.decoding, **self.saved["decoding"]}

    @property
    def how(self) -> str:
        """The settings that `transformer.evaluate` was given, the checkpoint apart."""
        return json.dumps([self.decoding, self.saved["averaged"]], sort_keys=True)

    @property
    def settings(self) -> dict[str, Any]:
        """All that makes a system what it is: its configuration but for seed and place, and how it was decoded."""
        decoding = {f"decoding.{key}": value for key, value in self.decoding.items()}
        how_many = {"averaged": self.saved["averaged"], "models": len(self.saved["models"])}
        return evaluations.run_settings(self.config) | decoding | how_many

    @cached_property
    def hypotheses(self) -> list[str]:
        return self._lines("hypotheses")

    @cached_property
    def references(self) -> list[str]:
        return self._lines("references")

    def _lines(self, kind: str) -> list[str]:
        # The saved path need not be right any more: workdirs are moved, and read from other folders.
        path = self.path.with_name(f"{self.name}.{kind}.txt")
        lines = read_text_file(path)
        if not lines or len(lines) != self.saved["sentences"]:
            raise UserError(
                f"{path}: has {len(lines)} lines, must have the {self.saved['sentences']} sentences of "
                f"{self.path.name}; run transformer.evaluate again"
            )
        return lines


def choose(arguments: argparse.Namespace) -> list[Evaluation]:
    """The evaluation to compare for each workdir or .json file that was given.

    Of the evaluations of a workdir that agree with the flags typed it is the only one; or else the one with settings
    that all workdirs have an evaluation with; or else the one that transformer.evaluate makes of these flags.

    Raises:
      UserError: something named is no workdir or evaluation, or not one evaluation of it is meant.
    """
    found = {name: _find(Path(name), arguments) for name in arguments.workdirs}
    in_folders = [{each.how for each in group} for name, group in found.items() if Path(name).is_dir()]
    common = set.intersection(*in_folders) if in_folders else set()
    return [_pick(name, found[name], common, arguments) for name in arguments.workdirs]


def _find(path: Path, arguments: argparse.Namespace) -> list[Evaluation]:
    """What may be meant by a workdir, or by an evaluation's own file."""
    if path.suffix == ".json" and not path.is_dir():
        (evaluation,) = _open(path.parent.parent, [path])
        if arguments.split not in (None, evaluation.saved["split"]) or not _agrees(evaluation, arguments):
            raise UserError(f"{path}: is not an evaluation with {_typed(arguments)}; leave out the flag or the file")
        return [evaluation]
    workdir, config = workdirs.open_existing(path)
    configuration.override(config, arguments.overrides, flag="--")  # the flags are possible
    split = arguments.split or SPLIT
    every = [each for each in _open(path, sorted(workdir.evaluations.glob("*.json"))) if each.saved["split"] == split]
    own = [each for each in every if len(each.saved["models"]) == 1]  # an ensemble is no evaluation of this run
    if agreeing := [each for each in own if _agrees(each, arguments)]:
        return agreeing
    flags = [f"--workdir={path}", f"--split={split}", *_evaluation_flags(arguments)]
    others = f" (it has {_names(own)})" if own else ""
    raise UserError(
        f"{path}: has no evaluation with {_typed(arguments)}{others}; "
        f"run {shlex.join(['python', '-m', 'transformer.evaluate', *flags])}"
    )


def _open(folder: Path, paths: Sequence[Path]) -> list[Evaluation]:
    saved = [evaluations.read(path, KINDS) for path in paths]
    workdir, config = workdirs.open_existing(folder)
    commit = evaluations.describe_commit(evaluations.read_environment(workdir))
    return [Evaluation(path, folder, config, commit, each) for path, each in zip(paths, saved, strict=True)]


def _agrees(evaluation: Evaluation, arguments: argparse.Namespace) -> bool:
    """Whether nothing that was typed says otherwise."""
    wanted = configuration.override(evaluation.config, arguments.overrides, flag="--").decoding
    keys = [key.removeprefix("decoding.") for key, _ in arguments.overrides]
    same = all(evaluation.decoding[key] == wanted[key] for key in keys)
    return same and arguments.average in (None, evaluation.saved["averaged"])


def _pick(name: str, found: list[Evaluation], common: set[str], arguments: argparse.Namespace) -> Evaluation:
    left = [each for each in found if each.how in common] or found
    if len(left) > 1:
        left = [each for each in left if _is_made_by(each, arguments)] or left
    if len(left) > 1:
        raise UserError(
            f"{name}: has {len(left)} evaluations with {_typed(arguments)}, {_names(left)}; choose by --average=N and "
            "--decoding.KEY=VALUE, or name the .json file of one instead"
        )
    if len(found) > 1:
        logging.info("%s: %s is compared, of %d evaluations.", name, left[0].name, len(found))
    return left[0]


def _is_made_by(evaluation: Evaluation, arguments: argparse.Namespace) -> bool:
    """Whether transformer.evaluate makes it if given these flags and no others."""
    wanted = configuration.override(evaluation.config, arguments.overrides, flag="--").decoding
    return evaluation.decoding == wanted.to_dict() and evaluation.saved["averaged"] == (arguments.average or 1)


def _evaluation_flags(arguments: argparse.Namespace) -> list[str]:
    average = [] if arguments.average is None else [f"--average={arguments.average}"]
    return [*average, *(f"--{key}={text}" for key, text in arguments.overrides)]


def _typed(arguments: argparse.Namespace) -> str:
    return " ".join([f"--split={arguments.split or SPLIT}", *_evaluation_flags(arguments)])


def _names(found: Sequence[Evaluation]) -> str:
    names = [each.name for each in found]
    return ", ".join(names[:4] + ([f"and {len(names) - 4} more"] if len(names) > 4 else []))
