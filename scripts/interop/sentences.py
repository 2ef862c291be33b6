"""Sentences for certificates: the lines of a file, the validation split, or bundled sentences."""

from pathlib import Path
from typing import NamedTuple

from absl import logging

from scripts.interop.portable import PortableModel
from scripts.interop.runtimes import Unavailable
from transformer.config.types import Config
from transformer.data.languages import base_code
from transformer.data.sources.lines import count_noun, read_text_file
from transformer.data.sources.source import read_pairs
from transformer.support import files
from transformer.support.errors import UserError

BUNDLED = Path(__file__).with_name("sentences.tsv")


class Sentences(NamedTuple):
    """Sentences to translate, with references if there are any."""

    origin: str
    texts: list[str]
    references: list[str] | None = None


def read_sentences(path: str | None) -> Sentences | None:
    """Returns the lines of a file, or None without a file.

    Raises UserError if the file cannot be read or has no sentence.
    """
    if path is None:
        return None
    texts = read_text_file(files.expand_user(path))
    if not any(text.strip() for text in texts):
        raise UserError(f"--sentences={path}: has no sentence")
    return Sentences(path, texts)


def default_sentences(config: Config) -> Sentences:
    """Returns the validation split or, without its data, bundled sentences.

    Raises Unavailable if there are none.
    """
    try:
        return Sentences("the validation split", *read_pairs(config.data, "valid"))
    except UserError as error:
        language = base_code(config.data.source_language)
        lines = [line.split("\t") for line in BUNDLED.read_text("utf-8").splitlines()]
        texts = [text for code, text in lines if code == language]
        if not texts:
            raise Unavailable(
                f"no sentence in {language} is bundled; name some with --sentences=FILE"
            ) from None
        logging.info("No validation split (%s): the certificate is for bundled sentences.", error)
        return Sentences(f"bundled sentences ({language})", texts)


def usable(sentences: Sentences, model: PortableModel, config: Config) -> Sentences:
    """Returns the sentences that have tokens and are not too long.

    Raises Unavailable if there are none.
    """
    origin, texts, references = sentences
    # The tag of a multilingual model counts as part of the text.
    texts = model.tokenizer.encoders[0].tagged(texts)
    lengths = [len(tokens) for tokens in model.tokenizer.source.encode(texts)]
    limit = config.decoding.max_source_length
    indices = [i for i, length in enumerate(lengths) if 0 < length < limit]
    if not indices:
        raise Unavailable(f"{origin}: no sentence has 1 to {limit - 1} tokens")
    skipped = len(texts) - len(indices)
    if skipped:
        logging.warning(
            "%s: skipped %s, empty or too long.", origin, count_noun(skipped, "sentence")
        )
    if references is not None:
        references = [references[i] for i in indices]
    # Other toolkits read one sentence per line, so line breaks become spaces.
    return Sentences(origin, [" ".join(texts[i].splitlines()) for i in indices], references)
