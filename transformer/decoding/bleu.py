"""The metrics of translations: BLEU and chrF by sacreBLEU, with signatures that document how they were computed.

Everything that computes, records, compares or shows a metric reads the table METRICS at the end of this file.

`bleu` is comparable between papers: cased, detokenized output against raw references (Post 2018).
`bleu_lowercase_tokenized` is what much work on Multi30k reports: hypotheses and references are both normalized and
tokenized by Moses' rules for the language, with its usual escapes, and then lower-cased.
`bleu_paper` is the measure of "Attention Is All You Need" and of the work it compares with: cased and tokenized, with
German compounds split at their hyphens, scored as Moses' multi-bleu.perl does. The rules are those of tensor2tensor's
get_ende_bleu.sh, whose tokenized reference is made here from the raw one.
"""

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from absl import logging
from sacrebleu.metrics import BLEU, CHRF

from transformer.config_types import Config
from transformer.data.languages import base_code, script

MOSES = f"prepared:sacremoses.{importlib.metadata.version('sacremoses')}"
COMPOUND_SPLIT = ("de",)  # the target languages whose published scores split compounds
# sacreBLEU's tokenizers by language or script; 13a, for text with spaces, is that of all others.
TOKENIZERS = {
    **dict.fromkeys(("zh", "yue", "hans", "hant"), "zh"),
    **dict.fromkeys(("ja", "jpan"), "ja-mecab"),
    **dict.fromkeys(("ko", "kore", "hang"), "ko-mecab"),
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz", "thai", "laoo", "khmr", "mymr", "tibt"), "char"),
}

References = Sequence[Sequence[str]]  # one or several lists with a reference of every sentence


class Language(NamedTuple):
    """The language of the texts that are scored.

    code: such as "de". None: the texts are tokens separated by spaces.
    tokenizer: the name of one of sacreBLEU's tokenizers, for the metric `bleu`.
    """

    code: str | None
    tokenizer: str


class Metric(NamedTuple):
    """A metric of translations.

    Attributes:
      compute: (hypotheses, references, language) -> the value, and a signature or None.
      label: the name for people.
      format: of the value, as Python writes it.
      direction: "maximize" or "minimize".
      is_mean: whether the value is a mean over sentences; `scripts.compare` tests differences of such a metric.
      shown_in: "validation" (and so `metrics.jsonl`, TensorBoard and sweeps that train), "log" (the line and the curve
        of a validation), "comparison" (`scripts.compare` and pages) and "results" (the table of `scripts.report`).
        `transformer.evaluate` computes all metrics.
    """

    compute: Callable[[Sequence[str], References, Language], tuple[float, str | None]]
    label: str
    format: str = ".2f"
    direction: str = "maximize"
    is_mean: bool = False
    shown_in: Sequence[str] = ("validation", "log", "comparison", "results")


def score(
    hypotheses: Sequence[str], references: References, language: Language, metrics: Iterable[str]
) -> dict[str, float | str]:
    """Returns the scores of at least one hypothesis, with one or several references each.

    Args:
      references: one or several lists, each with a reference for every hypothesis. Every metric takes all of them, as
        sacreBLEU and multi-bleu.perl do.
      metrics: names in METRICS. Only these are computed.

    Returns:
      For each metric NAME its value and, if it has a signature, NAME_signature.
    """
    scores: dict[str, float | str] = {}
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
    metrics = {name: METRICS[name] for name in names if name in scores}
    return [f"{metric.label} {scores[name]:{metric.format}}" for name, metric in metrics.items()]


def lowercase_tokenized_score(
    hypotheses: Sequence[str], references: References, language: Language
) -> tuple[float, str]:
    """Returns `bleu_lowercase_tokenized` and its signature."""
    prepared, *others = (lowercase_tokenize(texts, language.code) for texts in (hypotheses, *references))
    value, signature = corpus_score(BLEU(tokenize="none", force=True), prepared, others)
    preparation = "prepared:lowercased" if language.code is None else f"{MOSES}.normalized.tokenized.lowercased"
    return value, f"{signature}|{preparation}"


def paper_score(hypotheses: Sequence[str], references: References, language: Language) -> tuple[float, str]:
    """Returns `bleu_paper` and its signature."""
    tokenized, *others = (paper_tokenize(texts, language.code) for texts in (hypotheses, *references))
    # multi-bleu.perl does not smooth: without a single matching 4-gram the score is 0.
    value, signature = corpus_score(BLEU(tokenize="none", smooth_method="none", force=True), tokenized, others)
    if language.code is None:
        return value, f"{signature}|prepared:none"
    split = ".compounds-split" if base_code(language.code) in COMPOUND_SPLIT else ""
    return value, f"{signature}|{MOSES}.plain-punctuation.tokenized{split}"


