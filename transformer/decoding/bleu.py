"""The metrics of translations.

All parts that compute, record or show a metric read the table METRICS.

`bleu` is comparable between papers: cased, detokenized output against raw references (Post 2018).
`bleu_lowercase_tokenized` is the score that much work on Multi30k reports: hypotheses and
references are normalized and tokenized by Moses' rules for the language, with its usual escapes,
and then lower-cased. `bleu_paper` is the BLEU of "Attention Is All You Need", by the rules of
tensor2tensor's get_ende_bleu.sh: cased and tokenized, with German compounds split at their hyphens,
scored as Moses' multi-bleu.perl does.

The scores of trees are in `trees/bracket_scores.py`.
"""

import importlib.metadata
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging
from sacrebleu.metrics import BLEU, CHRF

from transformer.config.types import Config
from transformer.data.languages import base_code, script
from transformer.decoding.trees import bracket_scores

MOSES = f"prepared:sacremoses.{importlib.metadata.version('sacremoses')}"
# sacreBLEU's tokenizers by language or script. All other languages have 13a, for text with spaces.
TOKENIZERS = {
    **dict.fromkeys(("zh", "yue", "lzh", "wuu", "nan", "hans", "hant"), "zh"),
    **dict.fromkeys(("ja", "jpan"), "ja-mecab"),
    **dict.fromkeys(("ko", "kore", "hang"), "ko-mecab"),
    **dict.fromkeys(
        ("th", "lo", "km", "my", "bo", "dz", "thai", "laoo", "khmr", "mymr", "tibt"), "char"
    ),
}

LOSSES = ("loss", "nll", "perplexity")  # other metrics of a validation; lower is better
References = Sequence[Sequence[str]]  # one or several lists, each with a reference of each sentence


class Language(NamedTuple):
    """A target language, its tokenizer, and the form of the texts."""

    code: str | None  # such as "de"; None for tokens separated by spaces
    tokenizer: str  # of sacreBLEU, for the metric `bleu`
    target_form: str = "text"  # `data.target_form`


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


def score(
    hypotheses: Sequence[str], references: References, language: Language, metrics: Iterable[str]
) -> dict[str, float | str]:
    """Returns the value of each metric NAME, and NAME_signature if it has one.

    Metrics of another form of targets are left out. A metric uses all lists of references together.
    If a sentence has several references, the first one with text replaces blank ones: an empty text
    would match any short hypothesis.
    """
    # A row has all references of a sentence.
    if len(references) > 1:
        rows = [_fill_blanks(row) for row in zip(*references, strict=True)]
        references = [list(texts) for texts in zip(*rows, strict=True)]
    scores = {}
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


def lowercase_score(
    hypotheses: Sequence[str], references: References, language: Language
) -> tuple[float, str]:
    """Returns `bleu_lowercase_tokenized` and its signature."""
    hypotheses = lowercase_tokenize(hypotheses, language.code)
    references = [lowercase_tokenize(texts, language.code) for texts in references]
    metric = BLEU(tokenize="none", force=True)
    value, signature = corpus_score(metric, hypotheses, references)
    if language.code is None:
        return value, f"{signature}|prepared:lowercased"
    return value, f"{signature}|{MOSES}.normalized.tokenized.lowercased"


def paper_score(
    hypotheses: Sequence[str], references: References, language: Language
) -> tuple[float, str]:
    """Returns `bleu_paper` and its signature."""
    hypotheses = paper_tokenize(hypotheses, language.code)
    references = [paper_tokenize(texts, language.code) for texts in references]

    # multi-bleu.perl does not smooth: without a single matching 4-gram the score is 0.
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    value, signature = corpus_score(metric, hypotheses, references)
    if language.code is None:
        return value, f"{signature}|prepared:none"
    split = ".compounds-split" if base_code(language.code) == "de" else ""
    return value, f"{signature}|{MOSES}.plain-punctuation.tokenized{split}"


def exact_match(
    hypotheses: Sequence[str], references: References, language: Language
) -> tuple[float, None]:
    """Returns the fraction of hypotheses that are equal to one of their references."""
    matches = [
        hypothesis.strip() in map(str.strip, texts)
        for hypothesis, *texts in zip(hypotheses, *references, strict=True)
    ]
    return sum(matches) / len(matches), None


