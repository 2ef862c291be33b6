"""The result of a comparison, a JSON object."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

from scripts.results import significance
from scripts.results.evaluation_files import Json
from scripts.results.evaluations import Evaluation
from scripts.results.runs import describe_note
from scripts.results.significance import SeedScores
from scripts.results.sufficient_statistics import (
    GIVEN_SCORES,
    REFERENCE_LENGTH,
    AdditiveMetric,
    additive_metrics,
    given_statistics,
)
from scripts.results.systems import System
from transformer.decoding.metrics import metrics_in

MAX_BINS = 6  # of sentence lengths
MIN_BIN_SENTENCES = 30  # on average; BLEU of fewer sentences is unreliable


class ScoredSystem(NamedTuple):
    """A system with its scores.

    Attributes:
      bleu: the sufficient statistics of BLEU.
      chrf: the chrF of each sentence, the mean over seeds.
      scores: the corpus scores by metric.
    """

    system: System
    bleu: Num[np.ndarray, "seeds sentences numbers"]
    chrf: Float[np.ndarray, " sentences"]
    scores: dict[str, SeedScores]


def make_result(
    systems: Sequence[System], references: Sequence[str], samples: int, sentences: int
) -> Json:
    """Compares every system with the first, by `samples` bootstrap resamples.

    Returns:
      split, text, sentences: the split (None: another text), the name of the text, and its number
        of sentences.
      settings: for each setting that differs between systems, its value in each system, by label.
      systems: the label; the runs; the keys of config.decoding; and for each metric the mean over
        seeds, the spread (sample standard deviation; None for one seed) and, if differences are
        tested, the 95 % interval.
      differences: for each other system: system and baseline, their labels; for bleu, chrf and
        means over sentences the difference, its 95 % interval and its p-value; `method`, how both
        are computed and what they leave out; and the `sentences` with the largest differences in
        chrF. Their line numbers start at 1, their chrF is the mean over seeds, and they have one
        hypothesis for each seed.
      worst: with a single system, the `sentences` of the lowest chrF, the mean over seeds; and by
        seed the hypothesis, its model score and its length in characters.
      bleu_by_length: for each range of reference lengths in tokens, the number of sentences and the
        mean BLEU over seeds, by label.
      signatures: by metric. For bleu and chrf they include the number of resamples and their seed.
    """
    first = systems[0]
    evaluation = first.evaluations[0]

    results = [evaluation.result for system in systems for evaluation in system.evaluations]
    # Older evaluations have fewer metrics.
    names = [name for name in metrics_in("comparison") if all(name in result for result in results)]
    metrics = additive_metrics(evaluation.language, names)
    # The metrics of other programs that all evaluations have.
    others = [[*one.sentence_scores] for system in systems for one in system.evaluations]
    for name in others[0]:
        if all(name in one for one in others):
            names.append(name)
            metrics[name] = GIVEN_SCORES

    # All systems are scored on the same resamples.
    count = len(references)
    resamples = np.random.default_rng(significance.SEED).choice(count, (samples, count))
    scored_systems = [_score(system, references, metrics, resamples) for system in systems]
    baseline = scored_systems[0]

    # Signatures with the resamples, as `sacrebleu --paired-bs` writes them.
    signatures = evaluation.signatures
    for name in signatures.keys() & metrics:
        signatures[name] = signatures[name].replace(
            "nrefs:1|", f"nrefs:1|bs:{samples}|seed:{significance.SEED}|"
        )
    return {
        "split": evaluation.result["split"],
        "text": evaluation.text,
        "sentences": count,
        "settings": {
            key: {system.label: system.differences[key] for system in systems}
            for key in first.differences
        },
        "systems": [_describe_system(scored, names) for scored in scored_systems],
        "differences": [
            _compare(baseline, scored, references, sentences) for scored in scored_systems[1:]
        ],
        "worst": _worst(baseline, references, sentences) if len(systems) == 1 else [],
        "bleu_by_length": _bleu_by_length(metrics["bleu"], scored_systems),
        "signatures": signatures,
    }


def _score(
    system: System,
    references: Sequence[str],
    metrics: dict[str, AdditiveMetric],
    resamples: Int[np.ndarray, "samples sentences"],
) -> ScoredSystem:
    # The statistics are computed once, and their sums are scored for each resample.
    sufficient = {}
    scores = {}
    for name, metric in metrics.items():
        sufficient[name] = np.array(
            [_statistics(name, metric, run, references) for run in system.evaluations]
        )  # (seeds, sentences, numbers)
        resampled = [significance.resample(metric, run, resamples) for run in sufficient[name]]
        seeds = np.array([run.result[name] for run in system.evaluations])
        scores[name] = SeedScores(seeds, np.array(resampled))

    # The chrF of each sentence, averaged over seeds.
    chrf = metrics["chrf"].score(sufficient["chrf"]).mean(0)
    return ScoredSystem(system, sufficient["bleu"], chrf, scores)


def _statistics(
    name: str, metric: AdditiveMetric, run: Evaluation, references: Sequence[str]
) -> Num[np.ndarray, "sentences numbers"]:
    scores = run.sentence_scores.get(name)
    if scores is None:
        return metric.statistics(run.hypotheses, references)
    return given_statistics(scores.values, run.texts.are_sentences)


def _describe_system(scored: ScoredSystem, names: Sequence[str]) -> Json:
    system = scored.system
    runs = [
        {
            "workdir": str(evaluation.workdir),
            "evaluation": evaluation.path.stem,
            "seed": evaluation.config.seed,
            **{name: evaluation.result[name] for name in ("step", "averaged", *names)},
            "commit": evaluation.commit,
            "note": describe_note(evaluation.config),
        }
        for evaluation in system.evaluations
    ]

    description = {"label": system.label, "runs": runs, "decoding": system.evaluations[0].decoding}
    for name in names:
        values = [run[name] for run in runs]
        # One seed has no standard deviation.
        spread = statistics.stdev(values) if len(values) > 1 else None
        description[name] = {"mean": statistics.mean(values), "spread": spread}
        # Only tested metrics are resampled, and so have an interval.
        if name in scored.scores:
            description[name]["interval"] = scored.scores[name].interval
    return description


def _compare(
    first: ScoredSystem, second: ScoredSystem, references: Sequence[str], count: int
) -> Json:
    pair = {scored.system.label: scored for scored in (first, second)}

    # The sentences with the largest difference in chrF, in either direction.
    differences = second.chrf - first.chrf
    sentences = []
    for i in np.argsort(-np.abs(differences), kind="stable")[:count].tolist():
        if differences[i] == 0:
            break
        sentences.append(
            {
                "line": i + 1,
                "reference": references[i],
                "difference": float(differences[i]),
                "chrf": {label: float(scored.chrf[i]) for label, scored in pair.items()},
                "hypotheses": {
                    label: [run.hypotheses[i] for run in scored.system.evaluations]
                    for label, scored in pair.items()
                },
            }
        )

    tests = {
        name: significance.compare(scores, second.scores[name])
        for name, scores in first.scores.items()
    }
    return {
        "system": second.system.label,
        "baseline": first.system.label,
        **tests,
        "method": significance.describe(
            len(first.system.evaluations), len(second.system.evaluations)
        ),
        "sentences": sentences,
    }


def _worst(scored: ScoredSystem, references: Sequence[str], count: int) -> list[Json]:
    runs = scored.system.evaluations
    # Blank pairs are the ends of documents.
    order = np.argsort(scored.chrf, kind="stable").tolist()
    worst = [i for i in order if references[i].strip() or runs[0].sources[i].strip()]
    return [
        {
            "line": i + 1,
            "chrf": float(scored.chrf[i]),
            "source": runs[0].sources[i],
            "reference": references[i],
            "reference_length": len(references[i]),
            "hypotheses": [run.hypotheses[i] for run in runs],
            "hypothesis_lengths": [len(run.hypotheses[i]) for run in runs],
            "model_scores": [run.model_scores[i] for run in runs],
        }
        for i in worst[:count]
    ]


def _bleu_by_length(metric: AdditiveMetric, systems: Sequence[ScoredSystem]) -> list[Json]:
    # All systems and seeds have the same references.
    lengths = systems[0].bleu[0, :, REFERENCE_LENGTH]
    bins = []
    for shortest, longest in length_bins(lengths):
        is_inside = (lengths >= shortest) & (lengths <= longest)
        bleu = {}
        for scored in systems:
            # BLEU of a subset of sentences comes from the sums of their statistics.
            sums = scored.bleu[:, is_inside].sum(1)  # (seeds, numbers)
            bleu[scored.system.label] = float(metric.score(sums).mean())
        bins.append(
            {
                "shortest": shortest,
                "longest": longest,
                "sentences": int(is_inside.sum()),
                "bleu": bleu,
            }
        )
    return bins


def length_bins(lengths: Int[np.ndarray, " sentences"]) -> list[tuple[int, int]]:
    """Returns the shortest and longest lengths of bins with about equally many sentences."""
    count = min(MAX_BINS, max(1, len(lengths) // MIN_BIN_SENTENCES))
    # Quantiles of the lengths are the upper ends of the bins. Equal quantiles make one bin.
    quantiles = np.arange(1, count + 1) / count
    longest = np.unique(np.quantile(lengths, quantiles, method="inverted_cdf"))
    shortest = [lengths.min(), *(longest[:-1] + 1)]
    return [(int(low), int(high)) for low, high in zip(shortest, longest, strict=True)]
