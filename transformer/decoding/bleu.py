"""BLEU and chrF by sacreBLEU, with signatures that document how they were computed.

`bleu` is comparable between papers: cased, detokenised output against raw references (Post 2018).
`bleu_lowercase_tokenized` is what much work on Multi30k reports: hypotheses and references are both normalised and
tokenised by Moses' rules for the language, with its usual escapes, and then lower-cased.
"""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from absl import logging
from sacrebleu.metrics import BLEU, CHRF

from transformer.data.languages import base_code

PREPARATION = f"prepared:sacremoses.{importlib.metadata.version('sacremoses')}.normalized.tokenized.lowercased"


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF from 0 to 100; exact_match is the fraction of sentences equal to their references."""

    bleu: float
    bleu_signature: str
    bleu_lowercase_tokenized: float
    bleu_lowercase_tokenized_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float


def score(hypotheses: Sequence[str], references: Sequence[str], language: str | None) -> Scores:
    """Returns the scores of at least one hypothesis, with one reference each.

    language: code of the target language, such as "de". None: the texts are tokens separated by spaces.
    """
    bleu, bleu_signature = corpus_score(make_bleu(language), hypotheses, references)
    chrf, chrf_signature = corpus_score(CHRF(), hypotheses, references)
    prepared = [lowercase_tokenize(texts, language) for texts in (hypotheses, references)]
    lowercase, lowercase_signature = corpus_score(BLEU(tokenize="none", force=True), *prepared)
    pairs = zip(hypotheses, references, strict=True)
    return Scores(
        bleu=bleu,
        bleu_signature=bleu_signature,
        bleu_lowercase_tokenized=lowercase,
        bleu_lowercase_tokenized_signature=f"{lowercase_signature}|{PREPARATION}",
        chrf=chrf,
        chrf_signature=chrf_signature,
        exact_match=sum(hypothesis.strip() == reference.strip() for hypothesis, reference in pairs) / len(hypotheses),
    )


def corpus_score(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Returns the score and sacreBLEU's signature."""
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return value, str(metric.get_signature())


def make_bleu(language: str | None) -> BLEU:
    """Returns sacreBLEU's BLEU, with the tokeniser that it chooses for the language."""
    if language is None:
        return BLEU(tokenize="none", force=True)
    code = base_code(language)
    try:
        return BLEU(trg_lang=code)
    except RuntimeError:
        logging.warning(
            "BLEU is computed over characters: the tokeniser for %s is missing (pip install sacrebleu[%s]).", code, code
        )
        return BLEU(tokenize="char")


def lowercase_tokenize(texts: Sequence[str], language: str | None) -> list[str]:
    """Returns the texts normalised, tokenised and lower-cased. Moses has default rules for unknown languages."""
    if language is None:
        return [text.lower() for text in texts]
    import sacremoses  # here because it takes a second, which only commands that score should spend

    code = base_code(language)
    normalizer, tokenizer = sacremoses.MosesPunctNormalizer(lang=code), sacremoses.MosesTokenizer(lang=code)
    return [tokenizer.tokenize(normalizer.normalize(text), return_str=True).lower() for text in texts]


def bleu_language(data: Any) -> str | None:
    """Returns the `language` argument of `score` for the configuration group `config.data`."""
    return None if data.source == "ids" else data.target_language