def corpus_score(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: References
) -> tuple[float, str]:
    """Returns the score and sacreBLEU's signature."""
    return metric.corpus_score(hypotheses, references).score, str(metric.get_signature())


def make_bleu(tokenizer: str) -> BLEU:
    """Returns sacreBLEU's BLEU with one of its tokenizers.

    It is BLEU over characters, with a warning, if the tokenizer is not installed.
    """
    try:
        # "force" avoids a warning about tokenized text, which "none" expects.
        return BLEU(tokenize=tokenizer, force=tokenizer == "none")
    except RuntimeError:
        logging.log_first_n(
            logging.WARNING,
            "BLEU is computed over characters: sacreBLEU's %s is missing "
            "(pip install 'sacrebleu[%s]').",
            1,
            tokenizer,
            tokenizer.removesuffix("-mecab"),
        )
        return BLEU(tokenize="char")


def sentence_metric(name: str, language: Language) -> BLEU | CHRF:
    """Returns sacreBLEU's metric for single sentences, "bleu" or "chrf"."""
    if name == "chrf":
        return CHRF()
    metric = make_bleu(language.tokenizer)
    metric.effective_order = True  # otherwise the score of a short sentence is 0
    return metric


def lowercase_tokenize(texts: Sequence[str], language: str | None) -> list[str]:
    """Returns the texts normalized, tokenized and lower-cased.

    Moses has default rules for unknown languages.
    """
    if language is None:
        return [text.lower() for text in texts]
    normalizer, tokenizer = moses(language)
    texts = map(normalizer.normalize, texts)
    return [tokenizer.tokenize(text, return_str=True).lower() for text in texts]


def paper_tokenize(texts: Sequence[str], language: str | None) -> list[str]:
    """Returns the texts with plain punctuation, tokenized, and in German with compounds split."""
    if language is None:
        return list(texts)
    normalizer, tokenizer = moses(language)
    texts = map(normalizer.replace_unicode_punct, texts)
    tokenized = [tokenizer.tokenize(text, return_str=True) for text in texts]
    if base_code(language) == "de":
        return list(map(split_compounds, tokenized))
    return tokenized


def moses(language: str) -> tuple[Any, Any]:
    """Returns the normalizer and the tokenizer of Moses for a language."""
    import sacremoses  # takes a second, which only commands that score should spend

    code = base_code(language)
    return sacremoses.MosesPunctNormalizer(lang=code), sacremoses.MosesTokenizer(lang=code)


def split_compounds(text: str) -> str:
    """Returns tokenized text with "rich-text" as "rich ##AT##-##AT## text".

    Matches bytes, as Perl does: in "a-b-c" the first match consumes b, but a non-ASCII letter there
    has two bytes.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", text.encode()).decode()


def bleu_language(data: Config) -> Language:
    """Returns the `language` argument of `score` for the configuration group `config.data`."""
    # Ids, and the symbols of trees, are tokens separated by spaces.
    is_text = data.source != "ids" and data.target_form == "text"
    code = data.target_language if is_text else None
    tokenizer = data.bleu_tokenizer
    if tokenizer == "auto":
        tokenizer = "none" if code is None else language_tokenizer(code)
    return Language(code, tokenizer, data.target_form)


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
        lowercase_score, "BLEU (lower-cased, tokenized)", shown_in=("comparison", "results")
    ),
    "bleu": Metric(
        lambda hypotheses, references, language: corpus_score(
            make_bleu(language.tokenizer), hypotheses, references
        ),
        "BLEU",
    ),
    "chrf": Metric(
        lambda hypotheses, references, _: corpus_score(CHRF(), hypotheses, references),
        "chrF",
        shown_in=("validation", "comparison", "results"),
    ),
    "bleu_paper": Metric(paper_score, "BLEU (the paper's)", shown_in=("results",)),
    "exact_match": Metric(
        exact_match, "exact match", format=".1%", is_mean=True, shown_in=("validation",)
    ),
}


def language_tokenizer(code: str) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language."""
    return TOKENIZERS.get(script(code)) or TOKENIZERS.get(base_code(code), "13a")
