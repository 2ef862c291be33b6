"""The metrics of translations, in the table METRICS, which all parts that compute, record or show a
metric read.

`bleu` is comparable between papers: cased, detokenized output against raw references (Post 2018).
`bleu_lowercase_tokenized` is what much work on Multi30k reports: hypotheses and references are
normalized and tokenized by Moses' rules for the language, with its usual escapes, and then
lower-cased. `bleu_paper` is that of "Attention Is All You Need", by the rules of tensor2tensor's
get_ende_bleu.sh: cased and tokenized, with German compounds split at their hyphens, scored as
Moses' multi-bleu.perl does.
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

MOSES = f"prepared:sacremoses.{importlib.metadata.version('sacremoses')}"
# sacreBLEU's tokenizers by language or script; 13a, for text with spaces, is that of all others.
TOKENIZERS = {
    **dict.fromkeys(("zh", "yue", "lzh", "wuu", "nan", "hans", "hant"), "zh"),
    **dict.fromkeys(("ja", "jpan"), "ja-mecab"),
    **dict.fromkeys(("ko", "kore", "hang"), "ko-mecab"),
    **dict.fromkeys(
        ("th", "lo", "km", "my", "bo", "dz", "thai", "laoo", "khmr", "mymr", "tibt"), "char"
    ),
}

# other metrics of a validation, which are better if they are lower
LOSSES = ("loss", "nll", "perplexity")
References = Sequence[Sequence[str]]  # one or several lists with a reference of every sentence


class Language(NamedTuple):
    """A code such as "de", or None for tokens separated by spaces, and sacreBLEU's tokenizer for
    the metric `bleu`.
    """

    code: str | None
    tokenizer: str


class Metric(NamedTuple):
    """A metric of translations.

    compute: (hypotheses, references, language) -> the value, and a signature or None.
    label, format: the name and the format of the value for people.
    direction: "maximize" or "minimize".
    is_mean: whether the value is a mean over sentences; `scripts.compare` tests differences of such
        a metric.
    shown_in: "validation" (and so `metrics.jsonl`, TensorBoard and sweeps that train), "log" (the
      line and the curve of a validation), "comparison" (`scripts.compare` and pages) and "results"
      (the table of `scripts.report`).
    """

    compute: Callable[[Sequence[str], References, Language], tuple[float, str | None]]
    label: str
    format: str = ".2f"
    direction: str = "maximize"
    is_mean: bool = False
    shown_in: Sequence[str] = ("validation", "log", "comparison", "results")


def direction(metric: str) -> str:
    """Returns "maximize" or "minimize", for a metric of a validation or of one of its sets, such as
    bleu/NAME.
    """
    name = metric.partition("/")[0]
    return (
        METRICS[name].direction if name in METRICS else "minimize" if name in LOSSES else "maximize"
    )


def rank(score: float, loss: float | None, metric: str) -> tuple[float, ...]:
    """Returns the values of a validation as they compare: the higher, the better; not finite is
    worst.
    """
    score = -score if direction(metric) == "minimize" else score
    values = (score, -math.inf if loss is None else -loss)
    return tuple(value if math.isfinite(value) else -math.inf for value in values)


def score(
    hypotheses: Sequence[str], references: References, language: Language, metrics: Iterable[str]
) -> dict[str, float | str]:
    """Returns the value of each metric NAME, and NAME_signature if it has one, by all lists of
    references together.

    A blank reference of a sentence that has another counts as that one: an empty text would match
    any short hypothesis.
    """
    if len(references) > 1:
        rows = [
            (known, next(filter(str.strip, known), "")) for known in zip(*references, strict=True)
        ]
        filled = [[text if text.strip() else first for text in known] for known, first in rows]
        references = [list(texts) for texts in zip(*filled, strict=True)]
    scores = {}
    for name in metrics:
        scores[name], signature = METRICS[name].compute(hypotheses, references, language)
        if signature is not None:
            scores[f"{name}_signature"] = signature
    return scores


def metrics_in(place: str) -> list[str]:
    """Returns the names of the metrics that are shown in a place of `Metric.shown_in`."""
    return [name for name, metric in METRICS.items() if place in metric.shown_in]


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
    prepared, *others = (
        lowercase_tokenize(texts, language.code) for texts in (hypotheses, *references)
    )
    value, signature = corpus_score(BLEU(tokenize="none", force=True), prepared, others)
    preparation = (
        "prepared:lowercased"
        if language.code is None
        else f"{MOSES}.normalized.tokenized.lowercased"
    )
    return value, f"{signature}|{preparation}"


def paper_score(
    hypotheses: Sequence[str], references: References, language: Language
) -> tuple[float, str]:
    """Returns `bleu_paper` and its signature."""
    tokenized, *others = (
        paper_tokenize(texts, language.code) for texts in (hypotheses, *references)
    )
    # multi-bleu.perl does not smooth: without a single matching 4-gram the score is 0.
    value, signature = corpus_score(
        BLEU(tokenize="none", smooth_method="none", force=True), tokenized, others
    )
    if language.code is None:
        return value, f"{signature}|prepared:none"
    split = ".compounds-split" if base_code(language.code) == "de" else ""
    return value, f"{signature}|{MOSES}.plain-punctuation.tokenized{split}"


def exact_match(
    hypotheses: Sequence[str], references: References, language: Language
) -> tuple[float, None]:
    """Returns the fraction of hypotheses that are equal to one of their references."""
    sentences = zip(hypotheses, *references, strict=True)
    equal = [
        hypothesis.strip() in [text.strip() for text in known] for hypothesis, *known in sentences
    ]
    return sum(equal) / len(equal), None


def corpus_score(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: References
) -> tuple[float, str]:
    """Returns the score and sacreBLEU's signature."""
    return metric.corpus_score(hypotheses, references).score, str(metric.get_signature())


def make_bleu(tokenizer: str) -> BLEU:
    """Returns sacreBLEU's BLEU with one of its tokenizers, or over characters if that is not
    installed.
    """
    try:
        # no warning about tokens, which "none" expects
        return BLEU(tokenize=tokenizer, force=tokenizer == "none")
    except RuntimeError:
        message = "BLEU is computed over characters: sacreBLEU's %s is missing (pip install 'sacrebleu[%s]')."
        logging.log_first_n(
            logging.WARNING, message, 1, tokenizer, tokenizer.removesuffix("-mecab")
        )
        return BLEU(tokenize="char")


def lowercase_tokenize(texts: Sequence[str], language: str | None) -> list[str]:
    """Returns the texts normalized, tokenized and lower-cased.

    Moses has default rules for unknown languages.
    """
    if language is None:
        return [text.lower() for text in texts]
    normalizer, tokenizer = moses(language)
    return [
        tokenizer.tokenize(normalizer.normalize(text), return_str=True).lower() for text in texts
    ]


def paper_tokenize(texts: Sequence[str], language: str | None) -> list[str]:
    """Returns the texts with plain punctuation, tokenized, and in German with compounds split."""
    if language is None:
        return list(texts)
    normalizer, tokenizer = moses(language)
    tokenized = [
        tokenizer.tokenize(normalizer.replace_unicode_punct(text), return_str=True)
        for text in texts
    ]
    return (
        [split_compounds(text) for text in tokenized] if base_code(language) == "de" else tokenized
    )


def moses(language: str) -> tuple[Any, Any]:
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
    code = None if data.source == "ids" else data.target_language
    tokenizer = data.bleu_tokenizer
    if tokenizer == "auto":
        tokenizer = "none" if code is None else language_tokenizer(code)
    return Language(code, tokenizer)


METRICS = {
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
