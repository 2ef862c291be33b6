"""Adds the scores of other programs to evaluations: the flags --scores and --scorer."""

import argparse
import itertools
from collections.abc import Sequence

from scripts.results import sentence_scores
from scripts.results.evaluations import Evaluation, read_evaluation
from scripts.results.sentence_scores import ENDING, NamedFlag, SentenceScores
from transformer.support.errors import UserError


def attach(evaluations: Sequence[Evaluation], arguments: argparse.Namespace) -> list[Evaluation]:
    """Stores the scores of both flags beside the evaluations, and returns these with their scores.

    A command runs once, for the evaluations that do not have its scores.
    """
    given = sentence_scores.parse_flags("scores", getattr(arguments, "scores", ()))
    scorers = sentence_scores.parse_flags("scorer", arguments.scorer)
    if not given and not scorers:
        return list(evaluations)
    for flag, evaluation in itertools.product([*given, *scorers], evaluations):
        # A metric has its signature beside it, and other fields have none.
        if flag.name in evaluation.result and f"{flag.name}_signature" not in evaluation.result:
            raise UserError(f"{flag.name}: is a field of evaluations; choose another name")
    for flag in given:
        for evaluation, scores in zip(evaluations, _read(flag, evaluations), strict=True):
            _store(evaluation, flag, scores)
    for flag in scorers:
        missing = [evaluation for evaluation in evaluations if not _has_scores(evaluation, flag)]
        texts = [evaluation.texts for evaluation in missing]
        scored = sentence_scores.score_with_command(flag, texts) if missing else []
        for evaluation, scores in zip(missing, scored, strict=True):
            _store(evaluation, flag, scores)
    return [read_evaluation(evaluation.path) for evaluation in evaluations]


def _read(flag: NamedFlag, evaluations: Sequence[Evaluation]) -> list[SentenceScores]:
    paths = flag.value.split(",")
    if len(paths) != len(evaluations):
        names = ", ".join(evaluation.path.stem for evaluation in evaluations)
        raise UserError(
            f"--scores={flag.name}:{flag.value}: has {len(paths)} files, must have one for each of "
            f"the {len(evaluations)} evaluations, in this order: {names}"
        )
    return [
        sentence_scores.read_given(flag, path.strip(), evaluation.texts)
        for path, evaluation in zip(paths, evaluations, strict=True)
    ]


def _has_scores(evaluation: Evaluation, flag: NamedFlag) -> bool:
    scores = evaluation.sentence_scores.get(flag.name)
    wanted = (flag.is_lower_better, flag.value)
    return scores is not None and (scores.is_lower_better, scores.signature) == wanted


def _store(evaluation: Evaluation, flag: NamedFlag, scores: SentenceScores) -> None:
    path = evaluation.path
    sentence_scores.write(path.with_name(f"{path.stem}.{ENDING}"), {flag.name: scores})
