"""What is said about systems: one JSON object, from which the text is written too."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric

from scripts.comparison import scoring, significance
from scripts.comparison.choice import Evaluation
from scripts.comparison.scoring import Scored
from scripts.comparison.significance import Estimate
from scripts.comparison.systems import System
from scripts.evaluations import SCORES
from transformer.decoding.bleu import Scores


def make_result(
    systems: Sequence[System], references: Sequence[str], language: str | None, samples: int, sentences: int
) -> dict[str, Any]:
    """Everything about the systems, the first of which the others are compared with.

    Args:
      references: of each sentence.
      language: as in `bleu.score`.
      samples: resamples of the bootstrap.
      sentences: how many of those that differ most to show of each comparison.

    Returns:
      split, sentences: what was translated (None: a file), and how many sentences it has.
      settings: for each key in which the systems differ, every system's value by its label.
      systems: label and name of each, its runs (workdir, evaluation, seed, step, averaged, commit, scores), and for
        each score the mean over seeds, the spread (their sample standard deviation; None: there is one) and, but for
        bleu_lowercase_tokenized, the interval of 95 %.
      differences: of each other system from the first: system, baseline; for bleu and chrf the difference, its interval
        of 95 % and its p-value; sentences: those whose chrF differs most, with line (from 1), reference, difference,
        and by label the chrf, mean over seeds, and the hypotheses of the runs.
      bleu_by_length: the number of sentences with references of shortest to longest tokens, and by label their bleu.
      signatures: of each score; those of bleu and chrf name the resamples and their seed.
    """
    metrics = scoring.make_metrics(language)
    scored = [scoring.score(system, references, language, metrics) for system in systems]
    drawn = significance.draw_sentences(len(references), samples)
    estimates = {name: _estimate(name, metric, scored, drawn) for name, metric in metrics.items()}
    bins = scoring.bleu_by_length(metrics["bleu"], scored)
    differences = []
    for number, other in enumerate(scored[1:], 1):
        found = {name: asdict(significance.compare(each[0], each[number])) for name, each in estimates.items()}
        shown = _sentences(scored[0], other, metrics["chrf"], references, sentences)
        labels = {"system": other.system.label, "baseline": systems[0].label}
        differences.append({**labels, **found, "sentences": shown})
    return {
        "split": systems[0].evaluations[0].saved["split"],
        "sentences": len(references),
        "settings": {key: {each.label: each.differences[key] for each in systems} for key in systems[0].differences},
        "systems": [_system(each, number, estimates) for number, each in enumerate(scored)],
        "differences": differences,
        "bleu_by_length": [asdict(each) | {"bleu": _by_label(systems, each.bleu)} for each in bins],
        "signatures": _signatures(scored[0].scores[0], metrics, samples),
    }


def _estimate(name: str, metric: Metric, scored: Sequence[Scored], drawn: np.ndarray) -> list[Estimate]:
    resampled = [
        np.array([significance.resample(metric, seed, drawn) for seed in each.statistics[name]]) for each in scored
    ]
    return [
        significance.estimate(each.of_seeds(name), found, number)
        for number, (each, found) in enumerate(zip(scored, resampled, strict=True))
    ]


def _system(scored: Scored, number: int, estimates: dict[str, list[Estimate]]) -> dict[str, Any]:
    runs = [_run(*each) for each in zip(scored.system.evaluations, scored.scores, strict=True)]
    found: dict[str, Any] = {"label": scored.system.label, "name": scored.system.name, "runs": runs}
    for name in SCORES:
        scores = scored.of_seeds(name).tolist()
        spread = statistics.stdev(scores) if len(scores) > 1 else None
        found[name] = {"mean": statistics.mean(scores), "spread": spread}
    for name, each in estimates.items():
        found[name]["interval"] = each[number].interval
    return found


def _run(evaluation: Evaluation, scores: Scores) -> dict[str, Any]:
    return {
        "workdir": str(evaluation.workdir),
        "evaluation": evaluation.name,
        "seed": evaluation.config.seed,
        "step": evaluation.saved["step"],
        "averaged": evaluation.saved["averaged"],
        "commit": evaluation.commit,
        **{name: getattr(scores, name) for name in SCORES},
    }


def _sentences(first: Scored, other: Scored, chrf: Metric, references: Sequence[str], count: int) -> list[dict]:
    pair = (first, other)
    scores = [scoring.score_sentences(chrf, each.statistics["chrf"]) for each in pair]
    systems = [each.system for each in pair]
    return [
        {
            "line": number + 1,
            "reference": references[number],
            "difference": float(scores[1][number] - scores[0][number]),
            "chrf": _by_label(systems, [float(each[number]) for each in scores]),
            "hypotheses": _by_label(
                systems, [[run.hypotheses[number] for run in system.evaluations] for system in systems]
            ),
        }
        for number in scoring.most_different(*scores, count)
    ]


def _by_label(systems: Sequence[System], values: Sequence[Any]) -> dict[str, Any]:
    return {system.label: value for system, value in zip(systems, values, strict=True)}


def _signatures(scores: Scores, metrics: dict[str, Metric], samples: int) -> dict[str, str]:
    signatures = {name: getattr(scores, f"{name}_signature") for name in SCORES}
    for name, metric in metrics.items():
        signature = metric.get_signature()
        signature.update("seed", str(significance.SEED))
        signature.update("bs", samples)
        signatures[name] = str(signature)
    return signatures
