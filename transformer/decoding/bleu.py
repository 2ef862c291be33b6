"""BLEU, by three preparations of the texts.

`bleu` is comparable between papers: cased, detokenized output against raw references (Post 2018).
`bleu_lowercase_tokenized` is the score that much work on Multi30k reports: hypotheses and
references are normalized and tokenized by Moses' rules for the language, with its usual escapes,
and then lower-cased. `bleu_paper` is the BLEU of "Attention Is All You Need", by the rules of
tensor2tensor's get_ende_bleu.sh: cased and tokenized, with German compounds split at their hyphens,
scored as Moses' multi-bleu.perl does.
"""

import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import logging
from sacrebleu.metrics import BLEU
from sacrebleu.metrics.base import Metric

from transformer.config.types import Config
from transformer.data.languages import base_code, script

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

References = Sequence[Sequence[str]]  # one or several lists, each with a reference of each sentence


class Language(NamedTuple):
    """A target language, its tokenizer, and the form of the texts."""

    code: str | None  # such as "de"; None for tokens separated by spaces
    tokenizer: str  # of sacreBLEU, for the metric `bleu`
    target_form: str = "text"  # `data.target_form`


def score(
    hypotheses: Sequence[str], references: References, language: Language
) -> tuple[float, str]:
    """Returns `bleu` and its signature."""
    return corpus_score(make_bleu(language.tokenizer), hypotheses, references)


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


def corpus_score(
    metric: Metric, hypotheses: Sequence[str], references: References
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


def lowercase_tokenize(texts: Sequence[str], language: str | None) -> list[str]:
    """Returns the texts normalized, tokenized and lower-cased.

    Moses has default rules for unknown languages.
    """
    if language is None:
        return [text.lower() for text in texts]
    normalizer, tokenizer = moses(language)
    normalized = map(normalizer.normalize, texts)
    return [tokenizer.tokenize(text, return_str=True).lower() for text in normalized]


def paper_tokenize(texts: Sequence[str], language: str | None) -> list[str]:
    """Returns the texts with plain punctuation, tokenized, and in German with compounds split."""
    if language is None:
        return list(texts)
    normalizer, tokenizer = moses(language)
    normalized = map(normalizer.replace_unicode_punct, texts)
    tokenized = [tokenizer.tokenize(text, return_str=True) for text in normalized]
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


def bleu_language(data_config: Config) -> Language:
    """Returns the language of `score` for the configuration group `config.data`."""
    # Ids, and the symbols of trees, are tokens separated by spaces.
    is_text = data_config.source != "ids" and data_config.target_form == "text"
    code = data_config.target_language if is_text else None
    tokenizer = data_config.bleu_tokenizer
    if tokenizer == "auto":
        tokenizer = "none" if code is None else language_tokenizer(code)
    return Language(code, tokenizer, data_config.target_form)


def language_tokenizer(code: str) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language."""
    return TOKENIZERS.get(script(code)) or TOKENIZERS.get(base_code(code), "13a")
