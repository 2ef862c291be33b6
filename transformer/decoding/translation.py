"""Translations: from a text to tokens, and from the hypotheses of a search to texts with scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer.data.tokenizers.vocabulary import TaggedVocabulary, Vocabulary
from transformer.decoding.beam_search import Hypotheses
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS


@dataclass(frozen=True)
class Translation:
    """A translation and its score. The translation of a source without tokens has empty fields and
    score 0.

    text: without line ends.
    tokens: the ids of the output; the last one is EOS.
    pieces: the string of each token: U+2581 begins a word, "</s>" is EOS.
    token_log_probabilities: of each token given the source and the tokens before it, in nats. A CTC
      search does not know them: they are 0, and that of EOS is `log_probability`.
    log_probability: the sum of these.
    score: log_probability / the length penalty, such as ((5 + length) / 6)^length_penalty, where
      length counts EOS, plus the coverage penalty, if there is one; for a document, that of the
      sentences before it and its own.
    score_kind: "log_probability", or the name of another score: see `mbr` and `reranking`.
    """

    text: str
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]
    log_probability: float
    score: float
    score_kind: str = "log_probability"


EMPTY = Translation("", (), (), (), 0.0, 0.0)


def encode(vocabulary: Vocabulary | TaggedVocabulary, name: str, text: str) -> list[int]:
    """Returns the tokens of a text, and EOS.

    Raises UserError, with the text's name, if it cannot be encoded.
    """
    try:
        return [*vocabulary.encode([text])[0], EOS]
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def read_hypotheses(hypotheses: Hypotheses, vocabulary: Vocabulary) -> list[Translation]:
    """Returns the translations of one sentence, at least one, given its hypotheses in NumPy, in
    their order.
    """
    finite = np.flatnonzero(np.isfinite(hypotheses.scores))
    outputs = [
        hypotheses.tokens[n, : np.argmax(hypotheses.tokens[n] == EOS) + 1].tolist() for n in finite
    ]
    translations = []
    for n, tokens, text in zip(finite, outputs, vocabulary.decode(outputs), strict=True):
        log_p = tuple(hypotheses.token_log_probabilities[n, : len(tokens)].tolist())
        scores = log_p, sum(log_p), float(hypotheses.scores[n])
        pieces = pieces_of(vocabulary, tokens)
        translations.append(
            Translation(" ".join(text.splitlines()), tuple(tokens), pieces, *scores)
        )
    return translations or [EMPTY]


def pieces_of(vocabulary: Vocabulary, tokens: Sequence[int]) -> tuple[str, ...]:
    """Returns the string of each token."""
    return tuple(vocabulary.pieces[token] for token in tokens)


def different_texts(translations: list[Translation]) -> list[Translation]:
    """Returns the first translation with each text, since several token sequences may have it."""
    first: dict[str, Translation] = {}
    return [x for x in translations if first.setdefault(x.text, x) is x]
