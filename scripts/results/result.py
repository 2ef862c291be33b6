"""The result of a comparison, a JSON object."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

from scripts.results import significance
from scripts.results.significance import Sample
from scripts.results.sufficient_statistics import REFERENCE_LENGTH, AdditiveMetric, additive_metrics
from scripts.results.systems import System
from transformer.decoding.bleu import metrics_in
from transformer.workdir import describe_note

MAX_BINS = 6  # of sentence lengths
MIN_BIN_SENTENCES = 30  # on average; BLEU of fewer sentences is unreliable

Result = dict[str, Any]  # a JSON object


class ScoredSystem(NamedTuple):
    """A system with BLEU's sufficient statistics, the chrF of sentences (the mean over seeds) and
    scores by metric.
    """

    system: System
    bleu: Num[np.ndarray, "seeds sentences numbers"]
    chrf: Float[np.ndarray, "sentences"]
    samples: dict[str, Sample]


def make_result(
    systems: Sequence[System], references: Sequence[str], samples: int, sentences: int
) -> Result:
    """Compares every system with the first, by `samples` bootstrap resamples.

    Returns:
      split, text, sentences: the split (None: another text), the name of the text, and its number
      of sentences.
      settings: for each setting in which the systems differ, its value in each system, by label.
      systems: the label; the runs; the keys of config.decoding; and for each metric the mean over
        seeds, the spread (sample standard deviation; None for one seed) and, if differences are
        tested, the 95 % interval.
      differences: for each other system: system and baseline, their labels; for bleu, chrf and
        means over sentences the difference, its 95 % interval and its p-value; `method`, how both
        are computed and what they leave out; and the `sentences` whose chrF differs most. Their
        line numbers start at 1, their chrF is the mean over seeds, and they have one hypothesis for
        each seed.
      worst: with a single system, the `sentences` of the lowest chrF, the mean over seeds; and by
        seed the hypothesis, its model score and its length in characters.
      bleu_by_length: for each range of reference lengths in tokens, the number of sentences and the
        mean BLEU over seeds, by label.
      signatures: by metric. For bleu and chrf they include the number of resamples and their seed.
    """
    first = systems[0]
    evaluations = [evaluation for system in systems for evaluation in system.evaluations]
    # Older evaluations have fewer metrics.
    names = [
        name
        for name in metrics_in("comparison")
        if all(name in evaluation.result for evaluation in evaluations)
    ]
    metrics = additive_metrics(first.evaluations[0].language, names)
    drawn = np.random.default_rng(significance.SEED).choice(
        len(references), (samples, len(references))
    )
    scored = [_score(system, references, metrics, drawn) for system in systems]
    signatures = first.evaluations[0].signatures
    for name in signatures.keys() & metrics:  # as `sacrebleu --paired-bs` writes it
        signatures[name] = signatures[name].replace(
            "nrefs:1|", f"nrefs:1|bs:{samples}|seed:{significance.SEED}|"
        )
    return {
        "split": first.evaluations[0].result["split"],
        "text": first.evaluations[0].text,
        "sentences": len(references),
        "settings": {
            key: {system.label: system.differences[key] for system in systems}
            for key in first.differences
        },
        "systems": [_describe_system(system, names) for system in scored],
        "differences": [
            _compare(scored[0], second, references, sentences) for second in scored[1:]
        ],
        "worst": _worst(scored[0], references, sentences) if len(scored) == 1 else [],
        "bleu_by_length": _bleu_by_length(metrics["bleu"], scored),
        "signatures": signatures,
    }


def _score(
    system: System,
    references: Sequence[str],
    metrics: dict[str, AdditiveMetric],
    drawn: Int[np.ndarray, "samples sentences"],
) -> ScoredSystem:
    translations = [evaluation.hypotheses for evaluation in system.evaluations]
    sufficient = {}
    samples = {}
    for name, metric in metrics.items():
        sufficient[name] = np.array(
            [metric.statistics(hypotheses, references) for hypotheses in translations]
        )
        resampled = np.array(
            [significance.resample(metric, seed, drawn) for seed in sufficient[name]]
        )
        scores = np.array([evaluation.result[name] for evaluation in system.evaluations])
        samples[name] = Sample(scores, resampled)
    chrf = metrics["chrf"].score(sufficient["chrf"]).mean(0)
    return ScoredSystem(system, sufficient["bleu"], chrf, samples)


def _describe_system(scored: ScoredSystem, names: Sequence[str]) -> Result:
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
    described = {"label": system.label, "runs": runs, "decoding": system.evaluations[0].decoding}
    for name in names:
        values = [run[name] for run in runs]
        spread = statistics.stdev(values) if len(values) > 1 else None
        described[name] = {"mean": statistics.mean(values), "spread": spread}
        if name in scored.samples:
            described[name]["interval"] = scored.samples[name].interval
    return described


def _compare(
    first: ScoredSystem, second: ScoredSystem, references: Sequence[str], count: int
) -> Result:
    pair = {scored.system.label: scored for scored in (first, second)}
    differences = second.chrf - first.chrf
    most = [
        int(i)
        for i in np.argsort(-np.abs(differences), kind="stable")[:count]
        if differences[i] != 0
    ]
    sentences = [
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
        for i in most
    ]
    tested = {
        name: significance.compare(first.samples[name], second.samples[name])
        for name in first.samples
    }
    method = significance.describe(*(len(scored.system.evaluations) for scored in pair.values()))
    labels = {"system": second.system.label, "baseline": first.system.label}
    return {**labels, **tested, "method": method, "sentences": sentences}


def _worst(scored: ScoredSystem, references: Sequence[str], count: int) -> list[Result]:
    runs = scored.system.evaluations
    # Blank pairs are the ends of documents.
    worst = [
        i
        for i in np.argsort(scored.chrf, kind="stable")
        if references[i].strip() or runs[0].sources[i].strip()
    ]
    return [
        {
            "line": int(i) + 1,
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


def _bleu_by_length(metric: AdditiveMetric, systems: Sequence[ScoredSystem]) -> list[Result]:
    lengths = systems[0].bleu[0, :, REFERENCE_LENGTH]
    bins = []
    for shortest, longest in length_bins(lengths):
        inside = (lengths >= shortest) & (lengths <= longest)
        sums = {scored.system.label: scored.bleu[:, inside].sum(1) for scored in systems}
        scores = {label: float(metric.score(seeds).mean()) for label, seeds in sums.items()}
        bins.append(
            {
                "shortest": shortest,
                "longest": longest,
                "sentences": int(inside.sum()),
                "bleu": scores,
            }
        )
    return bins


def length_bins(lengths: Int[np.ndarray, "sentences"]) -> list[tuple[int, int]]:
    """Returns the shortest and longest lengths of bins with about equally many sentences."""
    count = min(MAX_BINS, max(1, len(lengths) // MIN_BIN_SENTENCES))
    longest = np.unique(
        np.quantile(lengths, np.arange(1, count + 1) / count, method="inverted_cdf")
    )
    shortest = [lengths.min(), *(longest[:-1] + 1)]
    return [(int(low), int(high)) for low, high in zip(shortest, longest, strict=True)]