def exact_match(hypotheses: Sequence[str], references: References, language: Language) -> tuple[float, None]:
    """Returns the fraction of hypotheses that are equal to one of their references."""
    sentences = zip(hypotheses, *references, strict=True)
    equal = [hypothesis.strip() in [text.strip() for text in known] for hypothesis, *known in sentences]
    return sum(equal) / len(equal), None


def corpus_score(metric: BLEU | CHRF, hypotheses: Sequence[str], references: References) -> tuple[float, str]:
    """Returns the score and sacreBLEU's signature."""
    value = metric.corpus_score(list(hypotheses), [list(texts) for texts in references]).score
    return value, str(metric.get_signature())


def sentence_chrf(hypotheses: Sequence[str], references: References) -> list[float]:
    """Returns the chrF of each hypothesis against its references, from 0 to 100."""
    metric = CHRF()
    sentences = zip(hypotheses, *references, strict=True)
    return [metric.sentence_score(hypothesis, known).score for hypothesis, *known in sentences]


def make_bleu(tokenizer: str) -> BLEU:
    """Returns sacreBLEU's BLEU with one of its tokenizers, or over characters if that is not installed."""
    try:
        # `force` omits a warning about tokens, which "none" expects.
        return BLEU(tokenize=tokenizer, force=tokenizer == "none")
    except RuntimeError:
        extra = tokenizer.removesuffix("-mecab")
        message = "BLEU is computed over characters: sacreBLEU's %s is missing (pip install 'sacrebleu[%s]')."
        logging.log_first_n(logging.WARNING, message, 1, tokenizer, extra)
        return BLEU(tokenize="char")


def lowercase_tokenize(texts: Sequence[str], language: str | None) -> list[str]:
    """Returns the texts normalized, tokenized and lower-cased. Moses has default rules for unknown languages."""
    if language is None:
        return [text.lower() for text in texts]
    import sacremoses  # here because it takes a second, which only commands that score should spend

    code = base_code(language)
    normalizer, tokenizer = sacremoses.MosesPunctNormalizer(lang=code), sacremoses.MosesTokenizer(lang=code)
    return [tokenizer.tokenize(normalizer.normalize(text), return_str=True).lower() for text in texts]


def paper_tokenize(texts: Sequence[str], language: str | None) -> list[str]:
    """Returns the texts with plain punctuation, tokenized, and with compounds split for languages of COMPOUND_SPLIT."""
    if language is None:
        return list(texts)
    import sacremoses  # see `lowercase_tokenize`

    code = base_code(language)
    replace = sacremoses.MosesPunctNormalizer(lang=code).replace_unicode_punct
    tokenizer = sacremoses.MosesTokenizer(lang=code)
    tokenized = [tokenizer.tokenize(replace(text), return_str=True) for text in texts]
    return [split_compounds(text) for text in tokenized] if code in COMPOUND_SPLIT else tokenized


def split_compounds(text: str) -> str:
    """Returns tokenized text with "rich-text" as "rich ##AT##-##AT## text".

    The two letters around a hyphen belong to one match, so "a-b-c" is split once. Bytes are matched, as Perl does: a
    single non-ASCII letter between hyphens has two bytes, one for each of its hyphens.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", text.encode()).decode()


def bleu_language(data: Config) -> Language:
    """Returns the `language` argument of `score` for the configuration group `config.data`."""
    code = data.target_language
    tokenizer = TOKENIZERS.get(script(code)) or TOKENIZERS.get(base_code(code), "13a")
    if data.source == "ids":
        code, tokenizer = None, "none"
    return Language(code, tokenizer if data.bleu_tokenizer == "auto" else data.bleu_tokenizer)


METRICS = {
    "bleu_lowercase_tokenized": Metric(
        lowercase_tokenized_score, "BLEU (lower-cased, tokenized)", shown_in=("comparison", "results")
    ),
    "bleu": Metric(
        lambda texts, references, language: corpus_score(make_bleu(language.tokenizer), texts, references), "BLEU"
    ),
    "chrf": Metric(
        lambda texts, references, language: corpus_score(CHRF(), texts, references),
        "chrF",
        shown_in=("validation", "comparison", "results"),
    ),
    "bleu_paper": Metric(paper_score, "BLEU (the paper's)", shown_in=("results",)),
    "exact_match": Metric(exact_match, "exact match", format=".1%", is_mean=True, shown_in=("validation",)),
}
