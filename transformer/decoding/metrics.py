"""The table of metrics of translations.

All parts that compute, record or show a metric read it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sacrebleu.metrics import CHRF

from transformer.decoding import bleu
from transformer.decoding.bleu import Language, References
from transformer.decoding.trees import bracket_scores

LOSSES = ("loss", "nll", "perplexity")  # other metrics of a validation; lower is better


class Metric(NamedTuple):
    """A metric of translations.

    compute: (hypotheses, references, language) -> the value, and a signature or None.
    label, format: the name and the format of the value for people.
    direction: "maximize" or "minimize".
    is_mean: whether the value is a mean over sentences. `scripts.compare` tests differences of such
      a metric.
    shown_in: "validation" (also `metrics.jsonl`, TensorBoard and sweeps that train), "log" (the
      line and the curve of a validation), "comparison" (`scripts.compare` and pages) and "results"
      (the table of `scripts.report`).
    target_form: the name in `data.target_form` of the outputs that have this metric; None: all.
    """

    compute: Callable[[Sequence[str], References, Language], tuple[float, str | None]]
    label: str
    format: str = ".2f"
    direction: str = "maximize"
    is_mean: bool = False
    shown_in: Sequence[str] = ("validation", "log", "comparison", "results")
    target_form: str | None = None


def direction(metric: str) -> str:
    """Returns "maximize" or "minimize" for a metric, or for a set's metric such as bleu/NAME."""
    name, _, _ = metric.partition("/")
    if name in METRICS:
        return METRICS[name].direction
    return "minimize" if name in LOSSES else "maximize"


def rank(score: float, loss: float | None, metric: str) -> tuple[float, ...]:
    """Returns the values by which validations compare, score first: higher is better.

    Values that are not finite are worst.
    """
    if direction(metric) == "minimize":
        score = -score
    values = (score, -math.inf if loss is None else -loss)
    return tuple(value if math.isfinite(value) else -math.inf for value in values)


def compute_metrics(
    hypotheses: Sequence[str], references: References, language: Language, metrics: Iterable[str]
) -> dict[str, float | str]:
    """Returns the value of each metric NAME, and NAME_signature if it has one.

    Metrics of another form of targets are left out. A metric uses all lists of references together,
    except that metrics of trees use the first list. If a sentence has several references, the first
    one with text replaces blank ones: an empty text would match any short hypothesis.
    """
    # A row has all references of a sentence.
    if len(references) > 1:
        rows = [_fill_blanks(row) for row in zip(*references, strict=True)]
        references = [list(texts) for texts in zip(*rows, strict=True)]
    scores: dict[str, float | str] = {}
    for name in applicable(metrics, language.target_form):
        scores[name], signature = METRICS[name].compute(hypotheses, references, language)
        if signature is not None:
            scores[f"{name}_signature"] = signature
    return scores


def _fill_blanks(texts: Sequence[str]) -> list[str]:
    first = next(filter(str.strip, texts), "")
    return [text if text.strip() else first for text in texts]


def metrics_in(place: str) -> list[str]:
    """Returns the names of the metrics that are shown in a place of `Metric.shown_in`."""
    return [name for name, metric in METRICS.items() if place in metric.shown_in]


def applicable(metrics: Iterable[str], target_form: str) -> list[str]:
    """Returns the metrics that outputs of this form have."""
    return [name for name in metrics if METRICS[name].target_form in (None, target_form)]


def describe_scores(scores: Mapping[str, float], names: Iterable[str]) -> list[str]:
    """Returns the labels and values of the named metrics that `scores` has."""
    return [
        f"{METRICS[name].label} {scores[name]:{METRICS[name].format}}"
        for name in names
        if name in scores
    ]


def exact_match(
    hypotheses: Sequence[str], references: References, language: Language
) -> tuple[float, None]:
    """Returns the fraction of hypotheses that are equal to one of their references."""
    matches = [
        hypothesis.strip() in map(str.strip, texts)
        for hypothesis, *texts in zip(hypotheses, *references, strict=True)
    ]
    return sum(matches) / len(matches), None


def _bracket_metric(name: str, label: str, **fields: Any) -> Metric:
    def compute(
        hypotheses: Sequence[str], references: References, _: Language
    ) -> tuple[float, str]:
        value = bracket_scores.score(name, hypotheses, references[0])
        return value, bracket_scores.SIGNATURE

    return Metric(compute, label, target_form="tree", **fields)


METRICS = {
    "bracket_f1": _bracket_metric("bracket_f1", "bracket F1"),
    "bracket_errors": _bracket_metric(
        "bracket_errors",
        "bracket errors",
        format=".0f",
        direction="minimize",
        shown_in=("validation", "log", "results"),
    ),
    "bracket_f1_with_errors": _bracket_metric(
        "bracket_f1_with_errors",
        "bracket F1 with errors",
        shown_in=("validation", "log", "results"),
    ),
    "bracket_recall": _bracket_metric("bracket_recall", "bracket recall", shown_in=("results",)),
    "bracket_precision": _bracket_metric(
        "bracket_precision", "bracket precision", shown_in=("results",)
    ),
    "bracket_complete_match": _bracket_metric(
        "bracket_complete_match", "complete match", shown_in=("results",)
    ),
    "bleu_lowercase_tokenized": Metric(
        bleu.lowercase_score, "BLEU (lower-cased, tokenized)", shown_in=("comparison", "results")
    ),
    "bleu": Metric(bleu.score, "BLEU"),
    "chrf": Metric(
        lambda hypotheses, references, _: bleu.corpus_score(CHRF(), hypotheses, references),
        "chrF",
        shown_in=("validation", "comparison", "results"),
    ),
    "bleu_paper": Metric(bleu.paper_score, "BLEU (the paper's)", shown_in=("results",)),
    "exact_match": Metric(
        exact_match, "exact match", format=".1%", is_mean=True, shown_in=("validation",)
    ),
}
